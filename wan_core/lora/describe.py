"""Describes a LoRA file for `wan_core inspect`."""

from __future__ import annotations

import re

from ..checkpoint import CheckpointHeader, stated_model
from ..errors import CheckpointError
from .source import LoraSource, is_wan_linear

_MARK = re.compile(r"[._](lora|dora)[._]|\.lora_[AB]$|\.(alpha|diff|diff_b)$|\.(lokr|hada)_\w+$")


def is_lora(header: CheckpointHeader) -> bool:
    """Returns whether most tensors are named as parts of an adapter, for any model."""
    adapters = sum(_MARK.search(name) is not None for name in header.tensors)
    return adapters * 2 > len(header.tensors)


def describe_lora(source: LoraSource) -> dict[str, object]:
    """Returns data for JSON; a file that cannot start a run is described by its names, with the reason."""
    problem, metadata = _problem(source), source.header.metadata
    known = [] if problem else list(source.modules)
    first = next((key for key in source.keys if key.part != "alpha"), source.keys[0])
    names = ("modelspec.architecture", "ss_base_model_version", "base_model", "ss_sd_model_name")
    base = next((metadata[name][:80] for name in names if metadata.get(name, "None") != "None"), "")
    return {
        "kinds": sorted({source.kind(module) for module in known}),
        "key_format": f"{first.wrapping}<module>{first.spelling}",
        "modules": len(source.modules),
        "blocks": len({module.split(".")[1] for module in source.modules if is_wan_linear(module)}),
        "adapts": sorted({re.sub(r"blocks\.\d+\.", "blocks.*.", module) for module in source.modules}),
        "trained_on": stated_model(metadata) or base,
        "ranks": sorted({source.rank(module) for module in known}),
        "alphas": sorted({alpha for module in known if (alpha := source.alpha(module)) is not None}),
        "can_start_a_run": not problem,
        "problem": problem,
    }


def _problem(source: LoraSource) -> str:
    try:
        for module in source.modules:
            source.shape(module)
            source.scale(module)
    except CheckpointError as refusal:
        return str(refusal)
    return ""
