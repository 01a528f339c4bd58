"""A linear and its LoRA as one autograd node, against separate nodes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.blocks import block_inputs, new_block
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.lora.linear_adapter import AdaptedLinear
from wan_core.lora.low_rank import LoraAdapter
from wan_core.model import Numerics
from wan_core.model.attention import together
from wan_core.model.checkpointing import Checkpointing
from wan_core.precision import QuantizeConfig
from wan_core.precision.linear import values_of
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
    assert linear.adapter.in_one_pass(x) is None
    assert trained


def step_of_a_block(monkeypatch: pytest.MonkeyPatch, chunk_tokens: int) -> tuple[list[Tensor], list[str]]:
    """Gradients of a checkpointed block after two passes, and the in-place operators that ran."""
    monkeypatch.setattr("wan_core.lora.one_pass._SEPARATE", frozenset())
    numerics, seen = Numerics(compute=torch.bfloat16), list[str]()
    block = new_block(numerics).requires_grad_(False)
    block.chunk_tokens = chunk_tokens
    inject_lora(holder := nn.ModuleDict({"blocks": nn.ModuleList([block])}), LoraConfig(rank=4, alpha=6.0), seed=0)
    trained = adapter_parameters(holder)
    for number, value in enumerate(trained.values()):
        value.data = 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(number))

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    tokens, *constants = block_inputs(numerics)
    with Seen():
        for _ in range(2):
            block(tokens, *constants, recompute=Checkpointing()).square().mean().backward()
    assert tokens is not None
    assert tokens.grad is not None
    return [tokens.grad, *(p.grad for p in trained.values() if p.grad is not None)], seen


@pytest.mark.parametrize("chunk_tokens", [pytest.param(0, marks=pytest.mark.soak), 6])
def test_matrices_converted_together_give_the_same_bits(chunk_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together, seen = step_of_a_block(monkeypatch, chunk_tokens)
    assert seen.count("aten::_foreach_copy_") == 2 * (2 + (4 if chunk_tokens else 1))
    monkeypatch.setattr(LoraAdapter, "to_narrow", lambda *_: [])
    apart, seen = step_of_a_block(monkeypatch, chunk_tokens)
    assert "aten::_foreach_copy_" not in seen
    assert len(together) == len(apart) == 21
    assert all(torch.equal(*pair) for pair in zip(together, apart, strict=True))


@pytest.mark.parametrize("scheme", ["", "fp8_e4m3fn"])
def test_queries_keys_and_values_in_one_node_are_as_exact(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.lora.one_pass._SEPARATE", frozenset())

    def step(dtype: torch.dtype) -> list[Tensor]:
        block = new_block(Numerics(compute=torch.bfloat16)).requires_grad_(False)
        if scheme:
            quantize_block(block, "blocks.0", QuantizeConfig(scheme=scheme))
        inject_lora(holder := nn.ModuleDict({"blocks": nn.ModuleList([block])}), LoraConfig(rank=4, alpha=6.0), seed=0)
        layers = [block.self_attn.q, block.self_attn.k, block.self_attn.v]
        trained = [p for name, p in adapter_parameters(holder).items() if re.search(r"self_attn\.[qkv]\.", name)]
        for number, value in enumerate(trained):
            value.data = 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(number))
        if dtype == torch.float64:
            for layer in layers:
                layer.base_layer = base = nn.Linear(48, 48, dtype=dtype).requires_grad_(False)
                base.weight.data, base.bias.data = (one.double() for one in values[layers.index(layer)])
        else:
            values.extend((values_of(layer.base_layer), layer.base_layer.bias) for layer in layers)
        x = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(9)).to(dtype).requires_grad_()
        outputs = together(layers, x)
        weights = [torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(n)).bfloat16() for n in range(3)]
        sum((o * w.to(dtype)).sum() for o, w in zip(outputs, weights, strict=True)).backward()
        assert x.grad is not None
        return [*outputs, x.grad, *(p.grad for p in trained if p.grad is not None)]

    values: list[tuple[Tensor, Tensor]] = []
    nodes: list[int] = []
    monkeypatch.setattr("wan_core.lora.one_pass._gradients", counted(nodes))
    one = step(torch.bfloat16)
    assert nodes == [1]
    exact = step(torch.float64)
    monkeypatch.setattr(AdaptedLinear, "together", lambda *_: None)
    apart = step(torch.bfloat16)
    assert len(one) == len(exact) == len(apart) == 10
    assert all(torch.equal(*pair) for pair in zip(one[:3], apart[:3], strict=True))
    for found, plain, wanted in zip(one, apart, exact, strict=True):
        assert (found - wanted).norm() <= 1.02 * (plain - wanted).norm()
        assert (found - wanted).norm() < 0.006 * wanted.norm()
