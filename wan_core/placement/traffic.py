"""The work of one training step on a card: kernels, bytes and FLOP of short models on meta tensors, extrapolated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import nn

from ..model import Numerics, WanShape, WanTransformer
from ..model.offload import NoOffload
from .counting import Counting, Traffic, combined
from .meta_operators import run_on_meta
from .short_model import ALONE, MetaBatch, Recomputing, StepShape, gradients_of, set_up, share_out, short_model


class _PerChunk(NoOffload):
    """Offloads nothing, and dequantizes weights for each chunk."""

    holds_values = False


@dataclass(frozen=True)
class StepTraffic:
    """The work of one micro-batch, the optimizer left out."""

    forward: Traffic
    backward: Traffic
    """with what is recomputed"""

    def and_more(self, count: int, longer: StepTraffic, shorter: StepTraffic, *, of: int = 1) -> StepTraffic:
        """Returns this with `count / of` times what `longer` has more than `shorter`, `of` a divisor of that."""
        ways = ((of, self), (count, longer), (-count, shorter))
        forward = combined((times, one.forward) for times, one in ways)
        backward = combined((times, one.backward) for times, one in ways)
        return StepTraffic(forward.over(of), backward.over(of))

    @property
    def total(self) -> Traffic:
        """Both passes."""
        return combined(((1, self.forward), (1, self.backward)))


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
    """Returns the work of a step of `step` on a model of `shape`: `adapt(model)` quantizes its weights and injects the
    adapters. `chunk_tokens`: as `Stages` takes it. What is kept in host memory counts as kept; copies are not counted.

    Counted are models of two and of three layers, with up to three chunks of tokens, a tenth of a second each: the
    others are straight lines through these, to the kernel.
    """
    parts = 1 if not chunk_tokens else -(-step.own_tokens // max(1, chunk_tokens // step.batch_size))
    plain = min(recomputing.unchecked, shape.num_layers) if recomputing.blocks else 0
    second = len(shape.vace_layers)
    few = min(second, 2)

    def counted(layers: int, vace: int, how: Recomputing, chunks: int) -> StepTraffic:
        short = replace(shape, num_layers=layers, vace_layers=tuple(range(vace)))
        most = 0 if chunks == 1 else -(-step.own_tokens // chunks) * step.batch_size
        return _counted(short, numerics, step, adapt, how, dequantize_once, most)

    def of(layers: int, vace: int, how: Recomputing) -> StepTraffic:
        if parts < 3:
            return counted(layers, vace, how, parts)
        # Without a second stream a layer more takes half of what a chunk more takes of two.
        few = layers if vace else 2
        more, fewer = counted(few, vace, how, 3), counted(few, vace, how, 2)
        return counted(layers, vace, how, 2).and_more((parts - 2) * layers, more, fewer, of=few)

    checked = replace(recomputing, unchecked=0)
    two, three = of(2, few, checked), of(3, few, checked)
    found = two.and_more(shape.num_layers - plain - 2, three, two)
    if second > few:
        found = found.and_more(second - few, of(3, few + 1, checked), three)
    if plain:
        unchecked = replace(checked, blocks=False)
        found = found.and_more(plain, of(3, few, unchecked), of(2, few, unchecked))
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
) -> StepTraffic:
    with ALONE:
        model = short_model(shape, numerics, adapt)
        set_up(model, recomputing, chunk_tokens)
        share_out(model, step.parts)
        model.offload = NoOffload() if dequantize_once else _PerChunk()
        return counted_step(model, step)


def counted_step(model: WanTransformer, step: StepShape) -> StepTraffic:
    """Returns the work of one micro-batch of `step` on a model of `short_model`, as it is set up."""
    with torch.inference_mode(False), torch.enable_grad():
        gradients_of(model)
        with Counting(run_on_meta) as counting, counting.as_on_a_card(model):
            batch = MetaBatch.of(model.shape, step)
            counting.traffic = forward = Traffic()
            loss = nn.functional.mse_loss(batch.through(model), batch.noise - batch.latent)
            counting.traffic = backward = Traffic()
            loss.backward()
    return StepTraffic(forward, backward)
