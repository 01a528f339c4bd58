"""A tiny block on random data: what tests of the block alone start from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wan_core.kernels.rope import Span, rope_of
from wan_core.model import Numerics, WanShape
from wan_core.model.block import WanBlock

SHAPE = WanShape(dim=48, ffn_dim=64, num_heads=2, num_layers=2, text_dim=8)
GRID = (2, 3, 2)
MIXED = Numerics(compute=torch.bfloat16)
"""Linears and attention in bfloat16, everything else in float32: as training runs."""


def new_block(numerics: Numerics, shape: WanShape = SHAPE) -> WanBlock:
    """Random weights, in the compute dtype but for norms and modulation."""
    block, generator = WanBlock(shape, numerics), torch.Generator().manual_seed(1)
    for name, parameter in block.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) / (parameter[0].numel() ** 0.5)
        small = "norm" in name or name == "modulation"
        parameter.data = noise + 1 if "norm" in name else noise
        parameter.data = parameter.data.to(torch.float32 if small else numerics.compute)
    return block


def block_inputs(numerics: Numerics, shape: WanShape = SHAPE, *, frames: int = 1) -> list[Tensor | None]:
    """What `WanBlock.forward` takes: tokens (B, N, D) that want a gradient, then the fields of Constants."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(2, GRID[0] * GRID[1] * GRID[2], shape.dim, generator=generator)
    rows = torch.randn(2, frames, 6, shape.dim, generator=generator)
    text = torch.randn(2, 16, shape.dim, generator=generator)
    image = torch.randn(2, 5, shape.dim, generator=generator).to(numerics.compute) if shape.image_dim else None
    rope = rope_of((Span(GRID),), shape.dim // shape.num_heads, dtype=numerics.rope, device=tokens.device)
    tokens = tokens.to(numerics.residual).requires_grad_()
    return [tokens, rows.to(numerics.modulation), text.to(numerics.compute), *rope, image]


def linear_dtypes(block: nn.Module) -> list[tuple[str, str]]:
    """A list that grows by the dtypes of input and weight whenever a linear of the block runs."""
    seen: list[tuple[str, str]] = []
    for layer in block.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(
                lambda layer, inputs: seen.append((str(inputs[0].dtype), str(layer.weight.dtype)))
            )
    return seen
