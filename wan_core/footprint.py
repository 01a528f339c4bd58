"""The memory a plan takes, from headers alone: weights at rest, and the peak of a training step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from .checkpoint import unpacking_bytes
from .files import Roots
from .load import (
    ModelPlan,
    WanFile,
    check_plan_attention,
    inspect_model,
    inspect_pair,
    quantized_anew,
    resting_bytes,
    stays_stored,
)
from .lora import LoraConfig, inject_lora
from .model import Numerics, WanTransformer
from .placement import MemoryEstimate, Placement, estimate_memory, resolve_placement
from .placement.memory import StepShape

__all__ = ["placements_of", "planned_weights", "predict_memory", "weights_once_loaded"]


def placements_of(plan: ModelPlan, num_blocks: int) -> tuple[Placement, ...]:
    """Returns where the blocks go: one placement for each process that trains."""
    return tuple(resolve_placement(plan.placement, num_blocks, rank) for rank in range(plan.placement.ranks))


def weights_once_loaded(plan: ModelPlan, found: WanFile) -> int:
    """Returns the bytes one copy of the base weights takes in memory, on all its devices together."""
    numerics = plan.precision.numerics(found.compute_dtype)
    return sum(resting_bytes(plan, found, numerics, name, p) for name, p in _parameters(found, numerics).items())


def planned_weights(plan: ModelPlan, roots: Roots) -> dict[str, int]:
    """Returns the bytes the base weights of all copies take on each device once loaded, from the headers alone.

    Of a pair the larger expert counts: a run trains one of them.
    """
    files = inspect_pair(plan, roots) if plan.low_noise_file else (inspect_model(plan, roots),)
    planned: Counter[str] = Counter()
    for found in files:
        numerics = plan.precision.numerics(found.compute_dtype)
        parameters = _parameters(found, numerics)
        one: Counter[str] = Counter()
        for placement in placements_of(plan, found.variant.shape.num_layers):
            for name, parameter in parameters.items():
                one[str(placement.device_of(name))] += resting_bytes(plan, found, numerics, name, parameter)
        planned |= one
    return dict(planned)


def _parameters(found: WanFile, numerics: Numerics) -> dict[str, nn.Parameter]:
    with torch.device("meta"):
        return dict(WanTransformer(found.variant.shape, numerics).named_parameters())


def predict_memory(
    plan: ModelPlan,
    roots: Roots,
    lora: LoraConfig,
    step: StepShape,
    *,
    checkpoint_blocks: bool,
    numerics: Numerics | None = None,
    found: WanFile | None = None,
) -> MemoryEstimate:
    """Returns the peak memory of a training step of this plan, from the header alone.

    `numerics`: instead of the plan's own. `found`: what `inspect_model` found, where it was asked already.
    """
    found = found or inspect_model(plan, roots)
    numerics = numerics or plan.precision.numerics(found.compute_dtype)
    placement = resolve_placement(plan.placement, found.variant.shape.num_layers)
    check_plan_attention(plan, found.variant.shape, numerics, placement)

    def storage_bytes(name: str, parameter: Tensor) -> int:
        return resting_bytes(plan, found, numerics, name, parameter)

    return estimate_memory(
        found.variant.shape,
        numerics,
        placement,
        step,
        storage_bytes=storage_bytes,
        adapt=_Adapt(lora, numerics.adapter if numerics.adapter != numerics.compute else None),
        checkpoint_blocks=checkpoint_blocks,
        unpacking_bytes=_widest_unpacking(plan, found),
    )


@dataclass(frozen=True)
class _Adapt:
    """Injects the adapters of a run into blocks without values."""

    lora: LoraConfig
    dtype: torch.dtype | None

    def __call__(self, holder: nn.Module) -> None:
        inject_lora(holder, self.lora, seed=0, dtype=self.dtype)


def _widest_unpacking(plan: ModelPlan, found: WanFile) -> int:
    """Returns the most memory a linear takes beside its packed weight while it runs; 0 where none is packed."""
    return max(
        (
            unpacking_bytes(prod(weight.shape), found.compute_dtype, "" if anew else weight.layout)
            for name, weight in found.weights.items()
            if (anew := quantized_anew(plan, name, weight)) or stays_stored(plan, name, weight)
        ),
        default=0,
    )
