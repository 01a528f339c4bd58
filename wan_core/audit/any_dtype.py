"""Makes a loaded model compute in any dtype: weights keep their storage dtype, and each linear casts its own weight.

Casting bfloat16 to float32 is exact, so the float32 reference needs no second model. With activation checkpointing only
one block has cast weights at a time.
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
"""standard deviation of the values that fill a zero B: the LoRA then changes a layer's output by about 1 %, as early in
training"""


def let_linears_cast(model: WanTransformer) -> None:
    """Makes the blocks' linears accept inputs of any dtype, and turns on activation checkpointing."""
    native = model.numerics.compute
    for name, layer in model.blocks.named_modules():
        # Subclasses with a forward of their own cast their weights already.
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and "lora_" not in name:
            _let_cast(layer, native)
    model.checkpoint_blocks = True
    model.train(False)  # eval mode, because dropout would differ between the passes


def _let_cast(layer: nn.Linear, native: torch.dtype) -> None:
    def forward(x: Tensor) -> Tensor:
        if x.dtype == native:
            return nn.Linear.forward(layer, x)  # the same operation as in training
        bias = None if cast(Any, layer.bias) is None else layer.bias.to(x.dtype)
        return functional.linear(x, layer.weight.to(x.dtype), bias)

    cast(Any, layer).forward = forward


def compute_in(model: WanTransformer, numerics: Numerics) -> None:
    """Sets the compute dtypes of all modules, matmuls and adapters."""
    for module in model.modules():
        if isinstance(getattr(module, "numerics", None), Numerics):
            module.numerics = numerics  # type: ignore[assignment]
    multiply_in(model, numerics.matmul)
    set_adapter_dtype(model, numerics.adapter if numerics.adapter != numerics.compute else None)


def fill_empty_adapters(model: WanTransformer, seed: int) -> bool:
    """Fills adapter parameters that are all zero with small random values; returns True if there were any.

    With B zero, the gradient of A would be zero too.
    """
    filled = False
    for name, parameter in adapter_parameters(model).items():
        if not parameter.detach().any():
            values = torch.randn(parameter.shape, generator=seeded_generator(seed, "audit", name))
            parameter.data.copy_(values * _ADAPTER_SCALE)
            filled = True
    return filled
