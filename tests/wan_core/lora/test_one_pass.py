"""A linear and its LoRA as one autograd node, against separate nodes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.support.blocks import new_block
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.lora.low_rank import LoraAdapter
from wan_core.model import Numerics
from wan_core.precision import QuantizeConfig
from wan_core.precision.quantize import quantize_block

TARGET = r"blocks\.0\.ffn\.0"


def adapted(scheme: str, config: LoraConfig) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """A linear of a block, in bfloat16 or quantized, and its adapter with values."""
    holder = nn.ModuleDict(
        {"blocks": nn.ModuleList([new_block(Numerics(compute=torch.bfloat16)).requires_grad_(False)])}
    )
    if scheme:
        quantize_block(holder["blocks"][0], "blocks.0", QuantizeConfig(scheme=scheme))
    inject_lora(holder, config, seed=0)
    trained = adapter_parameters(holder)
    for number, value in enumerate(trained.values()):
        value.data = 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(number))
    return holder["blocks"][0].ffn[0], trained


def step(linear: nn.Module, trained: dict[str, nn.Parameter], dtype: torch.dtype) -> list[Tensor]:
    x = torch.randn(2, 5, linear.base_layer.in_features, generator=torch.Generator().manual_seed(9))
    x = x.to(dtype).requires_grad_()
    output = linear(x)
    output.square().sum().backward()
    gradients = [p.grad for p in trained.values()]
    assert x.grad is not None
    return [output.detach(), x.grad, *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("init", ["default", "PiSSA"])
@pytest.mark.parametrize("scheme", ["", "fp8_e4m3fn", "int8"])
def test_one_node_is_as_exact_as_separate_ones(scheme: str, init: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LoraConfig(rank=4, alpha=6.0, targets=(TARGET,), init=init)
    monkeypatch.setattr("wan_core.lora.one_pass._SEPARATE", frozenset())
    nodes: list[int] = []
    monkeypatch.setattr("wan_core.lora.one_pass._gradients", counted(nodes))
    one = step(*adapted(scheme, config), torch.bfloat16)
    assert nodes == [1]
    monkeypatch.setattr(LoraAdapter, "in_one_pass", lambda *_, **__: None)
    separate = step(*adapted(scheme, config), torch.bfloat16)
    assert len(one) == len(separate) == 4
    (output, of_x, *of_pair), (wanted, wanted_x, *wanted_pair) = one, separate
    assert torch.equal(output, wanted)
    assert all(torch.equal(*pair) for pair in zip(of_pair, wanted_pair, strict=True))
    # Summed before it is rounded: half a unit of bfloat16 for each rounding that separate nodes have more.
    assert (of_x - wanted_x).abs().max() <= 2**-7 * wanted_x.abs().max()


def counted(nodes: list[int]) -> object:
    from wan_core.lora.one_pass import _gradients

    def gradients(*args: object) -> object:
        nodes.append(1)
        return _gradients(*args)  # type: ignore[arg-type]

    return gradients


@pytest.mark.parametrize("why", [{"dropout": 0.5}, {"rank_dropout": 0.5}, {"kind": "DoRA"}])
def test_what_one_node_cannot_do_is_done_by_separate_ones(
    why: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wan_core.lora.one_pass._SEPARATE", frozenset())
    linear, trained = adapted("", LoraConfig(rank=4, targets=(TARGET,), **why))  # type: ignore[arg-type]
    linear.train()
    x = torch.ones(1, 3, linear.base_layer.in_features, dtype=torch.bfloat16)
    assert linear.adapter.in_one_pass(x, read=True) is None
    assert trained
