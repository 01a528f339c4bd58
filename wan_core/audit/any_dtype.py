"""A loaded model that can compute in any dtypes: weights rest as the plan says, and every linear casts its own.

A bfloat16 weight cast to float32 is exact, so the float32 reference needs no second copy of the model: only the block
that runs holds wide weights, because blocks are recomputed in the backward pass.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow import seeded_generator
from ..lora import adapter_parameters, set_adapter_dtype
from ..model import Numerics, WanTransformer
from ..precision import multiply_in

_ADAPTER_SCALE = 0.01
"""of B where it is zero: an update of about a hundredth of what the layer puts out, as early in training"""


def let_linears_cast(model: WanTransformer) -> None:
    """Let the linears of the blocks take inputs of any dtype, and keep only block inputs for the backward pass."""
    native = model.numerics.compute
    for name, layer in model.blocks.named_modules():
        # A class with a forward of its own casts by itself.
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and "lora_" not in name:
            _let_cast(layer, native)
    model.checkpoint_blocks = True
    model.train(False)  # no dropout: it would be noise between the passes


def _let_cast(layer: nn.Linear, native: torch.dtype) -> None:
    def forward(x: Tensor) -> Tensor:
        if x.dtype == native:
            return nn.Linear.forward(layer, x)  # exactly what training does
        bias = None if cast(Any, layer.bias) is None else layer.bias.to(x.dtype)
        return functional.linear(x, layer.weight.to(x.dtype), bias)

    cast(Any, layer).forward = forward


def compute_in(model: WanTransformer, numerics: Numerics) -> None:
    """Let every part of the model compute in these dtypes from now on."""
    for module in model.modules():
        if isinstance(getattr(module, "numerics", None), Numerics):
            module.numerics = numerics  # type: ignore[assignment]
    multiply_in(model, numerics.matmul)
    set_adapter_dtype(model, numerics.adapter if numerics.adapter != numerics.compute else None)


def fill_empty_adapters(model: WanTransformer, seed: int) -> bool:
    """Give every part that is zero (B of a LoRA) small random values: the gradient of A would be zero. True if any."""
    filled = False
    for name, parameter in adapter_parameters(model).items():
        if not parameter.detach().any():
            values = torch.randn(parameter.shape, generator=seeded_generator(seed, "audit", name))
            parameter.data.copy_(values * _ADAPTER_SCALE)
            filled = True
    return filled
