"""The work of one training step on a card: kernels, bytes and FLOP of short models on meta tensors, extrapolated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from ..model import Constants, Numerics, WanShape, WanTransformer
from ..model.offload import NoOffload
from ..model.walk import StayHere
from .counting import Counting, Traffic, combined
from .meta_operators import run_on_meta
from .short_model import ALONE, MetaBatch, Recomputing, StepShape, gradients_of, set_part, set_up, short_model


class _PerChunk(NoOffload):
    """An `Offload` that dequantizes weights for each chunk of tokens."""

    holds_values = False


@dataclass(frozen=True)
class StepTraffic:
    """The work of one micro-batch, without the optimizer."""

    forward: Traffic
    backward: Traffic
    """with recomputation"""

    def plus(self, times: int, other: StepTraffic) -> StepTraffic:
        """Returns the sum of this and `times` times `other`."""
        passes = zip((self.forward, self.backward), (other.forward, other.backward), strict=True)
        return StepTraffic(*(combined(((1, own), (times, more))) for own, more in passes))

    @property
    def total(self) -> Traffic:
        """Both passes."""
        return combined(((1, self.forward), (1, self.backward)))


_Counts = tuple[StepTraffic, StepTraffic]
"""work of a model, and of its last block"""


@lru_cache(maxsize=256)
def step_traffic(
    shape: WanShape,
    numerics: Numerics,
    step: StepShape,
    adapt: Callable[[nn.Module], None],
    *,
    recomputing: Recomputing,
    chunk_tokens: int,
    dequantize_once: bool = True,
) -> StepTraffic:
    """Returns the work of a micro-batch `step` on a model of `shape`, without offload copies.

    `adapt(model)` quantizes the weights and injects the adapters. `chunk_tokens`: tokens of a chunk; 0: all. Counts are
    linear in layers and in chunks, so they are extrapolated from models of two layers (three with VACE's second stream)
    and up to three chunks, a tenth of a second each.
    """
    parts = 1 if not chunk_tokens else -(-step.own_tokens // max(1, chunk_tokens // step.batch_size))
    plain = min(recomputing.unchecked, shape.num_layers) if recomputing.blocks else 0
    second = len(shape.vace_layers)
    few = min(second, 2)
    layers = 3 if few else 2

    def counted(vace: int, how: Recomputing, chunks: int, *, attending: bool) -> _Counts:
        last = (layers - 1,) if attending else ()
        short = shape.shortened(layers, vace, last)
        most = 0 if chunks == 1 else -(-step.own_tokens // chunks) * step.batch_size
        return _counted(short, numerics, step, adapt, how, dequantize_once, most)

    def of(vace: int, how: Recomputing, *, attending: bool = False) -> _Counts:
        if parts < 3:
            return counted(vace, how, parts, attending=attending)
        (two, last), (three, last_of_three) = (counted(vace, how, chunks, attending=attending) for chunks in (2, 3))
        more = parts - 2
        return two.plus(more, three).plus(-more, two), last.plus(more, last_of_three).plus(-more, last)

    checked = replace(recomputing, unchecked=0)
    short, last = of(few, checked)
    found = short.plus(shape.num_layers - plain - layers, last)
    if second > few:
        found = found.plus(second - few, of(few + 1, checked)[0]).plus(few - second, short)
    if count := len([layer for layer in shape.attending_layers if layer < shape.num_layers - plain]):
        once, each = of(few, checked, attending=True)  # encoders run once, their attention after each such layer
        found = found.plus(1, once).plus(-1, short).plus(count - 1, each).plus(1 - count, last)
    if plain:
        found = found.plus(plain, of(few, replace(checked, blocks=False))[1])
    return found


@lru_cache(maxsize=256)
def _counted(
    shape: WanShape,
    numerics: Numerics,
    step: StepShape,
    adapt: Callable[[nn.Module], None],
    recomputing: Recomputing,
    dequantize_once: bool,
    chunk_tokens: int,
) -> _Counts:
    with ALONE:
        model = short_model(shape, numerics, adapt)
        set_up(model, recomputing, chunk_tokens)
        set_part(model, step)
        model.offload = NoOffload() if dequantize_once else _PerChunk()
        return _counts(model, step)


def counted_step(model: WanTransformer, step: StepShape) -> StepTraffic:
    """Returns the work of one micro-batch `step` on a model of `short_model` with its current settings."""
    return _counts(model, step)[0]


def _counts(model: WanTransformer, step: StepShape) -> _Counts:
    with torch.inference_mode(False), torch.enable_grad():
        behind = not gradients_of(model)
        with Counting(run_on_meta) as counting, counting.as_on_a_card(model):
            model.carrier = marks = _LastApart(counting, model.shape.num_layers - 1, behind=behind)
            batch = MetaBatch.of(model.shape, step)
            loss = nn.functional.mse_loss(batch.through(model), batch.noise - batch.latent)
            marks.begin(marks.others.backward)
            loss.backward()
    return marks.others.plus(1, marks.last), marks.last


class _LastApart(StayHere):
    """A `Carrier` that moves nothing, and counts the last block of the main stream separately.

    The backward pass of a block ends when the gradient of its input is known, which a hook on its input detects.
    """

    def __init__(self, counting: Counting, last: int, *, behind: bool) -> None:
        """`behind`: earlier blocks have adapters, so the input of the first block has a gradient."""
        self.last, self.others = (StepTraffic(Traffic(), Traffic()) for _ in range(2))
        self._counting, self._number, self._behind_others = counting, last, behind
        self.begin(self.others.forward)

    def begin(self, part: Traffic) -> None:
        """Count work as `part` from now on."""
        self._counting.traffic = part

    def to_block(self, index: int, tokens: Tensor, constants: Constants) -> tuple[Tensor, Constants]:
        if self._behind_others:
            tokens, self._behind_others = tokens.detach().requires_grad_(), False
        if index == self._number:
            self._behind(tokens, self.others.backward)
            self.begin(self.last.forward)
        return tokens, constants

    def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        self._behind(tokens, self.last.backward)
        self.begin(self.others.forward)
        return tokens, time

    def _behind(self, tokens: Tensor, part: Traffic) -> None:
        if tokens.requires_grad:
            tokens.register_hook(lambda _gradient: self.begin(part))
