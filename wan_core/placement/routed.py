"""The trace of a step in which some layers see fewer tokens, put together of traces in which all see equally many.

A layer keeps as much, and works with as much, as in a model whose clips have so many tokens. What passes by a route
waits beside it, and so does its gradient on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ..model import CHUNK_TOKENS, Numerics, WanShape
from .short_model import Recomputing, StepShape
from .trace import PLAIN, StepTrace, Unpacking, traced_step


@dataclass(frozen=True)
class _Kind:
    """Layers that see equally many tokens: bytes."""

    kept: int
    """of one layer, for the backward pass"""
    kept_second: int
    """of a layer of VACE's second stream"""
    forward: int
    """the most that such a layer takes beside what is kept"""
    backward: int


def traced_routed(
    shape: WanShape,
    numerics: Numerics,
    step: StepShape,
    adapt: Callable[[nn.Module], None],
    *,
    tokens: Sequence[int],
    control: Sequence[int],
    recomputing: Recomputing,
    offloaded: bool,
    unpacking: Unpacking = PLAIN,
    chunk_tokens: int = CHUNK_TOKENS,
) -> StepTrace:
    """Returns the trace of a step of `step`: `tokens` of a clip go through each layer on the device, `control` through
    each layer of VACE's second stream. The rest is as `traced_step` takes it.
    """
    tokens, layers, whole = list(tokens), len(tokens), step.tokens
    checked = replace(recomputing, unchecked=0)
    plain = min(recomputing.unchecked, layers) if recomputing.blocks else 0

    def of(count: int, more: int = 0, *, how: Recomputing = checked, shape: WanShape = shape) -> StepTrace:
        # A grid of another shape with as many tokens in each frame.
        narrow = replace(step, latent_height=2, latent_width=2 * (count // step.latent_frames))
        return traced_step(
            *(shape, numerics, step if count == whole else narrow, adapt),
            layers=layers + more,
            recomputing=how,
            offloaded=offloaded,
            unpacking=unpacking,
            chunk_tokens=chunk_tokens,
        )

    def kind(count: int) -> _Kind:
        found, fewer = of(count), replace(shape, vace_layers=shape.vace_layers[:-1])
        second = found.kept - of(count, shape=fewer).kept if shape.vace_layers else 0
        return _Kind(of(count, 1).kept - found.kept, second, found.forward - found.kept, found.backward - found.kept)

    def unchecked(count: int) -> _Kind:
        found = of(count, how=Recomputing(blocks=False))
        one = of(count, 1, how=Recomputing(blocks=False)).kept - found.kept
        return _Kind(one, 0, found.forward - found.kept, found.backward - found.kept)

    kinds, all_whole = {count: kind(count) for count in {*tokens, *control, whole}}, of(whole)
    last = {count: unchecked(count) for count in set(tokens[layers - plain :])}
    of_layer = [last[count] if layer >= layers - plain else kinds[count] for layer, count in enumerate(tokens)]
    kept_by = [kind.kept for kind in of_layer]
    for layer, count in zip(shape.vace_layers, control, strict=True):  # of layers on other devices too
        kept_by[min(layer, layers - 1)] += kinds[count].kept_second
    begins = all_whole.kept - layers * kinds[whole].kept - len(control) * kinds[whole].kept_second
    stream = step.batch_size * step.own_tokens * shape.dim * numerics.residual.itemsize * (1 + bool(control))
    live, forward, backward = begins, 0, 0
    for layer, count in enumerate(tokens):
        if count != whole and (layer == 0 or tokens[layer - 1] != count):
            live += (
                count
                * step.parts[step.card]
                // sum(step.parts)
                * (shape.dim // shape.num_heads)
                * numerics.rope.itemsize
            )  # their own positions
        live += kept_by[layer]
        beside = live + (0 if count == whole else stream)
        forward = max(forward, beside + of_layer[layer].forward)
        backward = max(backward, beside + of_layer[layer].backward)
        if count != whole and tokens[layer + 1 : layer + 2] != [count]:
            forward = max(forward, beside + stream)  # they rejoin: the old ones, and the new ones
    if tokens[0] != whole:  # no layer keeps the tokens before the first one, and they are held all the same
        forward += step.batch_size * step.own_tokens * shape.dim * numerics.residual.itemsize
    return StepTrace(
        before=all_whole.before,
        kept=live,
        embed=all_whole.embed,
        forward=forward,
        head=all_whole.head - all_whole.kept + live,
        backward=backward,
        host=all_whole.host,
    )
