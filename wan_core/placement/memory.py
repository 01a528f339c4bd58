"""Predicts the memory of a job on each device and in the host, phase by phase, before any weight is loaded.

Weights, adapters and optimizer state are counted. Activations come from a trace of the model's own code (`trace.py`)
with the checkpointing and the measures of the job, which takes a few seconds for 14B.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import ConfigError
from ..model import WanShape, refuse_driven
from ..model.conditioning import WHOLE_CONTEXT
from ..model.parts import check_shared_out
from .estimate import DeviceMemory, MemoryEstimate
from .job_shape import JobShape
from .measures import MemoryMeasures, running_order, swapped_blocks
from .routed import Layer, traced_routed
from .short_model import StepShape
from .trace import How, StepTrace, Unpacking, traced_step, traced_watching

_WEIGHT_BYTES = 4
"""bytes of each adapter value, float32"""
_GRADIENT_BYTES = 4
"""bytes of each gradient value, during a step"""
_STEP_BYTES = 8
"""bytes for each adapter value of AdamW's temporary tensors; other optimizers need at most as many"""
_LEAVING = 2
"""number of token streams that are being copied to another card, if cards work at once"""
_RING_BUFFERS = 2
"""number of swapped blocks on a device at one time: the block that runs and the next"""


def estimate_memory(
    job: JobShape,
    step: StepShape,
    *,
    measures: MemoryMeasures | None = None,
    preview: StepShape | None = None,
    beside_preview: int = 0,
    card: int = 0,
) -> MemoryEstimate:
    """Returns the predicted memory of a job with `step` as its largest micro-batch.

    `preview`: the largest preview; None without previews. `beside_preview`: further bytes on the first device during a
    preview. `card`: if cards split tokens, the card whose part the first device computes. Raises ConfigError for a
    model that cannot have such a placement or routes.
    """
    measures = measures or MemoryMeasures()
    weights = _Weights.of(job, measures)
    adapters = Counter[str]()
    for linear, values in job.adapter_values.items():
        adapters[str(job.placement.device_of(linear))] += values
    step = job.on_card(step, card)
    if job.others:
        refuse_driven(job.shape, "Splitting tokens", "Split blocks instead")
        check_shared_out(step.in_frame, job.cards)
    if step.context and (job.cards > 1 or job.routes):
        raise ConfigError(WHOLE_CONTEXT)
    offloaded = measures.offload_inputs and job.recomputing.blocks
    unpacking = Unpacking(widest_bytes=job.unpacking_bytes, once=measures.dequantize_once)
    tokens = job.tokens(step)
    devices: dict[str, DeviceMemory] = {}
    inputs = kept_in_host = 0
    at_once = job.under_way if not measures.in_turn else ()
    for number, device in enumerate(job.placement.devices):
        name, mine = str(device), [layer for layer, d in enumerate(job.placement.block_devices) if d == device]
        # VACE's second stream stays on the first device.
        shape = job.shape if device == job.placement.first else replace(job.shape, vace_layers=())
        recomputing = replace(job.recomputing, unchecked=job.unchecked_on(device))
        how = How(recomputing, offloaded, unpacking, measures.chunk_tokens)
        trace = _traced(job, step, shape, mine, how)
        watched = {"evaluate": step, **({} if preview is None else {"preview": preview})}
        watching = {kind: traced_watching(job.shape, job.numerics, size, how) for kind, size in watched.items()}
        if "preview" in watching:
            watching["preview"] += beside_preview
        one_more = trace.kept - trace.before + _passing(job, step) + _constants_bytes(job, step)
        if device != job.placement.first:
            trace, watching = _without_ends(job, step, trace, head=device == job.placement.last), {}
        count = at_once[number] if at_once else 1.0
        # Streams that leave the card stay in memory until they are copied (parallel/handover.py).
        waiting = int((count - 1) * one_more) + (_LEAVING * _passing(job, step) if at_once else 0)
        tuners = job.tuners_on(device)
        weights.on_device[name] += tuners.fixed
        watching = {kind: value + tuners.passing for kind, value in watching.items()}
        trained = int(adapters[name] * (_WEIGHT_BYTES + _GRADIENT_BYTES + job.optimizer_bytes))
        loaded = weights.on_device[name] + trained
        between = loaded - adapters[name] * _GRADIENT_BYTES
        stepping = 0 if job.optimizer_host_bytes else adapters[name] * _STEP_BYTES
        step_bytes = max(trace.step + waiting + tuners.kept + tuners.passing, stepping + trace.before)
        devices[name] = DeviceMemory(
            weights=weights.on_device[name],
            adapters=trained,
            kept=trace.kept + waiting,
            phases={
                "load": weights.on_device[name] + adapters[name] * _WEIGHT_BYTES,
                "step": loaded + step_bytes,
                **{kind: between + value for kind, value in watching.items()},
                "save": between,
            },
        )
        if offloaded and job.recomputing.policy.offloaded:
            of_one = sum(step.parts) * trace.host // step.parts[step.card]
        elif offloaded:
            checked = mine[: len(mine) - job.unchecked_on(device)]
            layers = [*filter(job.walks, checked), *shape.vace_layers]
            of_one = sum(tokens[layer] for layer in layers) * _passing(job, step) // step.tokens
        else:
            of_one = 0
        inputs += of_one
        kept_in_host += int(count * of_one)
    for number, device in enumerate(job.others, start=1):
        first = devices[str(job.placement.first)]
        if job.shares:  # counted as if the first device computed that part
            of_part = estimate_memory(replace(job, others=()), step, measures=measures, card=number)
            first = of_part.devices[str(job.placement.first)]
        devices[str(device)] = _beside_first(first, sum(adapters.values()))
    own = sum(weights.swapped.values()) - weights.together
    pinned = job.cards * own + -(-weights.together // job.sharers) + kept_in_host
    away = job.optimizer_host_bytes
    held = job.optimizer_bytes + max(0.0, away - _WEIGHT_BYTES - _GRADIENT_BYTES)
    return MemoryEstimate(
        measures=measures,
        devices=devices,
        pinned=pinned,
        # A save copies the adapters and the optimizer state.
        host=pinned + weights.on_host + int((_WEIGHT_BYTES + held + away) * sum(adapters.values())),
        inputs=inputs,
        streamed=dict(weights.swapped),
    )


def _beside_first(first: DeviceMemory, adapter_values: int) -> DeviceMemory:
    """Returns the memory of a further device of split tokens, which has no optimizer and no previews."""
    adapters = adapter_values * (_WEIGHT_BYTES + _GRADIENT_BYTES)
    between = first.weights + adapter_values * _WEIGHT_BYTES
    step = first.weights + adapters + first.step - first.weights - first.adapters
    watching = first.phases["evaluate"] - first.phases["save"]
    phases = {"load": between, "step": step, "evaluate": between + watching, "save": between}
    return DeviceMemory(weights=first.weights, adapters=adapters, kept=first.kept, phases=phases)


def _traced(job: JobShape, step: StepShape, shape: WanShape, layers: Sequence[int], how: How) -> StepTrace:
    """Returns the trace of a device with these layers of the main stream, and the second stream of `shape`."""
    of_step, tokens = (shape, job.numerics, step), job.tokens(step)
    different = [Layer(tokens[layer], job.as_block(job.adapt, layer), job.walks(layer)) for layer in layers]
    if not job.routes and len(set(different)) == 1 and different[0].walked:
        return traced_step(*of_step, different[0].adapt, len(layers), how)
    return traced_routed(*of_step, different, control=[tokens[layer] for layer in shape.vace_layers], how=how)


def _passing(job: JobShape, step: StepShape) -> int:
    return step.batch_size * step.tokens * job.shape.dim * job.numerics.residual.itemsize


def _without_ends(job: JobShape, step: StepShape, trace: StepTrace, *, head: bool) -> StepTrace:
    """Returns the part of `trace` on a later device of split blocks: blocks, constants and incoming tokens; with `head`
    also the head."""
    here = _passing(job, step) + _constants_bytes(job, step)
    less = trace.before - here
    return StepTrace(
        before=here,
        kept=trace.kept - less,
        embed=here,
        forward=trace.forward - less,
        head=trace.head - less if head else here,
        backward=trace.backward - less,
        host=trace.host,
    )


def _constants_bytes(job: JobShape, step: StepShape) -> int:
    shape, numerics = job.shape, job.numerics
    rows = step.text_rows + ((shape.image_positions or 257) if shape.image_dim else 0)
    rope = step.tokens * (shape.dim // shape.num_heads) * numerics.rope.itemsize
    text = step.batch_size * rows * shape.dim * numerics.compute.itemsize
    return rope + text + step.batch_size * 6 * shape.dim * numerics.modulation.itemsize


class _Weights(NamedTuple):
    on_device: Counter[str]
    """by device, the CPU included"""
    on_host: int
    """temporary host memory of loading"""
    swapped: Counter[str]
    """pinned host memory of swapped blocks, by the device that runs them"""
    together: int
    """the part of `swapped` that processes of one machine may share: weights of linears (streaming.py)"""

    @classmethod
    def of(cls, job: JobShape, measures: MemoryMeasures) -> _Weights:
        order = running_order(job.shape.num_layers, job.shape.vace_layers)
        away = set(swapped_blocks(order, measures.blocks_to_swap))
        on_device, together = Counter[str](), 0
        # Device -> bytes by block.
        blocks, gathered = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
        for device, block, size, of_a_linear in job.base_weights:
            if block in away:
                blocks[device][block] += size
                together += size * of_a_linear
            elif block and job.sharders > 1:
                on_device[device] += -(-size // job.sharders)
                gathered[device][block] += size
            else:
                on_device[device] += size
        for device, sizes in gathered.items():  # Gathered weights of the current block and of the next one.
            on_device[device] += sum(sorted(sizes.values())[-2:])
        for device, sizes in blocks.items():
            on_device[device] += max(sizes.values()) * min(_RING_BUFFERS, len(sizes))
        swapped = Counter({device: sizes.total() for device, sizes in blocks.items()})
        return cls(on_device, 4 * job.largest_values, swapped, together)
