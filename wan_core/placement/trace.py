"""Traces one training step of a short model on meta tensors: the bytes it holds, phase by phase.

The trace runs the model and checkpointing code of training, with an `Offload` that needs the same device memory. Each
further block keeps as much as the last block of the short model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..model import CHUNK_TOKENS, Constants, Numerics, WanShape, WanTransformer, block_of
from ..model.offload import NoOffload
from .meta_operators import run_on_meta
from .short_model import (
    ALONE,
    InFlight,
    MetaBatch,
    Recomputing,
    StepShape,
    as_it_is,
    gradients_of,
    set_part,
    set_up,
    short_model,
)
from .storage_meter import StorageMeter

MOST_TOKENS = 1 << 17
"""longest traced micro-batch in tokens; 1280x720 with 141 frames has fewer"""


@dataclass(frozen=True, kw_only=True)
class Unpacking:
    """The temporary memory of quantized blocks while they run."""

    widest_bytes: int = 0
    """largest temporary memory of a linear: dequantized weight and further tensors; 0 if none is quantized"""
    once: bool = True
    """whether the second stage of a layer holds dequantized weights for all chunks"""

    def of(self, model: WanTransformer) -> dict[Tensor, tuple[int, int]]:
        """Returns, for the weight of each linear of a block, the temporary bytes during and before its product.

        The temporary tensors of dequantization have a fixed limit, so they count alike for every weight. For weights
        that a stage holds, only these count.
        """
        if not self.widest_bytes:
            return {}
        linears = _linears(model)
        more = self.widest_bytes - max(p.nbytes for p in linears.values())
        return {
            p: (0, max(0, more)) if self.once and _in_chunks(name) else (p.nbytes, max(p.nbytes, more + p.nbytes))
            for name, p in linears.items()
        }

    @contextmanager
    def held(self, model: WanTransformer, meter: StorageMeter) -> Iterator[None]:
        """Inside, `meter` also counts the dequantized weights that a stage holds."""
        if not (self.widest_bytes and self.once):
            yield
            return
        held = Counter[str]()
        for name, p in _linears(model).items():
            if _in_chunks(name) and (found := block_of(name)) is not None:
                held[f"{found.stream}.{found.number}"] += p.nbytes
        layers: dict[str, Any] = {name: model.get_submodule(name) for name in held}
        for name, layer in layers.items():
            layer.hold = partial(meter.holding, held[name])
        try:
            yield
        finally:
            for layer in layers.values():  # the model is cached for other traces
                del layer.hold


@dataclass(frozen=True)
class How:
    """The settings with which a device runs the blocks of a step."""

    recomputing: Recomputing
    """`unchecked`: number of the device's blocks without checkpointing"""
    offloaded: bool = False
    """whether the inputs of blocks are offloaded"""
    unpacking: Unpacking = Unpacking()
    """temporary memory of quantized blocks"""
    chunk_tokens: int = CHUNK_TOKENS


def _linears(model: WanTransformer) -> dict[str, Tensor]:
    named = model.named_parameters()
    return {name: p for name, p in named if block_of(name) and p.ndim == 2 and not p.requires_grad}


def _in_chunks(name: str) -> bool:
    """Returns whether a weight belongs to the second stage of a layer, which runs in chunks of tokens."""
    return ".ffn." in name or ".cross_attn.q." in name or ".cross_attn.o." in name


@dataclass(frozen=True)
class StepTrace:
    """Bytes on one device in each part of a step, without weights and adapters."""

    before: int
    """before the first block: batch, constants, tokens"""
    kept: int
    """after the last block"""
    embed: int
    """peak before the first block"""
    forward: int
    """peak in the forward pass of the blocks"""
    head: int
    """peak of head, loss, and the head's backward pass"""
    backward: int
    """peak in the backward pass of the blocks"""
    host: int = 0
    """activations in host memory that a policy offloads"""
    of_block: int = 0
    """kept by the last checkpointed block, and by each further one"""
    of_block_on_host: int = 0
    """kept in host memory by that block"""
    of_unchecked: int = 0
    """kept by the last block without checkpointing; 0 without such blocks"""
    backward_unchecked: int = 0
    """peak in the backward pass of blocks without checkpointing; `backward` is then the peak after them"""

    @property
    def step(self) -> int:
        return max(self.embed, self.forward, self.head, self.backward)

    def and_blocks(self, count: int, unchecked: int) -> StepTrace:
        """Returns this trace with `count` more checkpointed and `unchecked` more unchecked blocks.

        Its `backward` is the peak of all blocks.
        """
        checked, more = count * self.of_block, count * self.of_block + unchecked * self.of_unchecked
        first_back = self.backward_unchecked + more if self.of_unchecked else 0
        return replace(
            self,
            kept=self.kept + more,
            forward=self.forward + more,
            head=self.head + more,
            backward=max(self.backward + checked, first_back),
            backward_unchecked=first_back,
            host=self.host + count * self.of_block_on_host,
        )

    def where_some_keep_less(self, few: int, share: float, other: StepTrace) -> StepTrace:
        """Returns this trace of `few` layers for a model in which only a `share` of the layers is like these, and the
        others are like those of `other` (Animate and S2V have attention to a face or to sound after some layers)."""
        fewer = 1 - share
        less = round(fewer * (self.of_block - other.of_block))
        return replace(
            self,
            of_block=self.of_block - less,
            of_unchecked=self.of_unchecked - round(fewer * (self.of_unchecked - other.of_unchecked)),
            kept=self.kept - few * less,
            forward=self.forward - few * less,
            head=self.head - few * less,
            backward=self.backward - few * less,
        )

    def and_more(self, count: int, longer: StepTrace, shorter: StepTrace) -> StepTrace:
        """Returns this trace plus `count` times the difference of `longer`, with one more layer, and `shorter`."""
        parts = zip(astuple(self), astuple(longer), astuple(shorter), strict=True)
        return StepTrace(*(own + count * (a - b) for own, a, b in parts))


def traced_step(
    shape: WanShape, numerics: Numerics, step: StepShape, adapt: Callable[[nn.Module], None], layers: int, how: How
) -> StepTrace:
    """Returns the trace of `step` on a device with `layers` of the main stream and all other modules.

    `adapt(model)` injects the same adapters into each layer; if it injects none, earlier layers have some, so there
    is a backward pass.
    """
    plain = min(how.recomputing.unchecked, layers) if how.recomputing.blocks else 0
    extra = len(shape.vace_layers)
    base = min(extra, 2)  # the tokens of the second stream are kept between its layers, so from two on it is linear
    few = max(3 if how.offloaded else 2, min(extra, 3) + 1)  # From this number of layers on, bytes grow linearly.

    unchecked = min(plain, 1)

    def of(second: int, *, attending: bool = bool(shape.attending_layers)) -> StepTrace:
        short = shape.shortened(few + unchecked, second, range(few + unchecked if attending else 0))
        few_plain = replace(how, recomputing=replace(how.recomputing, unchecked=unchecked))
        return StepTrace(*_straight(lambda size: astuple(_trace_once(short, numerics, size, adapt, few_plain)), step))

    found = of(base) if extra == base else of(base).and_more(extra - base, of(base + 1), of(base))
    if shape.attending_layers:
        share = len(shape.attending_layers) / shape.num_layers
        found = found.where_some_keep_less(few, share, of(base, attending=False))
    return found.and_blocks(layers - plain - few, plain - unchecked)


def _straight(traced: Callable[[StepShape], tuple[int, ...]], step: StepShape) -> tuple[int, ...]:
    """Returns `traced(step)`, extrapolated from two smaller traces for a step above MOST_TOKENS.

    A trace takes time for every chunk of tokens, while the bytes grow linearly.
    """
    columns, of_column = -(-step.tokens // step.latent_frames), step.batch_size * step.latent_frames
    many = max(2, MOST_TOKENS // of_column)
    if columns <= many:
        return traced(step)
    few = many // 2
    # A frame of another aspect ratio with the same number of tokens, context tokens included.
    less, more = (traced(replace(step, latent_height=2, latent_width=2 * width, context=())) for width in (few, many))
    return tuple(a + (b - a) * (columns - few) // (many - few) for a, b in zip(less, more, strict=True))


def _trace(
    shape: WanShape, numerics: Numerics, step: StepShape, adapt: Callable[[nn.Module], None], how: How
) -> StepTrace:
    recomputing, unpacking = how.recomputing, how.unpacking
    with ALONE:
        model = short_model(shape, numerics, adapt)
        set_up(model, recomputing, how.chunk_tokens)
        set_part(model, step)
        with torch.inference_mode(False), torch.enable_grad():
            gradients = gradients_of(model)
            known = [*model.parameters(), *gradients]
            with StorageMeter(known, unpacking.of(model), run_on_meta) as meter, unpacking.held(model, meter):
                model.offload = offload = InFlight() if how.offloaded else NoOffload()
                plain = recomputing.unchecked if recomputing.blocks else 0
                first_plain = len(model.blocks) - plain
                model.carrier = marks = _Marks(meter, offload, first_unchecked=first_plain, behind=not gradients)
                batch = MetaBatch.of(shape, step)
                loss = nn.functional.mse_loss(batch.through(model), batch.noise - batch.latent)
                loss.backward()
                marks.end("backward")
    (begins, put_before), (ends, put) = marks.between[-2 - plain :][:2]
    to_host = bool(recomputing.policy.offloaded)
    return StepTrace(
        **marks.found,
        host=to_host * marks.between[-1][1],
        of_block=ends - begins,
        of_block_on_host=to_host * (put - put_before),
        of_unchecked=marks.between[-1][0] - marks.between[-2][0] if plain else 0,
    )


def traced_watching(shape: WanShape, numerics: Numerics, step: StepShape, how: How) -> int:
    """Returns the peak bytes of a forward pass without gradients, for evaluation and previews, without weights.

    They do not depend on the number of layers.
    """
    short = shape.shortened(2, len(shape.vace_layers[:1]), shape.attending_layers and (0, 1))
    how = replace(how, recomputing=Recomputing(), offloaded=False)
    (found,) = _straight(lambda size: (_watch_once(short, numerics, size, how),), step)
    return found


def _watch(shape: WanShape, numerics: Numerics, step: StepShape, how: How) -> int:
    unpacking = how.unpacking
    with ALONE:
        model = short_model(shape, numerics, as_it_is)
        set_up(model, how.recomputing, how.chunk_tokens)
        set_part(model, step)
        with torch.inference_mode(False), torch.no_grad():
            with (
                StorageMeter(model.parameters(), unpacking.of(model), run_on_meta) as meter,
                unpacking.held(model, meter),
            ):
                batch = MetaBatch.of(shape, step)
                first = batch.through(model)
                guided = first + 5.0 * (batch.through(model) - first)  # classifier-free guidance
                del guided
            return meter.peak


_trace_once, _watch_once = lru_cache(maxsize=64)(_trace), lru_cache(maxsize=64)(_watch)
"""cached traces; the `adapt` functions of footprint.py are frozen dataclasses, which compare equal"""


class _Marks:
    """A `Carrier` that moves nothing, and records the meter between blocks."""

    def __init__(
        self, meter: StorageMeter, offload: NoOffload | InFlight, *, first_unchecked: int, behind: bool
    ) -> None:
        """`behind`: earlier blocks have adapters, so the input of the first block has a gradient."""
        self._meter, self._offload, self._first_unchecked, self._behind = meter, offload, first_unchecked, behind
        self.found: dict[str, int] = {}
        self.between: list[tuple[int, int]] = []
        """bytes on the device and in host memory before each block of the main stream, and after the last"""
        self._start: Tensor | None = None
        """input of the first block; held until the last block has ended, as in training"""

    def to_block(self, index: int, tokens: Tensor, constants: Constants) -> tuple[Tensor, Constants]:
        if index == 0 and "embed" not in self.found:  # block 0 of VACE's second stream also has index 0
            self.found["before"] = self._meter.live
            self.end("embed")
        if index == len(self.between):
            self._note()
            self._start = tokens if index == 0 else self._start
            if index == 0 and self._behind:
                tokens = tokens.detach().requires_grad_()
            if index == self._first_unchecked and tokens.requires_grad:
                tokens.register_hook(lambda _gradient: self.end("backward_unchecked"))
        return tokens, constants

    def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        self._note()
        self._start = None
        self.found["kept"] = self._meter.live
        self.end("forward")
        # The hook runs after the head's backward pass, before that of the blocks.
        tokens.register_hook(lambda _gradient: self.end("head"))
        return tokens, time

    def to_start(self, predicted: Tensor) -> Tensor:
        return predicted

    def _note(self) -> None:
        host = self._offload.put_bytes if isinstance(self._offload, InFlight) else 0
        self.between.append((self._meter.live, host))

    def end(self, part: str) -> None:
        """Record the peak of a part, and begin the next part."""
        self.found[part] = self._meter.peak
        self._meter.peak = self._meter.live
