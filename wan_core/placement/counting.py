"""The work of a card, counted operator by operator on meta tensors: kernels, bytes and FLOP.

An operator that makes or changes a tensor counts as a kernel, with the bytes of its inputs and outputs, as if there was
no cache. Views and uninitialized tensors do not count. Attention and RMS norm are one kernel each, as on a card. Counts
say nothing about the speed of a kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..kernels import sums_within
from ..model import PlainMode
from ..model.attention import WanAttention, WanRMSNorm

_PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "convolution", "convolution_backward")
ATTENTION, ATTENTION_BACKWARD = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
"""operators that represent the FlashAttention of a card, which torch would not choose for meta tensors"""
_OVERWRITES = ("copy_", "_foreach_copy_", "zero_", "fill_", "new_zeros", "zeros_like", "ones_like", "finished")
"""operators that write a tensor without reading it"""
_NOTHING = ("empty", "empty_strided", "empty_like", "new_empty", "detach", "alias", "lift_fresh", "_reshape_alias")


class _Attention(torch.autograd.Function):
    """Attention of (B, N, heads, d) that keeps the same tensors as FlashAttention on a card."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (part.transpose(1, 2) for part in (q, k, v))
        _, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*heads)
        found = torch.empty_like(q)  # the kernel of a card returns the layout of the queries
        ctx.save_for_backward(q, k, v, found, lse)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *given, lse = (gradients[0], *ctx.saved_tensors)
        heads = (part.transpose(1, 2) for part in given)
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*heads, lse, 0.0, False)
        return tuple(torch.empty_like(part) for part in given[1:4])


def _run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


@dataclass
class Traffic:
    """The work of a pass, by operator."""

    kernels: Counter[str] = field(default_factory=Counter[str])
    moved: Counter[str] = field(default_factory=Counter[str])
    """bytes read and written"""
    flop: Counter[str] = field(default_factory=Counter[str])
    """FLOP of `products` and of `attention`"""

    def add(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Counts one kernel."""
        self.kernels[name] += 1
        self.moved[name] += sum(map(_span, inputs)) + sum(map(_span, outputs))
        if name in _PRODUCTS:
            self.flop["products"] += _product_flop(name, inputs, outputs)
        elif name in (ATTENTION, ATTENTION_BACKWARD):
            self.flop["attention"] += _attention_flop(name, inputs)

    @property
    def bytes_beside(self) -> int:
        """Bytes of all kernels other than matrix products and attention."""
        work = (*_PRODUCTS, ATTENTION, ATTENTION_BACKWARD)
        return sum(amount for name, amount in self.moved.items() if name not in work)


def combined(parts: Iterable[tuple[int, Traffic]]) -> Traffic:
    """Returns the sum of all parts, each times its number."""
    found = Traffic()
    for times, traffic in parts:
        for own, other in zip(vars(found).values(), vars(traffic).values(), strict=True):
            for name, amount in other.items():
                own[name] += times * amount
    return found


class Counting(PlainMode):
    """Adds the work of each operator to `traffic`."""

    def __init__(self, run: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any] = _run) -> None:
        """`run(func, args, kwargs)` runs an operator."""
        super().__init__()
        self.traffic, self._run = Traffic(), run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = self._run(func, args, kwargs)
        kind = _kind_of(func)
        if kind.counts:
            given = args[1:] if kind.overwrites else args
            inputs = [*_tensors(given), *_tensors([v for k, v in kwargs.items() if k not in kind.outputs])]
            # An operator that changes a list of tensors returns None.
            outputs = list(_tensors(args[0] if result is None and kind.mutates else result))
            if outputs and (kind.mutates or not _are_views(inputs, outputs)):
                self.traffic.add(kind.name, inputs, outputs)
                # On a card, a summand that is no bias is copied first.
                if kind.name == "addmm" and inputs[0].ndim == 2:
                    self.traffic.add("copy_", inputs[:1], outputs)
        return result

    @contextmanager
    def as_on_a_card(self, model: nn.Module) -> Iterator[None]:
        """Inside, fused attention and RMS norm of `model` count as one kernel in each pass."""
        norms: list[Any] = [module for module in model.modules() if isinstance(module, WanRMSNorm)]
        attentions = (module for module in model.modules() if isinstance(module, WanAttention))
        kernels = {one: one.kernel for one in attentions if not one.numerics.plain_attention}
        for norm in norms:
            norm.forward = partial(_norm, self, norm)
        for module in kernels:
            module.kernel = _Attention.apply
        try:
            yield
        finally:
            for norm in norms:
                del norm.forward
            for module, kernel in kernels.items():
                module.kernel = kernel


def _norm(counting: Counting, norm: WanRMSNorm, x: Tensor, dtype: torch.dtype) -> Tensor:
    weight = norm.weight
    if sums_within(x, weight, dtype):
        return cast(Tensor, _OneKernel.apply(counting, x, weight))
    return cast(Tensor, _OneKernel.apply(counting, x.to(dtype), weight.to(dtype))).to(x.dtype)


class _OneKernel(torch.autograd.Function):
    """RMS norm as one kernel; it keeps its input, in any dtype, and one float32 value for each row."""

    @staticmethod
    def forward(ctx: Any, counting: Counting, x: Tensor, weight: Tensor) -> Tensor:
        found, inverse = torch.empty_like(x), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
        ctx.save_for_backward(x, weight, inverse)
        ctx.counting = counting
        counting.traffic.add("rms_norm", [x, weight], [found, inverse])
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = torch.empty_like(gradients[0])
        ctx.counting.traffic.add("rms_norm_backward", [gradients[0], *ctx.saved_tensors], [found])
        return None, found, None


class _Kind(NamedTuple):
    name: str
    counts: bool
    mutates: bool
    overwrites: bool
    outputs: frozenset[str]
    """names of arguments that are only written"""


@lru_cache(maxsize=1024)
def _kind_of(func: Any) -> _Kind:
    schema = func._schema  # pyright: ignore[reportPrivateUsage]
    name = schema.name.partition("::")[2]
    outputs = frozenset(argument.name for argument in schema.arguments if argument.is_out)
    return _Kind(name, name not in _NOTHING, schema.is_mutable, name in _OVERWRITES, outputs)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _are_views(inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    own = {_storage(value) for value in inputs}
    return all(_storage(value) in own for value in outputs)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _span(tensor: Tensor) -> int:
    """Returns the bytes of a tensor in memory; an expanded dimension has stride 0 and counts once."""
    values = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        values *= size if stride or not size else 1
    return values * tensor.element_size()


def _product_flop(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    if name.startswith("convolution"):
        sides = [value for value in (*inputs, *outputs) if value.ndim > 2]
        weight = next((value for value in inputs[1:] if value.ndim > 2), inputs[1])
        rows = max(value.shape[2:].numel() * value.shape[0] for value in sides)
        return 2 * rows * weight.numel() // weight.shape[2:].numel()
    left = inputs[-2] if name in ("addmm", "addmm_", "baddbmm") else inputs[0]
    return 2 * outputs[0].numel() * left.shape[-1]


def _attention_flop(name: str, inputs: list[Tensor]) -> int:
    """Returns the FLOP of an attention operator; tensors are (B, heads, N, d)."""
    q, k = inputs[:2] if name == ATTENTION else inputs[1:3]
    forward = 4 * q.shape[:-1].numel() * k.shape[2] * q.shape[-1]
    return forward if name == ATTENTION else forward * 5 // 2
