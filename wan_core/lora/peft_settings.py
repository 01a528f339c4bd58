"""The scale that PEFT states outside the weights: in diffusers' metadata or adapter_config.json.

Applies to files in PEFT's and diffusers' own names; for others a missing alpha means 1, as in ComfyUI.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

from ..checkpoint import CheckpointHeader, to_diffusers
from ..errors import CheckpointError

_DIFFUSERS_ENTRY = "lora_adapter_metadata"
_CONFIG_FILE = "adapter_config.json"
_LARGEST_CONFIG = 1 << 20
_NAME = re.compile(r"[\w.]+", re.ASCII)


def declared_scale(header: CheckpointHeader, wrapping: str, module: str, rank: int) -> float:
    """Returns the stated alpha / rank (/ sqrt(rank) for rsLoRA) of a module, else 1.

    `rank`: of the module; 0 for a LoKr of two complete matrices, which PEFT scales by its requested rank.
    """
    settings: dict[str, Any] = {}
    if wrapping.startswith("transformer"):
        stated = _object(header.metadata.get(_DIFFUSERS_ENTRY, "{}"), header)
        settings = {key.removeprefix(wrapping): value for key, value in stated.items()}
    elif wrapping.startswith("base_model."):
        path = header.path.with_name(_CONFIG_FILE)
        if path.is_file() and path.stat().st_size <= _LARGEST_CONFIG:
            settings = _object(path.read_text(encoding="utf-8", errors="replace"), header)
    alpha = settings.get("lora_alpha", settings.get("alpha"))  # PEFT's key for LoKr and LoHa
    alpha = _of_module(settings, "alpha_pattern", module, alpha)
    asked = rank or _of_module(settings, "rank_pattern", module, settings.get("r"))
    if alpha is None or asked is None:
        return 1.0
    if not (_is_number(alpha) and _is_number(asked) and asked > 0):
        raise CheckpointError(
            f"{header.path.name} states lora_alpha {str(alpha)[:20]} and alpha_pattern "
            f"{str(settings.get('alpha_pattern'))[:60]}; finite numbers by names of modules can be read. "
            "Save that LoRA with alpha tensors, in ComfyUI's format."
        )
    return alpha / (math.sqrt(asked) if settings.get("use_rslora") else asked)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _of_module(settings: dict[str, Any], pattern: str, module: str, usual: Any) -> Any:
    """Returns the value of the first key that a module's name ends with, else `usual`; "" if a key is not a plain name.

    PEFT treats keys as regular expressions, but untrusted expressions are not compiled here.
    """
    given: Any = settings.get(pattern) or {}
    if not isinstance(given, dict) or not all(_NAME.fullmatch(key) for key in cast("dict[str, Any]", given)):
        return ""
    names = (f".{module}", f".{to_diffusers(module)}")
    known = cast("dict[str, Any]", given).items()
    return next((own for key, own in known if any(name.endswith(f".{key}") for name in names)), usual)


def _object(text: str, header: CheckpointHeader) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CheckpointError(f"The PEFT settings of {header.path.name} are damaged. Use an undamaged LoRA file.")
    return cast("dict[str, Any]", value)
