"""The time of an optimizer step, from its FLOP, bytes, kernels, and copies from host memory.

    card    = max(FLOP / flops_per_s + bytes / bytes_per_s + kernels * kernel_s, kernels * host_s)
              + bytes to other cards / LINK
    forward  = max(card of forward, copies to host, copies to the card)
    backward = max(card of backward, copies of both)
    step     = micro-batches * (forward + backward) + optimizer

Kernels of one card run one after the other, so their times are summed: FLOP of matrix products and attention, bytes of
all other kernels (`placement/counting.py`), and the start of each kernel. Copies run on streams of their own and count
where they take longer than the card; a card waits for copies of host memory that is not pinned.

Assumptions: the constants of a card and of its host (`cards.py`); `COPIES` for every machine; every FLOP, byte and
kernel takes the mean time of its kind; in a pass, either the host is always ahead of the card, or the card always waits
for it. Cards that split the tokens of a clip wait for their exchange, in both directions at once, and around attention
for the slowest card. A layer with fewer tokens (TREAD) takes that share of a full layer's time. A model split over
cards has its own sum (`split_time.py`).
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
from ..placement import JobShape, MemoryEstimate, StepShape
from ..train import FlopCount, StepFlops
from .cards import Card, CardCost
from .split_time import COPIES, PAGEABLE_COPIES, pageable_share, passes_of, seconds_together, split_step

LINK = 10e9
"""bytes/s between two GeForce cards, each way; their copies go through host memory (25e9 with peer access)"""
_OPTIMIZER_BYTES = 36
"""bytes for each adapter value: read weight, gradient and two moments; write weight and moments; read the gradient
again for its norm, and write it for clipping"""


def step_seconds(
    job: JobShape,
    step: StepShape,
    estimate: MemoryEstimate,
    card: Card | Sequence[Card],
    *,
    micro_batches: int,
    target_share: float = 0.0,
) -> float:
    """Returns the seconds of an optimizer step of `micro_batches`.

    `card`: one card, or the card of each device for split blocks and split tokens. `target_share`: forward passes
    without gradients per micro-batch, for targets.
    """
    count = len(job.placement.devices)
    cards = [card] * max(count, job.cards) if isinstance(card, Card) else card
    slowest = min(cards, key=lambda one: one.bytes_per_s)
    optimizer = _optimizer(job).seconds(slowest)
    if count > 1:
        split = split_step(job, step, estimate, cards, micro_batches)
        base = target_share * sum(cost.forward_s for cost in split.costs) * micro_batches / split.gain
        passes = split.timeline(at_once=not estimate.measures.in_turn).seconds
        return passes + base + optimizer / count
    forward = _computing_seconds(job, step, estimate, cards)[0]
    target = target_share * max(forward, _copied_seconds(estimate)[0])
    return micro_batches * (target + sum(_pass_seconds(job, step, estimate, cards))) + optimizer


def step_timeline(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, card: Card | Sequence[Card], *, micro_batches: int
) -> Timeline:
    """Returns the timeline of each card in the passes of a step, from the event model for split blocks. Cards that
    split tokens work alike, so there is one timeline for them."""
    count = len(job.placement.devices)
    cards = [card] * max(count, job.cards) if isinstance(card, Card) else card
    if count > 1:
        split = split_step(job, step, estimate, cards, micro_batches)
        return split.timeline(at_once=not estimate.measures.in_turn)
    cost = StageCost(*_pass_seconds(job, step, estimate, cards))
    return replay(in_turn([0], micro_batches), [cost])


def _computing_seconds(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, cards: Sequence[Card]
) -> tuple[float, float]:
    """Returns the computing seconds of the forward and the backward pass of a micro-batch, on one card or on the cards
    that split its tokens."""
    kinds = {(job.on_card(step, number), card): number for number, card in enumerate(cards)}
    works = [work_of_passes(job, step, estimate, number) for number in kinds.values()]
    of_each = [card for _, card in kinds]
    forward, backward = zip(*works, strict=True)
    return seconds_together(forward, of_each), seconds_together(backward, of_each)


def _pass_seconds(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, cards: Sequence[Card]
) -> tuple[float, float]:
    forward, backward = _computing_seconds(job, step, estimate, cards)
    weights, kept = _copied_seconds(estimate)
    blocked = pageable_share(estimate) * (sum(estimate.streamed.values()) + estimate.inputs) / PAGEABLE_COPIES
    there, back = (sent / LINK for sent in exchanged_bytes(job, step))
    return max(forward + there, weights, kept) + blocked, max(backward + back, weights + kept) + blocked


def _copied_seconds(estimate: MemoryEstimate) -> tuple[float, float]:
    """Returns the seconds of one copy of the pinned weights, and of one copy of the offloaded inputs."""
    locked = 1 - pageable_share(estimate)
    return sum(estimate.streamed.values()) * locked / COPIES, estimate.inputs * locked / COPIES


def exchanged_bytes(job: JobShape, step: StepShape) -> tuple[int, int]:
    """Returns the bytes that a card sends to others in the forward and in the backward pass, if cards split tokens.

    With parts of different sizes, these are the bytes of the card that sends most.
    """
    tokens = job.tokens(step)
    layers = [*tokens, *(tokens[layer] for layer in job.shape.vace_layers)]
    # VACE's second stream has a backward pass only for adapters in it or before it.
    walked = tokens if all(name.startswith("blocks.") for name in job.adapter_values) else layers
    again = sum(walked) - sum(tokens[len(tokens) - job.recomputing.unchecked :]) if job.recomputing.blocks else 0
    if job.exchange == "ring" and "attn_output" in job.recomputing.policy.names:
        again = 0  # the ring's output is kept
    size, clips = job.numerics.compute.itemsize, step.batch_size
    there, back = (
        sent_bytes(job.exchange, job.cards, [clips * one for one in some], clips * again, job.shape.dim, size)
        for some in (layers, walked)
    )
    parts, every = job.shares or (1,) * job.cards, sum(job.shares) or job.cards
    most = max(part * (every - part) for part in parts) / every**2
    uneven = most * job.cards**2 / max(1, job.cards - 1)
    # Before a further route all tokens are exchanged, and after it the routed tokens; gradients likewise.
    width = clips * job.shape.dim * job.numerics.residual.itemsize * (1 + bool(job.shape.vace_layers))
    regrouped = sum(step.tokens + step.latent_frames * route.kept(step.in_frame) for route in job.routes[1:])
    moved = width * regrouped * (job.cards - 1) * max(parts) // every
    return round(uneven * there[0]) + moved, round(uneven * back[1]) + moved


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
    """Returns the work of the forward and the backward pass of a micro-batch. `number`: index of the card, where
    several split the tokens."""
    size, layers = job.on_card(step, number), job.shape.num_layers
    shares = [tokens / step.tokens for tokens in job.tokens(step)]
    kinds = Counter((like, shares[layer], job.walks(layer)) for layer, like in enumerate(job.layouts))
    passes = [CardCost(0, 0, 0, 0), CardCost(0, 0, 0, 0)]
    for (like, share, walked), count in kinds.items():
        work = passes_of(job, size, estimate, job.as_block(job.as_loaded or job.adapt, like))
        # `work` assumes that all layers are of this kind; the model has `count` such layers.
        for way, part in enumerate(work[: 1 + walked]):
            passes[way] = passes[way].plus(part.of_some(share).times(count / layers))
    return passes[0], passes[1]


def step_flops(job: JobShape, step: StepShape) -> StepFlops:
    """Returns the FLOP of a micro-batch."""
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
    with torch.device("meta"):
        model = WanTransformer(shape, numerics)
    model.requires_grad_(False)
    adapt(model)
    return FlopCount(model)
