"""The trace of a step whose layers differ in their number of tokens or in their adapters.

It is combined from traces whose layers are all alike. Tokens that skip a route's layers stay in memory, and so do their
gradients in the backward pass. Layers before the first one with adapters keep nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from ..model import Numerics, WanShape
from .short_model import Recomputing, StepShape
from .trace import How, StepTrace, traced_step


class Layer(NamedTuple):
    """Tokens and adapters of a layer."""

    tokens: int
    """tokens of a clip in this layer"""
    adapt: Callable[[nn.Module], None]
    """adapts a model whose layers are all like this one"""
    walked: bool = True
    """whether it has a backward pass; False for layers before the first one with adapters, which keep nothing"""


@dataclass(frozen=True)
class _Kind:
    kept: int
    """kept by a layer for the backward pass"""
    kept_second: int
    """kept by a layer of VACE's second stream"""
    forward: int
    """peak of temporary tensors in the forward pass"""
    backward: int
    """peak of temporary tensors in the backward pass"""
    host: int
    """kept in host memory"""


_NOTHING = _Kind(0, 0, 0, 0, 0)


def traced_routed(
    shape: WanShape,
    numerics: Numerics,
    step: StepShape,
    layers: Sequence[Layer],
    *,
    control: Sequence[int],
    how: How,
) -> StepTrace:
    """Returns the trace of `step` through `layers` of one device.

    `control`: tokens of a clip in each layer of VACE's second stream. Other arguments are as for `traced_step`.
    """
    count_all, whole = len(layers), step.tokens
    checked = replace(how, recomputing=replace(how.recomputing, unchecked=0))
    unchecked_blocks = replace(how, recomputing=Recomputing(blocks=False))
    plain = min(how.recomputing.unchecked, count_all) if how.recomputing.blocks else 0

    def of(layer: Layer, more: int = 0, *, how: How = checked, shape: WanShape = shape) -> StepTrace:
        # A grid of another shape with as many tokens in each frame.
        narrow = replace(step, latent_height=2, latent_width=2 * (layer.tokens // step.latent_frames))
        size = step if layer.tokens == whole else narrow
        return traced_step(shape, numerics, size, layer.adapt, count_all + more, how)

    def kind(layer: Layer) -> _Kind:
        found, one_more = of(layer), of(layer, 1)
        fewer = replace(shape, vace_layers=shape.vace_layers[:-1])
        second = found.kept - of(layer, shape=fewer).kept if shape.vace_layers else 0
        working = found.forward - found.kept, found.backward - found.kept
        return _Kind(one_more.kept - found.kept, second, *working, one_more.host - found.host)

    def unchecked(layer: Layer) -> _Kind:
        found = of(layer, how=unchecked_blocks)
        one = of(layer, 1, how=unchecked_blocks).kept - found.kept
        return _Kind(one, 0, found.forward - found.kept, found.backward - found.kept, 0)

    like = next((layer for layer in layers if layer.walked), layers[0])._replace(walked=True)
    ends, every = like._replace(tokens=whole), [like._replace(tokens=count) for count in (*control, whole)]
    kinds = {layer: kind(layer) for layer in {*(layer._replace(walked=True) for layer in layers), *every}}
    last = {layer: unchecked(layer) for layer in {*layers[count_all - plain :]} if layer.walked}
    of_layer = list[_Kind]()
    for number, layer in enumerate(layers):
        found = last[layer] if layer in last and number >= count_all - plain else kinds[layer._replace(walked=True)]
        of_layer.append(found if layer.walked else replace(_NOTHING, forward=found.forward))
    kept_by = [kind.kept for kind in of_layer]
    for place, count in zip(shape.vace_layers, control, strict=True):  # includes layers of other devices
        kept_by[min(place, count_all - 1)] += kinds[like._replace(tokens=count)].kept_second
    all_whole = of(ends)
    begins = all_whole.kept - count_all * kinds[ends].kept - len(control) * kinds[ends].kept_second
    stream = step.batch_size * step.own_tokens * shape.dim * numerics.residual.itemsize * (1 + bool(control))
    live, forward, backward = begins, 0, 0
    for number, (layer, here) in enumerate(zip(layers, of_layer, strict=True)):
        passes = layer.tokens == whole
        if not passes and (number == 0 or layers[number - 1].tokens != layer.tokens):
            own = layer.tokens * step.parts[step.card] // sum(step.parts)
            live += own * (shape.dim // shape.num_heads) * numerics.rope.itemsize  # rotary tables of a route's tokens
        live += kept_by[number]
        beside = live + (0 if passes else stream)
        forward = max(forward, beside + here.forward)
        backward = max(backward, beside + here.backward) if layer.walked else backward
        if not passes and [one.tokens for one in layers[number + 1 : number + 2]] != [layer.tokens]:
            forward = max(forward, beside + stream)  # the end of a route copies the token stream
    if layers[0].tokens != whole or not layers[0].walked:
        # The input of the first layer stays in memory, although no layer keeps it.
        forward += step.batch_size * step.own_tokens * shape.dim * numerics.residual.itemsize
    return StepTrace(
        before=all_whole.before,
        kept=live,
        embed=all_whole.embed,
        forward=forward,
        head=all_whole.head - all_whole.kept + live,
        backward=backward,
        host=sum(kind.host for kind in of_layer),
    )
