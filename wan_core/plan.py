"""What a run will need, before anything is loaded: memory per device, disk, and whether it fits."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .data import LatentCache
from .files import Roots
from .load import ModelPlan, check_plan_attention, inspect_model, inspect_pair, resting_bytes, stays_stored
from .lora import LoraConfig, inject_lora
from .model import Numerics, WanTransformer
from .placement import MemoryEstimate, Placement, estimate_memory, resolve_placement
from .placement.memory import StepShape
from .run import RunConfig, read_run

__all__ = ["placements_of", "plan_run", "planned_weights", "predict_memory", "total_bytes"]


def plan_run(directory: Path, roots: Roots) -> dict[str, Any]:
    """The report of `wan_core plan`: variant, largest micro-batch, predicted peak and total per device, verdict."""
    config = read_run(directory)
    found = inspect_model(config.model, roots)
    step = _largest_step(config, roots)
    estimate = predict_memory(
        config.model, roots, config.lora, step, checkpoint_blocks=config.train.gradient_checkpointing
    )
    devices = estimate.to_dict()
    for name, needs in devices.items():
        needs["total_bytes"] = total_bytes(torch.device(name))
    adapters = sum(m.adapters for m in estimate.devices.values())
    # 16 bytes per value in memory; on disk 12 for the state and 2 to 4 for the LoRA file.
    save_bytes = adapters
    saves = -(-config.train.steps // config.train.save_every_n_steps)
    free = shutil.disk_usage(directory).free
    return {
        "version": 1,
        "run_name": config.run_name,
        "variant": found.variant.name,
        "compute_dtype": str(found.compute_dtype).removeprefix("torch."),
        "tokens": step.tokens,
        "devices": devices,
        "disk": {"save_bytes": save_bytes, "all_saves_bytes": saves * save_bytes, "free_bytes": free},
        "fits": all(d["peak_bytes"] <= d["total_bytes"] for d in devices.values()) and save_bytes <= free,
    }


def _largest_step(config: RunConfig, roots: Roots) -> StepShape:
    cache_set = LatentCache(roots.first("cache")).read_set(config.data.fingerprint)
    _, frames, height, width = max(
        (cache_set.latent_shape(item) for item in cache_set.items), key=lambda s: s[1] * s[2] * s[3]
    )
    return StepShape(batch_size=config.train.batch_size, latent_frames=frames, latent_height=height, latent_width=width)


def total_bytes(device: torch.device) -> int:
    """Memory of a device; of the host for the CPU, and without limit where psutil is missing."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        import psutil
    except ImportError:
        return 1 << 62  # unknown: the host's memory is not the limit anybody plans for
    return int(psutil.virtual_memory().total)


def placements_of(plan: ModelPlan, num_blocks: int) -> tuple[Placement, ...]:
    """Where the blocks go: one placement for each process that trains."""
    return tuple(resolve_placement(plan.placement, num_blocks, rank) for rank in range(plan.placement.ranks))


def planned_weights(plan: ModelPlan, roots: Roots) -> dict[str, int]:
    """Bytes the base weights of all copies take on each device once loaded, from the headers alone.

    Of a pair the larger expert counts: a run trains one of them.
    """
    files = inspect_pair(plan, roots) if plan.low_noise_file else (inspect_model(plan, roots),)
    planned: Counter[str] = Counter()
    for found in files:
        numerics = plan.precision.numerics(found.compute_dtype)
        with torch.device("meta"):
            parameters = dict(WanTransformer(found.variant.shape, numerics).named_parameters())
        one: Counter[str] = Counter()
        for placement in placements_of(plan, found.variant.shape.num_layers):
            for name, parameter in parameters.items():
                one[str(placement.device_of(name))] += resting_bytes(plan, found, numerics, name, parameter)
        planned |= one
    return dict(planned)


def predict_memory(
    plan: ModelPlan,
    roots: Roots,
    lora: LoraConfig,
    step: StepShape,
    *,
    checkpoint_blocks: bool,
    numerics: Numerics | None = None,
) -> MemoryEstimate:
    """Peak memory of a training step of this plan, from the header alone; `numerics` instead of the plan's own."""
    found = inspect_model(plan, roots)
    compute, numerics = found.compute_dtype, numerics or plan.precision.numerics(found.compute_dtype)
    placement = resolve_placement(plan.placement, found.variant.shape.num_layers)
    check_plan_attention(plan, found.variant.shape, numerics, placement)

    def storage_bytes(name: str, parameter: Tensor) -> int:
        return resting_bytes(plan, found, numerics, name, parameter)

    stays = [weight for name, weight in found.weights.items() if stays_stored(plan, name, weight)]
    # nvfp4 is looked up by int32, one for two values
    float32_bytes = (6 if any(weight.packed for weight in stays) else 4) if stays else 0
    return estimate_memory(
        found.variant.shape,
        numerics,
        placement,
        step,
        storage_bytes=storage_bytes,
        adapt=lambda block: _adapt(block, lora, numerics.adapter, numerics.compute),
        checkpoint_blocks=checkpoint_blocks,
        dequantized_bytes=compute.itemsize + float32_bytes if stays or plan.quantize is not None else 0,
    )


def _adapt(holder: nn.Module, lora: LoraConfig, adapter: torch.dtype | None, compute: torch.dtype) -> None:
    inject_lora(holder, lora, seed=0, dtype=adapter if adapter != compute else None)
