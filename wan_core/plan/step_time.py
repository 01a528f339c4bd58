"""The time of an optimizer step, from what is counted of it: FLOP, bytes, kernels, and copies from host memory.

    card    = max(FLOP / flops_per_s + bytes / bytes_per_s + kernels * kernel_s, kernels * host_s)
              + bytes to other cards / LINK
    forward  = max(card of forward, copies to host, copies to the card)
    backward = max(card of backward, copies of both)
    step     = micro-batches * (forward + backward) + optimizer

Kernels of one card run one after the other, so their times are summed: arithmetic is that of products and attention,
bytes are those of all other kernels (`placement/counting.py`), and each kernel adds what it costs to start. Copies run
on streams of their own and count where they take longer than the card. Assumptions: the three constants of a card
and that of its host (`cards.py`); `COPIES` for every machine; each FLOP, byte and kernel as fast as the mean of its
kind; the host runs ahead of the card throughout a pass, or the card waits for it throughout; cards that share out the
tokens of a clip wait for what they send each other, in both directions at once, and around attention for the slowest;
layers with fewer tokens (TREAD) take their share of a complete one. The cards of a split model are another sum
(`split_time.py`). Host memory beyond what the system page-locks is copied while the card waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import nn

from ..model import Numerics, WanShape, WanTransformer
from ..parallel import sent_bytes
from ..parallel.schedule import in_turn
from ..parallel.timeline import StageCost, Timeline, replay
from ..placement import JobShape, MemoryEstimate, StepShape, lockable_bytes, step_traffic
from ..train import FlopCount, StepFlops
from .cards import Card, CardCost
from .split_time import COPIES, PAGEABLE_COPIES, seconds_together, split_step, work_of

LINK = 10e9
"""bytes/s between two cards, each way: of GeForce cards, whose copies go through host memory; 25e9 with peer access"""
_OPTIMIZER_BYTES = 36
"""per adapter value: weights, gradients and two moments are read, weights and moments written, and the gradients read
once more for their norm and written for clipping"""


def step_seconds(
    job: JobShape,
    step: StepShape,
    estimate: MemoryEstimate,
    card: Card | Sequence[Card],
    *,
    micro_batches: int,
    target_share: float = 0.0,
) -> float:
    """Returns the seconds of an optimizer step of `micro_batches` on such a card; of a split or of shared tokens, on
    the card of each device.

    `target_share`: forward passes without gradients per micro-batch, for targets.
    """
    count = len(job.placement.devices)
    cards = [card] * max(count, job.cards) if isinstance(card, Card) else card
    slowest = min(cards, key=lambda one: one.bytes_per_s)
    optimizer = _optimizer(job).seconds(slowest)
    if count > 1:
        split = split_step(job, step, estimate, cards, micro_batches, _pageable_share(estimate))
        base = target_share * sum(cost.forward_s for cost in split.costs) * micro_batches / split.gain
        passes = split.timeline(at_once=not estimate.measures.in_turn).seconds
        return passes + base + optimizer / count
    forward = _computing_seconds(job, step, estimate, cards)[0]
    target = target_share * max(forward, _copied_seconds(estimate)[0])
    return micro_batches * (target + sum(_pass_seconds(job, step, estimate, cards))) + optimizer


def step_timeline(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, card: Card | Sequence[Card], *, micro_batches: int
) -> Timeline:
    """Returns when the cards of a process work in the passes of a step: those of a split by the event model; one card,
    or the first of the cards that share out tokens, one pass after the other."""
    count = len(job.placement.devices)
    cards = [card] * max(count, job.cards) if isinstance(card, Card) else card
    if count > 1:
        split = split_step(job, step, estimate, cards, micro_batches, _pageable_share(estimate))
        return split.timeline(at_once=not estimate.measures.in_turn)
    cost = StageCost(*_pass_seconds(job, step, estimate, cards))
    return replay(in_turn([0], micro_batches), [cost])


def _computing_seconds(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, cards: Sequence[Card]
) -> tuple[float, float]:
    """Returns the seconds in which one card, or the cards that share out the tokens, compute the forward and the
    backward pass of a micro-batch."""
    kinds = {(job.on_card(step, number), card): number for number, card in enumerate(cards)}
    works = [work_of_passes(job, step, estimate, number) for number in kinds.values()]
    of_each = [card for _, card in kinds]
    forward, backward = zip(*works, strict=True)
    return seconds_together(forward, of_each), seconds_together(backward, of_each)


def _pass_seconds(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, cards: Sequence[Card]
) -> tuple[float, float]:
    """Returns the seconds of the forward and of the backward pass of a micro-batch on such cards, with all copies."""
    forward, backward = _computing_seconds(job, step, estimate, cards)
    weights, kept = _copied_seconds(estimate)
    blocked = _pageable_share(estimate) * (sum(estimate.streamed.values()) + estimate.inputs) / PAGEABLE_COPIES
    there, back = (sent / LINK for sent in exchanged_bytes(job, step))
    return max(forward + there, weights, kept) + blocked, max(backward + back, weights + kept) + blocked


def _copied_seconds(estimate: MemoryEstimate) -> tuple[float, float]:
    """Returns the seconds in which page-locked weights, and kept inputs, are copied once."""
    locked = 1 - _pageable_share(estimate)
    return sum(estimate.streamed.values()) * locked / COPIES, estimate.inputs * locked / COPIES


def exchanged_bytes(job: JobShape, step: StepShape) -> tuple[int, int]:
    """Returns what a card sends to the others that share out the tokens, in a forward and in a backward pass; of parts
    of different sizes, the card that sends most."""
    tokens = job.tokens(step)
    layers = [*tokens, *(tokens[layer] for layer in job.shape.vace_layers)]
    # VACE's second stream has gradients only of adapters in it or before it.
    walked = tokens if all(name.startswith("blocks.") for name in job.adapter_values) else layers
    again = sum(walked) - sum(tokens[len(tokens) - job.recomputing.unchecked :]) if job.recomputing.blocks else 0
    if job.exchange == "ring" and "attn_output" in job.recomputing.policy.names:
        again = 0  # it keeps what the ring returns
    size, clips = job.numerics.compute.itemsize, step.batch_size
    there, back = (
        sent_bytes(job.exchange, job.cards, [clips * one for one in some], clips * again, job.shape.dim, size)
        for some in (layers, walked)
    )
    parts, every = job.shares or (1,) * job.cards, sum(job.shares) or job.cards
    most = max(part * (every - part) for part in parts) / every**2
    uneven = most * job.cards**2 / max(1, job.cards - 1)
    # All tokens go to the layers of a further route, and the routed ones back; so do their gradients.
    width = clips * job.shape.dim * job.numerics.residual.itemsize * (1 + bool(job.shape.vace_layers))
    regrouped = sum(step.tokens + step.latent_frames * route.kept(step.in_frame) for route in job.routes[1:])
    moved = width * regrouped * (job.cards - 1) * max(parts) // every
    return round(uneven * there[0]) + moved, round(uneven * back[1]) + moved


def _pageable_share(estimate: MemoryEstimate) -> float:
    """Returns the share of offloaded bytes that the system is known not to page-lock."""
    limit = lockable_bytes()
    return 0.0 if limit is None or not estimate.pinned else max(0.0, 1 - limit / estimate.pinned)


def step_work(job: JobShape, step: StepShape, estimate: MemoryEstimate, micro_batches: int) -> CardCost:
    """Returns the work of an optimizer step of `micro_batches`."""
    forward, backward = work_of_passes(job, step, estimate)
    return forward.plus(backward).times(micro_batches).plus(_optimizer(job))


def _optimizer(job: JobShape) -> CardCost:
    moved = sum(job.adapter_values.values()) * _OPTIMIZER_BYTES
    return CardCost(0, moved, 0, moved)


def work_of_passes(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, number: int = 0
) -> tuple[CardCost, CardCost]:
    """Returns the work of the forward and of the backward pass of a micro-batch; `number`: of the card, where several
    share out the tokens."""
    size, layers = job.on_card(step, number), job.shape.num_layers
    shares = [tokens / step.tokens for tokens in job.tokens(step)]
    kinds = Counter((like, shares[layer], job.walks(layer)) for layer, like in enumerate(job.layouts))
    passes = [CardCost(0, 0, 0, 0), CardCost(0, 0, 0, 0)]
    for (like, share, walked), count in kinds.items():
        work = step_traffic(
            job.shape,
            job.numerics,
            size,
            job.as_block(job.as_loaded or job.adapt, like),
            recomputing=job.recomputing,
            chunk_tokens=estimate.measures.chunk_tokens,
            dequantize_once=estimate.measures.dequantize_once,
        )
        # As many layers of the model's as are like this one.
        for way, part in enumerate((work.forward, work.backward)[: 1 + walked]):
            passes[way] = passes[way].plus(work_of(part).of_some(share).times(count / layers))
    return passes[0], passes[1]


def step_tflops(
    job: JobShape,
    step: StepShape,
    estimate: MemoryEstimate,
    card: Card | Sequence[Card],
    *,
    micro_batches: int = 1,
    target_share: float = 0.0,
) -> float:
    """Returns the useful arithmetic per second, in 10^12, that `step_seconds` takes a step to reach."""
    flops = step_flops(job, step)
    seconds = step_seconds(job, step, estimate, card, micro_batches=micro_batches, target_share=target_share)
    return micro_batches * (flops.useful + target_share * flops.base) / seconds / 1e12


def step_flops(job: JobShape, step: StepShape) -> StepFlops:
    """Returns the operations of a micro-batch."""
    latent = (
        step.batch_size,
        job.shape.out_channels,
        step.latent_frames,
        step.latent_height,
        step.latent_width,
    )
    image_rows = (job.shape.image_positions or 257) if job.shape.image_dim else 0
    count = _counted(job.shape, job.numerics, job.adapt)
    return count.of(
        torch.Size(latent),
        time_rows=1,
        image_rows=image_rows,
        text_rows=step.text_rows,
        routes=job.routes,
        context_tokens=step.context_tokens,
    )


@lru_cache(maxsize=4)
def _counted(shape: WanShape, numerics: Numerics, adapt: Callable[[nn.Module], None]) -> FlopCount:
    """Returns what counts the operations of such a model, for clips of any size."""
    with torch.device("meta"):
        model = WanTransformer(shape, numerics)
    model.requires_grad_(False)
    adapt(model)
    return FlopCount(model)
