"""The scale that PEFT states outside the weights: in diffusers' metadata or adapter_config.json.

Applies to files in PEFT's and diffusers' own names; for others a missing alpha means 1, as in ComfyUI.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

from ..checkpoint import CheckpointHeader
from ..errors import CheckpointError

_DIFFUSERS_ENTRY = "lora_adapter_metadata"
_CONFIG_FILE = "adapter_config.json"
_LARGEST_CONFIG = 1 << 20


def declared_scale(header: CheckpointHeader, wrapping: str, rank: int) -> float:
    """Returns the stated alpha / rank (/ sqrt(rank) for rsLoRA), else 1.

    `rank`: of the module; 0 for a LoKr of two complete matrices, which PEFT scales by its requested rank.
    """
    if wrapping.startswith("transformer"):
        settings = _from_metadata(header, wrapping)
    elif wrapping.startswith("base_model."):
        settings = _from_config_file(header)
    else:
        return 1.0
    alpha = settings.get("lora_alpha", settings.get("alpha"))  # PEFT's key for LoKr and LoHa
    asked = settings.get("r")
    of_modules = settings.get("alpha_pattern") or (not rank and settings.get("rank_pattern"))
    rank = rank or (asked if type(asked) is int and asked > 0 else 0)
    if alpha is None or not rank:
        return 1.0
    if of_modules or type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise CheckpointError(
            f"{header.path.name} states lora_alpha {str(alpha)[:20]} and alpha_pattern "
            f"{str(settings.get('alpha_pattern'))[:60]}; one finite number for all modules can be read. "
            "Save that LoRA with alpha tensors, in ComfyUI's format."
        )
    return alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank


def _from_metadata(header: CheckpointHeader, wrapping: str) -> dict[str, Any]:
    settings = _object(header.metadata.get(_DIFFUSERS_ENTRY, "{}"), header)
    return {key.removeprefix(wrapping): value for key, value in settings.items()}


def _from_config_file(header: CheckpointHeader) -> dict[str, Any]:
    path = header.path.with_name(_CONFIG_FILE)
    if not path.is_file() or path.stat().st_size > _LARGEST_CONFIG:
        return {}
    return _object(path.read_text(encoding="utf-8", errors="replace"), header)


def _object(text: str, header: CheckpointHeader) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CheckpointError(f"The PEFT settings of {header.path.name} are damaged. Use an undamaged LoRA file.")
    return cast("dict[str, Any]", value)
