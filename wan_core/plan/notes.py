"""Notes of a plan besides memory and time: on cards, token routes, and 8-bit weights that are not needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from ..footprint import weights_once_loaded
from ..job.remarks import notes_on_cards, remarks_on_cards, routes_remark, turns_remark
from ..parallel.pipeline import stages_of
from ..placement import EXPERT_PER_GPU, JobShape, MemoryMeasures
from ..placement.config import INTERLEAVED
from ..placement.plan import BESIDE_BLOCKS_GIB, split_blocks
from ..train import UNKNOWN_CLASS
from .cards import Card
from .modes import reason
from .planning import MemoryPlan
from .split_time import split_step
from .step_time import step_flops, step_seconds
from .workload import Workload

_BARS = "▁▂▃▄▅▆▇█"
_MANY_TOKENS = 30_000
"""tokens of a clip from which token routes are advised: at 29,200 tokens, attention has as many FLOP as all linears in
the forward pass of a 14B layer; 832x480x81 has 32,760"""
_WORTH_A_ROUTE = 0.05
"""share of a step's time that a token route must save to be advised, because a LoRA learns less with it"""
_TRIED_MICRO_BATCHES = 4
_WORTH_INTERLEAVING = 0.05
"""least further gain of interleaving, in the unit of `SplitStep.gain`, from which it is advised"""
_TRIED_ROUTE = "0.25: 2..-2"
"""route with the least loss of learning in docs/measured/token_routes.md"""


@dataclass(frozen=True)
class Routed:
    """The token routes of a job: tokens of each layer, and the arithmetic and time that they save."""

    kept: tuple[float, ...]
    """for each layer, the share of the tokens that it computes"""
    flops_saved: float
    """saved share of a step's FLOP, with recomputation"""
    time_saved: float | None
    """saved share of a step's predicted time; None for an unknown card"""

    def drawn(self) -> str:
        """Returns a bar of text for each layer, as high as its share in `kept`."""
        return "".join(_BARS[round(share * (len(_BARS) - 1))] for share in self.kept)

    def sentence(self, tokens: int) -> str:
        """Returns the layers with their share of `tokens`, and the savings of a step."""
        parts: list[str] = []
        first = 0
        for share, same in groupby(self.kept):
            last = first + len(list(same)) - 1
            layers = f"layer {first}" if last == first else f"layers {first} to {last}"
            if share < 1:
                parts.append(f"{layers} see {100 * share:.0f} %")
            first = last + 1
        saved = f"A step has {100 * self.flops_saved:.0f} % less arithmetic"
        if self.time_saved is not None:
            saved += f", and is predicted {100 * self.time_saved:.0f} % shorter"
        return f"Token routes: {', '.join(parts)} of {tokens:,} tokens. {saved}."


def routed_of(plan: MemoryPlan, card: Card | None) -> Routed | None:
    """Returns the token routes of a plan, with the time they save on `card`; None if no token skips a layer."""
    if not plan.job.train.routes:
        return None
    job, shape = plan.job, plan.job.shape()
    tokens = shape.tokens(job.step)
    if min(tokens) == job.step.tokens:
        return None
    plain = replace(shape, routes=())
    with_it, without = (
        counted.useful + (counted.recomputed if shape.recomputing.blocks else 0)
        for counted in (step_flops(one, job.step) for one in (shape, plain))
    )
    time = None
    if card is not None:
        routed, full = (step_seconds(one, job.step, plan.estimate, card, micro_batches=1) for one in (shape, plain))
        time = round(1 - routed / full, 3)
    kept = tuple(round(one / job.step.tokens, 3) for one in tokens)
    return Routed(kept, round(1 - with_it / without, 3), time)


def notes_of(plan: MemoryPlan, routed: Routed | None, card: Card | None = None) -> list[str]:
    """Returns notes on mode, cards, previews, optimizer, split blocks, context, token routes and 8-bit weights.

    `card`: the first card, if it is known.
    """
    job, compute = plan.job, plan.job.file.compute_dtype
    said = [reason(job.model.placement), *remarks_on_cards(job.model, compute), *notes_on_cards(job.model, compute)]
    if job.model.placement.mode == EXPERT_PER_GPU:
        said.append(turns_remark(job.lora))
    said += job.preview_remarks
    if job.train.optimizer == "custom":
        said.append(UNKNOWN_CLASS)
    if card is not None:
        said.append(at_once(plan, card))
    if job.step.context and job.file.variant.family.context:
        said.append(
            f"The clips have context streams, {job.step.context_tokens:,} of {job.step.tokens:,} tokens: the model is "
            "trained as Bernini-R."
        )
    if routed is not None:
        said += [routed.sentence(job.step.tokens), _routes_advice(routed, job.step.tokens), routes_remark(job.train)]
    if quantized_for_nothing(plan):
        said.append(
            "8-bit weights are not needed here: the training also fits without Fp8 / Int8 Quantize and without "
            "offloading, and is then more exact."
        )
    return [one for one in said if one]


def at_once(plan: MemoryPlan, card: Card) -> str:
    """Returns a sentence on the speed of split blocks whose cards work at once on several micro-batches; "" for plans
    without split blocks."""
    shape = plan.job.shape()
    ids = shape.placement.devices
    if len(ids) < 2:
        return ""
    cards, count = plan.cards(card), plan.job.train.gradient_accumulation_steps
    of_each = [cards] * len(ids) if isinstance(cards, Card) else cards

    def gain(micro_batches: int, job: JobShape = shape) -> float:
        return split_step(job, plan.job.step, plan.estimate, of_each, micro_batches).gain

    words = "both cards" if len(ids) == 2 else f"the {len(ids)} cards"
    if count < 2:
        return (
            f"Accumulate 2 or more (gradient_accumulation_steps) to let {words} work at once: predicted "
            f"{gain(2):.1f}x as fast a clip with 2, {gain(_TRIED_MICRO_BATCHES):.1f}x with {_TRIED_MICRO_BATCHES}."
        )
    if plan.measures.in_turn:
        return (
            f"One card works after the other, so that it fits; with more memory {words} would work at once: predicted "
            f"{gain(count):.1f}x."
        )
    said, now = (
        f"{words.capitalize()} work at once on {count} micro-batches: predicted {gain(count):.2f}x.",
        gain(count),
    )
    blocks = shape.placement.block_devices
    if len(stages_of(shape.placement)) > len(ids):
        return said
    sizes = [blocks.count(one) + BESIDE_BLOCKS_GIB for one in ids]
    other = gain(count, replace(shape, placement=split_blocks([*ids], len(blocks), INTERLEAVED, sizes)))
    return f"{said} With split_at {INTERLEAVED}: {other:.2f}x." if other > now + _WORTH_INTERLEAVING else said


def _routes_advice(routed: Routed, tokens: int) -> str:
    if routed.time_saved is not None and routed.time_saved < _WORTH_A_ROUTE:
        return "Token routes save no time worth their cost here: leave tread_routes empty."
    if tokens < _MANY_TOKENS:
        return f"They are advised from {_MANY_TOKENS:,} tokens on, where attention is half of the work of a 14B layer."
    return ""


def routes_offered(job: Workload) -> str:
    """Returns the advice to try token routes, for clips with many tokens; "" otherwise."""
    if job.train.routes or job.step.tokens < _MANY_TOKENS:
        return ""
    plain = job.shape()
    routed = replace(plain, routes=replace(job.train, tread_routes=_TRIED_ROUTE).routes)
    shares = [step_flops(one, job.step) for one in (routed, plain)]
    saved = 100 * (1 - shares[0].useful / shares[1].useful)
    return (
        f'{job.step.tokens:,} tokens a clip: tread_routes "{_TRIED_ROUTE}" takes {saved:.0f} % off the arithmetic of a '
        "step, and a LoRA learns less in it (docs/measured/token_routes.md)."
    )


def quantized_for_nothing(plan: MemoryPlan) -> bool:
    """Returns whether a job that quantizes its weights would fit without quantization and without offloading."""
    job = plan.job
    if job.model.quantize is None or job.file.quantization != "none" or not plan.room.devices:
        return False
    plain = replace(job, model=job.model.with_quantize(None))
    if weights_once_loaded(plain.model, plain.file) > sum(plan.room.devices.values()):
        return False
    if plan.gain:  # measures that only use left-over memory are not needed to fit
        train = replace(plain.train, checkpointing_policy="full", checkpointing_names_offloaded=(), unchecked_blocks=0)
        plain = replace(plain, train=train)
    return not plan.room.lacks(plain.estimate(plain.shape(), MemoryMeasures()))
