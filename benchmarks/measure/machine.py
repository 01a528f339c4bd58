"""Facts of the machine: devices, memory and versions."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch

from wan_core import __version__
from wan_core.abilities import abilities_of
from wan_core.accelerator import default_device, free_bytes, gpu_count
from wan_core.packages import version_of
from wan_core.placement.host import host_bytes, host_total

_PACKAGES = ("triton", "peft", "diffusers", "flash-attn", "torchao")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# Otherwise counting cards may create a CUDA context, after which a forked process cannot use the card.


def machine_facts() -> dict[str, Any]:
    """Returns name, memory and versions as JSON data; creates a context on the first card."""
    facts: dict[str, Any] = {
        "cuda": gpu_count() > 0,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": sys.platform,
        "wan_core": __version__,
        "packages": {name: version_of(name) or None for name in _PACKAGES},
        "host_bytes": host_total(),
        "host_free_bytes": host_bytes(),
    }
    if not facts["cuda"]:
        return facts | {"name": f"CPU-{os.cpu_count()}-cores", "device": abilities_of("cpu").name, "count": 0}
    device = default_device()
    card = abilities_of(device)
    return facts | {
        "name": card.name.replace("NVIDIA ", ""),
        "device": card.name,
        "count": gpu_count(),
        "capability": None if card.capability is None else "{}.{}".format(*card.capability),
        "total_bytes": card.memory,
        "free_bytes": free_bytes(device),
        "cuda_version": torch.version.cuda or torch.version.hip,
    }
