"""The needs of a run, before anything is loaded: memory per device, disk, and whether it fits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from ..files import Roots
from ..footprint import predict_memory
from ..train import largest_step
from .open import open_run

__all__ = ["plan_run", "total_bytes"]


def plan_run(directory: Path, roots: Roots) -> dict[str, Any]:
    """Returns the report of `wan_core plan`.

    It holds the variant, largest micro-batch, predicted peak and total per device, verdict.
    """
    run = open_run(directory, roots)
    config = run.config
    step = largest_step(run.cache_set, config.train.batch_size)
    estimate = predict_memory(
        config.model,
        roots,
        config.lora,
        step,
        checkpoint_blocks=config.train.gradient_checkpointing,
        found=run.file,
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
        "variant": run.file.variant.name,
        "compute_dtype": str(run.file.compute_dtype).removeprefix("torch."),
        "tokens": step.tokens,
        "devices": devices,
        "disk": {"save_bytes": save_bytes, "all_saves_bytes": saves * save_bytes, "free_bytes": free},
        "fits": all(d["peak_bytes"] <= d["total_bytes"] for d in devices.values()) and save_bytes <= free,
    }


def total_bytes(device: torch.device) -> int:
    """Returns the memory of a device; of the host for the CPU, and without limit where psutil is missing."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        import psutil
    except ImportError:
        return 1 << 62  # unknown: the host's memory is not the limit anybody plans for
    return int(psutil.virtual_memory().total)
