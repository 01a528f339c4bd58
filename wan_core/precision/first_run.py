"""Tries the fused functions of a model on its GPUs before the first step, with random values of the model's shapes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..abilities import abilities_of
from ..accelerator import backend_of
from ..checkpoint.dequantise import APART, INTEGERS_OF, MXFP8, SEVERAL, fused_inputs, fused_kind
from ..checkpoint.dequantise import FUSED as DEQUANTISE
from ..checkpoint.ggml import BLOCKS
from ..checkpoint.integers import INTEGERS, value_to_a_byte
from ..kernels import Trial, try_on
from ..kernels import fused as blocks
from ..model import WanTransformer
from .linear import QuantizedLinear
from .matmul import FINISH, ROUND, sums_in

_ROWS, _RUNS = 64, 3


def fused_on_cards(model: WanTransformer, *, runs: bool) -> list[str]:
    """Compiles and tries the fused functions of `model` on each of its GPUs, and uses those that are right; returns
    remarks.

    `runs`: whether tokens of a batch can have different timesteps. On a CPU nothing is fused.
    """
    remarks = list[str]()
    for card in sorted({p.device for p in model.parameters() if backend_of(p.device).triton}, key=str):
        if not abilities_of(card).compiles:
            continue
        if importlib.util.find_spec("triton") is None:
            remarks.append(f"The package triton is not installed, so no function is fused on {card}; steps are slower.")
        else:
            remarks += try_on(card, trials(model, card, runs=runs))
    return remarks


def trials(model: WanTransformer, device: torch.device, *, runs: bool) -> list[Trial]:
    """Returns a trial for each case of a fused function in a step of `model`."""
    return [*_of_blocks(model, device, runs), *_of_weights(model, device)]


def _of_blocks(model: WanTransformer, device: torch.device, runs: bool) -> Iterator[Trial]:
    numerics, shape = model.numerics, model.shape
    draw = partial(torch.randn, device=device)
    compute, residual = numerics.compute, numerics.residual
    per_head = shape.dim // shape.num_heads // 2

    def norm(*lead: int, one_more: bool) -> tuple[Any, ...]:
        kind = numerics.modulation if one_more else compute
        x, (scale, shift) = draw(*lead, _ROWS, shape.dim, dtype=residual), draw(2, *lead, 1, shape.dim, dtype=kind)
        return x, scale, shift, shape.eps, one_more, compute

    def norm_back(*lead: int, one_more: bool) -> tuple[Any, ...]:
        x, scale, *_ = norm(*lead, one_more=one_more)
        mean, inverse = draw(*lead, _ROWS, 1), draw(*lead, _ROWS, 1).abs()
        return torch.randn_like(x, dtype=compute), torch.randn_like(x), x, mean, inverse, scale, one_more

    def norm_back_over() -> tuple[Any, ...]:
        of_normed, of_x, x, *more = norm_back(one_more=False)
        return x, of_normed, of_x, *more

    def sum_norm(*lead: int) -> tuple[Any, ...]:
        x, *more = norm(*lead, one_more=True)
        return x, torch.randn_like(x, dtype=compute), *more

    if numerics.norm == torch.float32:
        yield Trial(blocks.NORM, partial(norm, one_more=False))
        yield Trial(blocks.NORM_BACK, partial(norm_back, one_more=False))
        yield Trial(blocks.NORM_BACK_OVER, norm_back_over)
        for lead in ((), (_RUNS,)) if runs else ((),):
            yield Trial(blocks.NORM, partial(norm, *lead, one_more=True))
            yield Trial(blocks.NORM_BACK, partial(norm_back, *lead, one_more=True))
            yield Trial(blocks.SUM_NORM, partial(sum_norm, *lead))
            yield Trial(blocks.SUM_NORM_BACK, lambda lead=lead: (*norm_back(*lead, one_more=True), compute))

    def tokens() -> tuple[Tensor, Tensor]:
        return draw(1, _ROWS, shape.dim, dtype=compute), draw(shape.dim, dtype=compute)

    def angles() -> tuple[Tensor, Tensor]:
        angle = draw(_ROWS, 1, per_head)
        return angle.cos(), angle.sin()

    if numerics.rope == numerics.qk_norm == torch.float32:
        yield Trial(blocks.RMS_ROTATE, lambda: (*tokens(), shape.eps, *angles()))
        inverse = partial(torch.rand, 1, _ROWS, 1, device=device)
        yield Trial(blocks.RMS_ROTATE_BACK, lambda: (torch.randn_like((t := tokens())[0]), *t, inverse(), *angles()))


def _of_weights(model: nn.Module, device: torch.device) -> Iterator[Trial]:
    """Yields the trials for each kind of quantized weight, and for its products in 8 bits."""
    seen = set[tuple[Any, ...]]()
    for linear in model.modules():
        if not isinstance(linear, QuantizedLinear):
            continue
        groups = 0 if linear.scale is None else min(2, linear.scale.numel() // len(linear.weight))
        kind = (fused_kind(linear.weight, linear.layout), groups, linear.matmul)
        if kind in seen:
            continue
        seen.add(kind)
        if linear.matmul is not None:
            yield from _of_products(linear, device)
        if linear.layout in INTEGERS and not value_to_a_byte(linear.layout):
            yield Trial(INTEGERS_OF, partial(_codes_like, linear, device), linear.layout)
        if linear.layout not in INTEGERS and (linear.layout in BLOCKS or linear.scale is not None):
            yield Trial(DEQUANTISE, partial(_like, linear, device), kind[0])
            if linear.whole_scale is None and linear.matmul is None and linear.layout not in APART:
                yield from (Trial(SEVERAL, partial(_several_like, linear, device, many), kind[0]) for many in (2, 3))


def _of_products(linear: QuantizedLinear, device: torch.device) -> Iterator[Trial]:
    dtype, width = linear.weight.dtype, linear.in_features
    draw, kind = partial(torch.randn, device=device), linear.bias.dtype
    for of_column in (None, draw(1, width).abs()):
        yield Trial(ROUND, lambda of=of_column: (draw(_ROWS, width, dtype=kind), of, dtype), str(dtype))
    sums = sums_in(dtype)
    for of_column, added in (
        (None, None),
        (None, draw(_ROWS, width, dtype=kind)),
        (draw(width), draw(width, dtype=kind)),
    ):
        yield Trial(
            FINISH,
            lambda of=of_column, added=added: (
                draw(_ROWS, width, dtype=kind),
                (draw(_ROWS, width) * 1000).to(sums),
                draw(_ROWS, 1).abs(),
                of,
                added,
            ),
            str(sums),
        )


def _codes_like(linear: QuantizedLinear, device: torch.device) -> tuple[object, ...]:
    packed = linear.weight[:_ROWS].view(torch.uint8)
    return torch.randint(0, 126, packed.shape, dtype=torch.uint8).to(device), linear.whole_scale, linear.layout


def _several_like(linear: QuantizedLinear, device: torch.device, many: int) -> tuple[object, ...]:
    """Returns random inputs for a fused dequantization of several weights; see `_like`."""
    each, missing = [_like(linear, device) for _ in range(many)], (None,) * (3 - many)
    return *(one[0] for one in each), *missing, *(one[1] for one in each), *missing, *each[0][3:]


def _like(linear: QuantizedLinear, device: torch.device) -> tuple[object, ...]:
    """Returns random inputs for a fused dequantization of the first rows of such a weight."""
    rows, width = min(_ROWS, len(linear.weight)), linear.weight.shape[1]
    weight, scale, whole = torch.randint(0, 255, (rows, width), dtype=torch.uint8), linear.scale, linear.whole_scale
    if linear.layout in BLOCKS:
        layout = BLOCKS[linear.layout]
        for at in layout.scales:  # random bits of a float16 scale may be NaN or inf
            blocks_of = weight.view(-1, layout.size_bytes)
            blocks_of[:, at : at + 2] = torch.rand(len(blocks_of), 1).half().view(torch.uint8)
    elif linear.weight.dtype == torch.int8:
        weight = weight.view(torch.int8)
    elif linear.weight.is_floating_point():
        weight = torch.randn(rows, width).to(linear.weight.dtype)
    if scale is not None:
        shape = scale.shape if scale.numel() == 1 else (rows, *scale.shape[1:])
        scale = (
            torch.rand(shape).to(scale.dtype)
            if linear.layout != MXFP8
            else torch.randint(120, 130, shape, dtype=torch.uint8)
        )
    parts = [None if one is None else one.to(device) for one in (weight, scale, whole)]
    assert parts[0] is not None
    return fused_inputs(parts[0], parts[1], linear.bias.dtype, parts[2], linear.layout)
