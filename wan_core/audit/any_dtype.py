"""A loaded model that computes in any dtype: weights stay as the plan stores them, and linears cast their own.

Casting bfloat16 weights to float32 is exact, so the reference needs no second copy of the model; with recomputed blocks
only the running block has wide weights.
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
"""of B where it is zero: a change of about 1 % of the layer's output, as early in training"""


def let_linears_cast(model: WanTransformer) -> None:
    """Lets the blocks' linears take inputs of any dtype, and checkpoints the blocks."""
    native = model.numerics.compute
    for name, layer in model.blocks.named_modules():
        # A class with its own forward casts already.
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and "lora_" not in name:
            _let_cast(layer, native)
    model.checkpoint_blocks = True
    model.train(False)  # dropout would be noise between the passes


def _let_cast(layer: nn.Linear, native: torch.dtype) -> None:
    def forward(x: Tensor) -> Tensor:
        if x.dtype == native:
            return nn.Linear.forward(layer, x)  # the same operation as in training
        bias = None if cast(Any, layer.bias) is None else layer.bias.to(x.dtype)
        return functional.linear(x, layer.weight.to(x.dtype), bias)

    cast(Any, layer).forward = forward


def compute_in(model: WanTransformer, numerics: Numerics) -> None:
    """Sets the compute dtypes of every part."""
    for module in model.modules():
        if isinstance(getattr(module, "numerics", None), Numerics):
            module.numerics = numerics  # type: ignore[assignment]
    multiply_in(model, numerics.matmul)
    set_adapter_dtype(model, numerics.adapter if numerics.adapter != numerics.compute else None)


def fill_empty_adapters(model: WanTransformer, seed: int) -> bool:
    """Fills zero parts (B of a LoRA) with small random values, since the gradient of A would be zero. True if any."""
    filled = False
    for name, parameter in adapter_parameters(model).items():
        if not parameter.detach().any():
            values = torch.randn(parameter.shape, generator=seeded_generator(seed, "audit", name))
            parameter.data.copy_(values * _ADAPTER_SCALE)
            filled = True
    return filled
