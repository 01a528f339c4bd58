"""Memory prediction of a plan from file headers: loaded weights, and the input of `estimate_memory`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from types import MappingProxyType

import torch
from torch import nn

from .checkpoint import unpacking_bytes
from .files import Roots
from .load import (
    ModelPlan,
    PackedForms,
    WanFile,
    attention_is_plain,
    check_plan_devices,
    inspect_model,
    inspect_pair,
    offloaded_bytes,
    pack_without_values,
    packed_forms,
    quantized_anew,
    stays_stored,
)
from .lora import PEFT, STARTS_IN_THE_WEIGHT, LoraConfig, check_targets, count_values, inject_lora, tuner_bytes
from .model import Numerics, Route, WanShape, model_without_values, placed_routes
from .parallel import exchange_of
from .parallel.pipeline import under_way
from .placement import EXPERT_PER_GPU, JobShape, Placement, Recomputing, TunerBytes, devices_of, resolve_placement
from .precision import matmul_bytes, multiply_in


def placements_of(plan: ModelPlan, num_blocks: int) -> tuple[Placement, ...]:
    """Returns the placement of blocks of each model copy that trains: of both experts, or of each rank or copy."""
    config = plan.placement
    pair = config.mode == EXPERT_PER_GPU and bool(plan.low_noise_file)
    count = 2 if pair else max(config.ranks, config.models)
    return tuple(resolve_placement(config, num_blocks, number) for number in range(count))


def weights_once_loaded(plan: ModelPlan, found: WanFile) -> int:
    """Returns the bytes of one copy of the loaded base weights, over all devices."""
    numerics = plan.precision.numerics(found.compute_dtype)
    return sum(offloaded_bytes(plan, found, numerics, name, p) for name, p in _parameters(found, numerics).items())


def planned_weights(plan: ModelPlan, roots: Roots) -> dict[str, int]:
    """Returns device -> bytes of all copies of the loaded base weights; for a pair, the larger expert's bytes."""
    files = inspect_pair(plan, roots) if plan.low_noise_file else (inspect_model(plan, roots),)
    planned: Counter[str] = Counter()
    for found in files:
        numerics = plan.precision.numerics(found.compute_dtype)
        parameters = _parameters(found, numerics)
        one: Counter[str] = Counter()
        for placement in placements_of(plan, found.variant.shape.num_layers):
            for name, parameter in parameters.items():
                one[str(placement.device_of(name))] += offloaded_bytes(plan, found, numerics, name, parameter)
        planned |= one
    return dict(planned)


def _parameters(found: WanFile, numerics: Numerics) -> dict[str, nn.Parameter]:
    return dict(model_without_values(found.variant.shape, numerics).named_parameters())


def job_shape(
    plan: ModelPlan,
    roots: Roots,
    lora: LoraConfig,
    *,
    recomputing: Recomputing | None = None,
    numerics: Numerics | None = None,
    found: WanFile | None = None,
    placement: Placement | None = None,
    others: tuple[torch.device, ...] = (),
    optimizer_bytes: float = 8.0,
    optimizer_host_bytes: float = 0.0,
    routes: Sequence[Route] = (),
    sharers: int = 1,
    micro_batches: int = 1,
) -> JobShape:
    """Returns the input of `estimate_memory` for a plan.

    `recomputing`: None recomputes every block. `numerics`, `placement`, `others`: override the plan's; the devices may
    be absent from this machine. `found`: the result of `inspect_model`, if known. `optimizer_bytes`,
    `optimizer_host_bytes`: optimizer state per adapter value, and its part in host memory. `routes`: layers skipped by
    a share of the tokens. `sharers`: processes of one machine that share the swapped weights. `micro_batches`: their
    number in an optimizer step.
    """
    found = found or inspect_model(plan, roots)
    shape, numerics = found.variant.shape, numerics or plan.precision.numerics(found.compute_dtype)
    if placement is None:
        placement = resolve_placement(plan.placement, shape.num_layers)
        check_plan_devices(plan, shape, numerics, found, placement)
    numerics = replace(numerics, plain_attention=attention_is_plain(plan, numerics, placement))
    if not others and plan.placement.models > 1:
        others = devices_of(plan.placement, shape.num_layers)[1:]
    parts = plan.placement.parts if plan.placement.context_parallel > 1 else 1
    own = numerics.adapter if numerics.adapter != numerics.compute else None
    return JobShape(
        shape=shape,
        numerics=numerics,
        placement=placement,
        storage_bytes=partial(offloaded_bytes, plan, found, numerics),
        adapt=_Adapt(lora, own),
        as_loaded=_Adapt(lora, own, packed_forms(plan, found), numerics.matmul),
        adapter_values=_adapter_values(shape, lora),
        tuner_bytes=_tuner_bytes(shape, lora),
        # An adapter initialised from the weight (PiSSA) keeps its initial values in float32 too.
        optimizer_bytes=optimizer_bytes + 4 * (lora.init in STARTS_IN_THE_WEIGHT),
        optimizer_host_bytes=optimizer_host_bytes,
        recomputing=recomputing or Recomputing(),
        unpacking_bytes=_largest_temporary(plan, found, numerics),
        routes=placed_routes(routes, shape.num_layers),
        others=others,
        shares=plan.placement.shares if others else (),
        sharers=sharers,
        under_way=under_way(placement, micro_batches),
        sharders=plan.placement.sharders if plan.placement.shards > 1 else 1,
        parts=parts,
        exchange=exchange_of(plan.placement.context_exchange, shape.num_heads, parts),
    )


@lru_cache(maxsize=32)
def _adapter_values(shape: WanShape, lora: LoraConfig) -> Mapping[str, int]:
    """Returns layer -> number of adapter values; cached, because planning a job needs them dozens of times."""
    return MappingProxyType(count_values(model_without_values(shape), lora))


@lru_cache(maxsize=32)
def _tuner_bytes(shape: WanShape, lora: LoraConfig) -> Mapping[str, TunerBytes]:
    linears = check_targets(model_without_values(shape), lora) if lora.kind == PEFT else {}
    return {name: tuner_bytes(lora, one.in_features, one.out_features) for name, one in linears.items()}


@dataclass(frozen=True)
class _Adapt:
    """Quantizes the weights of a model without values, or of some of its blocks, and injects a run's adapters."""

    lora: LoraConfig
    dtype: torch.dtype | None
    packed: PackedForms = ()
    matmul: torch.dtype | None = None

    def __call__(self, model: nn.Module) -> None:
        pack_without_values(model, self.packed)
        multiply_in(model, self.matmul)
        inject_lora(model, self.lora.planned, seed=0, dtype=self.dtype)


def _largest_temporary(plan: ModelPlan, found: WanFile, numerics: Numerics) -> int:
    """Returns the bytes of the largest temporary tensors of a quantized linear; 0 if no linear is quantized."""
    most = 0
    for name, weight in found.weights.items():
        anew, values = quantized_anew(plan, name, weight), prod(weight.shape)
        layout = plan.quantize.layout if anew and plan.quantize is not None else weight.layout
        if anew or stays_stored(plan, name, weight):
            most = max(most, unpacking_bytes(values, found.compute_dtype, layout))
            most = max(most, matmul_bytes(values) if numerics.matmul is not None else 0)
    return most
