"""The last product of a block that is walked back: left out where nobody reads it, and then no gradient changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.support.blocks import GRID, MIXED, SHAPE, block_inputs, new_block
from tests.wan_core.model.test_checkpointing import adapted, assert_same_bits
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model.checkpointing import Checkpointing
from wan_core.precision import QuantizeConfig
from wan_core.precision.linear import multiply_in
from wan_core.precision.quantize import quantize_block

PRODUCT = 2 * 2 * GRID[0] * GRID[1] * GRID[2] * SHAPE.dim * SHAPE.ffn_dim
"""operations of the last linear for two clips"""
UP = PRODUCT * 2 // SHAPE.ffn_dim
"""those of its adapter's second product, of rank 2"""


def without_last(block: nn.Module) -> nn.Module:
    """Adapters on all linears but the last."""
    holder = nn.ModuleDict({"blocks": nn.ModuleList([block])})
    targets = (r"blocks\.0\.(self_attn|cross_attn)\.(q|k|v|o)", r"blocks\.0\.ffn\.0")
    inject_lora(holder, LoraConfig(rank=2, targets=targets), seed=1)
    for number, adapter in enumerate(adapter_parameters(holder).values()):
        adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    return block


def packed(scheme: str, matmul: torch.dtype | None = None) -> Callable[[nn.Module], nn.Module]:
    def adapt(block: nn.Module) -> nn.Module:
        assert quantize_block(block, "blocks.0", QuantizeConfig(scheme=scheme))
        multiply_in(block, matmul)
        return adapted(block)

    return adapt


def gate_is_trained(block: nn.Module) -> nn.Module:
    adapted(block)
    assert isinstance(block.modulation, nn.Parameter)
    block.modulation.requires_grad_()
    return block


def walked_back(adapt: Callable[[nn.Module], nn.Module], how: Checkpointing) -> tuple[dict[str, Tensor], int]:
    """Returns every gradient, and the operations of the backward pass."""
    block, inputs = adapt(new_block(MIXED)), block_inputs(MIXED)
    output = block(*inputs, recompute=how)
    in_place = {torch.ops.aten.addmm_: lambda _own, rows, columns, **_: 2 * rows.numel() * columns[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        output.square().mean().backward()
    found = {name: p.grad for name, p in block.named_parameters() if p.grad is not None}
    assert inputs[0] is not None
    assert inputs[0].grad is not None
    return found | {"tokens": inputs[0].grad}, counter.get_total_flops()


KINDS = {
    "an adapter on it": (adapted, 20, PRODUCT + UP),
    "none on it": (without_last, 18, PRODUCT),
    "fp8": (packed("fp8_e4m3fn"), 20, PRODUCT + UP),
    "int8, multiplied in it": (packed("int8", torch.int8), 20, UP),  # torch does not count products in 8 bits
    "a gate that is trained": (gate_is_trained, 21, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_product_is_left_out_and_no_bit_changes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.lora.one_pass._SEPARATE", frozenset())
    adapt, trained, spared = KINDS[kind]
    expected, _ = walked_back(adapt, Checkpointing(recomputes=False))
    found, operations = walked_back(adapt, Checkpointing())
    assert len(found) == 1 + trained
    assert_same_bits(found, expected)
    monkeypatch.setattr("wan_core.model.block.unread", lambda linear, x: linear(x))
    same, with_it = walked_back(adapt, Checkpointing())
    assert_same_bits(same, expected)
    assert with_it - operations == spared
