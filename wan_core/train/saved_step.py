"""Reads and writes what a saved step says of itself: manifest.json, its checksums and its counters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, cast

from ..config import Config


@dataclass(frozen=True, kw_only=True)
class Manifest(Config):
    """manifest.json, written last: what belongs to the commit."""

    version: int
    step: int
    job_id: str
    lora_sha256: str
    state_sha256: str
    progress: str
    """JSON of the trainer's counters"""
    low_noise_lora_sha256: str = ""
    """empty where there is one LoRA"""
    manifest_sha256: str = ""
    """of everything else in here; empty only while the manifest is made"""

    def to_dict(self) -> dict[str, Any]:
        """Returns what is written; a step with one LoRA has no digest of a second one."""
        data = super().to_dict()
        if not self.low_noise_lora_sha256:
            data.pop("low_noise_lora_sha256")
        return data

    def checksum(self) -> str:
        """Returns what `manifest_sha256` must be."""
        rest = {name: value for name, value in self.to_dict().items() if name != "manifest_sha256"}
        return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def counters_of(manifest: Manifest) -> dict[str, Any]:
    """Returns the trainer's counters; ValueError when they cannot be those of this step."""
    found = json.loads(manifest.progress)
    step = found.get("step") if isinstance(found, dict) else None
    if type(step) is not int or step != manifest.step:
        raise ValueError(f"progress {manifest.progress[:80]!r} is not that of step {manifest.step}")
    return cast("dict[str, Any]", found)
