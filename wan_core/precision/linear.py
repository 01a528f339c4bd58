"""The linear of every quantized base: fp8, int8, nvfp4 and GGUF files, and weights quantized by Fp8Quantize.

Its weight stays quantized, in plain tensors, and is dequantized in the forward and again in the backward pass, so that
autograd does not keep the dequantized weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..checkpoint import dequantise, row_values
from ..checkpoint.dequantise import dequantise_together
from ..checkpoint.ggml import BLOCKS
from ..kernels import HeldValues, applied, modules_changed, no_values, without_autocast
from .matmul import in_columns, input_gradient, multiplies, product


class QuantizedLinear(nn.Linear):
    """y = x @ weight.T + bias with a frozen quantized weight (see `dequantise`), computed in x's dtype.

    Only x gets a gradient. An `nn.Linear`, so that adapters and placement treat it as one.
    """

    scale: Tensor | None
    whole_scale: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor | None,
        *,
        bias: bool,
        whole_scale: Tensor | None = None,
        layout: str = "",
    ) -> None:
        super().__init__(row_values(weight.shape[1], layout), weight.shape[0], bias=bias, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", scale)
        self.register_buffer("whole_scale", whole_scale)
        self.layout = layout
        self.matmul: torch.dtype | None = None
        self.held = HeldValues()
        self.requires_grad_(False)
        modules_changed()

    def multiply_in(self, dtype: torch.dtype | None) -> None:
        """Compute products in 8 bits from now on, if the weight permits; None: dequantize the weight."""
        fits = dtype is not None and multiplies(self.weight, self.scale, dtype, self.layout)
        self.matmul = dtype if fits else None

    def forward(self, input: Tensor) -> Tensor:
        """input (..., in) -> (..., out)."""
        return self._run(input, read=True)

    def unread(self, input: Tensor) -> Tensor:
        """`forward` without its values, for a backward pass only (`kernels/backward_only.py`)."""
        return self._run(input, read=False)

    def input_gradient(self, gradient: Tensor, more: Tensor | None = None) -> Tensor:
        """Returns the gradient (n, in) of the input, from `gradient` (n, out), plus `more`, which it overwrites."""
        if self.matmul is not None:
            columns = self.held.of("columns", partial(in_columns, self.weight))
            return input_gradient(gradient, self.weight, self.scale, self.layout, columns, more)
        values = _values(self.held, gradient.dtype, self.weight, self.scale, self.whole_scale, self.layout)
        return gradient @ values if more is None else more.addmm_(gradient, values)

    @staticmethod
    def several(linears: Sequence[QuantizedLinear], dtype: torch.dtype) -> tuple[Tensor, ...] | None:
        """Returns the weights of two or three linears in `dtype`, dequantized by one kernel; None if that is
        impossible, or if they are held already."""
        kinds = {(one.weight.shape, one.weight.dtype, one.layout, _shape_of(one.scale)) for one in linears}
        apart = any(one.matmul is not None or one.whole_scale is not None or one.held.has("values") for one in linears)
        if apart or len(kinds) > 1 or (linears[0].scale is None and linears[0].layout not in BLOCKS):
            return None
        weights, scales = [one.weight for one in linears], [one.scale for one in linears]
        return dequantise_together(weights, scales, dtype, linears[0].layout)

    def _run(self, input: Tensor, *, read: bool) -> Tensor:
        packed = (self.weight, self.scale, self.whole_scale, self.layout)
        return cast(Tensor, applied(_Linear, input, self.held, *packed, self.bias, read, self.matmul is not None))


def multiply_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Makes all quantized linears of `model` that can do so compute their products in 8-bit `dtype`; None: no
    linear."""
    for layer in model.modules():
        if isinstance(layer, QuantizedLinear):
            layer.multiply_in(dtype)


@torch.no_grad()
def product_without_bias(linear: nn.Linear, rows: Tensor) -> Tensor:
    """Returns rows (n, in) @ weight.T (n, out), on the device and in the compute dtype of the weight."""
    values = values_of(linear, linear.bias.dtype if isinstance(linear, QuantizedLinear) else linear.weight.dtype)
    return functional.linear(rows.to(values.device, values.dtype), values)


@torch.no_grad()
def row_squares(linear: nn.Linear) -> Tensor:
    """Returns the sum of squares of each row of a weight, (out,) float32."""
    return values_of(linear).square().sum(1)


def values_of(linear: nn.Linear, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the weight of a linear (out, in), quantized or not, in `dtype`."""
    if isinstance(linear, QuantizedLinear):
        return dequantise(linear.weight, linear.scale, dtype, linear.whole_scale, layout=linear.layout)
    return linear.weight.detach().to(dtype)


def _shape_of(scale: Tensor | None) -> torch.Size | None:
    return None if scale is None else scale.shape


class _Linear(torch.autograd.Function):
    """`in_8_bits`: products in 8 bits, for layouts with one value per byte, without a scale of the complete weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        held: HeldValues,
        weight: Tensor,
        scale: Tensor | None,
        whole_scale: Tensor | None,
        layout: str,
        bias: Tensor | None,
        read: bool,
        in_8_bits: bool,
    ) -> Tensor:
        ctx.save_for_backward(weight, scale, whole_scale)
        ctx.layout, ctx.held, ctx.in_8_bits = layout, held, in_8_bits
        if not read:
            return no_values(x, weight.shape[0])
        if in_8_bits:
            assert whole_scale is None
            return product(x, weight, scale, bias, layout)
        if torch.compiler.is_compiling():
            return _opaque_product(x, weight, scale, whole_scale, layout, bias)
        values = _values(held, x.dtype, weight, scale, whole_scale, layout)
        return functional.linear(x, values, None if bias is None else bias.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if not ctx.needs_input_grad[0]:
            return (None,) * 9
        if ctx.in_8_bits:
            weight, scale, _ = ctx.saved_tensors
            columns = ctx.held.of("columns", partial(in_columns, weight))
            return input_gradient(gradient, weight, scale, ctx.layout, columns), *(None,) * 8
        compute = _opaque_input_gradient if torch.compiler.is_compiling() else partial(_input_gradient, ctx.held)
        of_x = without_autocast(gradient.device.type, compute, gradient, *ctx.saved_tensors, ctx.layout)
        return of_x, *(None,) * 8


def _input_gradient(
    held: HeldValues,
    gradient: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    whole_scale: Tensor | None,
    layout: str,
) -> Tensor:
    return gradient @ _values(held, gradient.dtype, weight, scale, whole_scale, layout)


def _values(
    held: HeldValues,
    dtype: torch.dtype,
    weight: Tensor,
    scale: Tensor | None,
    whole_scale: Tensor | None,
    layout: str,
) -> Tensor:
    return held.of("values", partial(dequantise, weight, scale, dtype, whole_scale, layout=layout))


# Each pass is one opaque operator for torch.compile: otherwise it would dequantize once, and keep the values for the
# backward pass.
_PACKED = "Tensor weight, Tensor? scale, Tensor? whole_scale, str layout"
_OPERATIONS = "wan_trainer_" + sha256(__name__.encode("utf-8", "surrogatepass")).hexdigest()[:12]
"""namespace of the operators, different for each copy of the code, because torch refuses to define one twice. A digest,
because it must be ASCII, and ComfyUI's module names contain complete paths."""


@torch.library.custom_op(
    f"{_OPERATIONS}::product", mutates_args=(), schema=f"(Tensor x, {_PACKED}, Tensor? bias) -> Tensor"
)
def _opaque_product(
    x: Tensor, weight: Tensor, scale: Tensor | None, whole_scale: Tensor | None, layout: str, bias: Tensor | None
) -> Tensor:
    values = dequantise(weight, scale, x.dtype, whole_scale, layout=layout)
    return functional.linear(x, values, None if bias is None else bias.to(x.dtype)).contiguous()


@_opaque_product.register_fake
def _(x: Tensor, weight: Tensor, *_rest: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op(
    f"{_OPERATIONS}::input_gradient", mutates_args=(), schema=f"(Tensor gradient, {_PACKED}) -> Tensor"
)
def _opaque_input_gradient(gradient: Tensor, *packed: Any) -> Tensor:
    return _input_gradient(HeldValues(), gradient, *packed).contiguous()


@_opaque_input_gradient.register_fake
def _(gradient: Tensor, weight: Tensor, _scale: Tensor | None, _whole: Tensor | None, layout: str) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], row_values(weight.shape[1], layout))
