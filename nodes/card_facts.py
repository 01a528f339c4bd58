"""Facts for the cards the page draws on nodes: plain data in the `ui` output, so that /history has them too."""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import io

from ..wan_core.files import Roots
from ..wan_core.footprint import placements_of, planned_weights
from ..wan_core.run.memory_report import total_bytes
from .bridge.types import ModelHandle

__all__ = ["asked_of", "model_facts", "split_facts"]


def asked_of(node: type[io.ComfyNode]) -> dict[str, Any]:
    """What the widgets of the running node were set to; linked inputs are left out.

    The page compares it with the widgets, and says when a card is older than they are.
    """
    hidden = node.hidden
    if hidden is None or not hidden.prompt:
        return {}
    inputs = hidden.prompt.get(str(hidden.unique_id), {}).get("inputs", {})
    return {name: value for name, value in inputs.items() if isinstance(value, (str, int, float, bool))}


def model_facts(model: ModelHandle) -> dict[str, Any]:
    """Which model it is, where its half of the noise levels ends (sigma, null for a model without experts), and what
    discrete_flow_shift 0 stands for.
    """
    variant = model.variant
    pair = bool(model.plan.low_noise_file)
    return {
        "version": 1,
        "variant": variant.name,
        "boundary": variant.boundary,
        "expert": None if pair else variant.expert,
        "training_shift": variant.training_shift,
        "pair": pair,
    }


def split_facts(model: ModelHandle, roots: Roots) -> dict[str, Any]:
    """Which block lies where, and the bytes the weights will take on each device once they are loaded.

    `copies` holds one list for each model copy that trains: an index into `devices` for every block; embeddings and
    head lie with the first block. `predicted` is the peak of a training step: null until something predicts it.
    """
    shape = model.variant.shape
    placements = placements_of(model.plan, shape.num_layers)
    devices = list(dict.fromkeys(device for placement in placements for device in placement.devices))
    weights = planned_weights(model.plan, roots)
    return {
        "version": 1,
        "model": model.variant.name,
        "mode": model.plan.placement.mode,
        "control_blocks": len(shape.vace_layers),
        "devices": [{"name": str(device), "title": _title(device)} for device in devices],
        "copies": [[devices.index(device) for device in placement.block_devices] for placement in placements],
        "memory": {
            str(device): {"weights": weights[str(device)], "predicted": None, "total": _total(device)}
            for device in devices
        },
    }


def _title(device: torch.device) -> str:
    """What the maker calls it; empty for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _total(device: torch.device) -> int | None:
    """Bytes the device has; None where nobody knows."""
    total = total_bytes(device)
    return total if total < 1 << 60 else None
