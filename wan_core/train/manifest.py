"""Reads and writes what a saved step says of itself: manifest.json, its checksums and its counters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..checkpoint import TensorFile
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
    """of everything else in here; empty in those of earlier versions"""

    def to_dict(self) -> dict[str, Any]:
        """Returns what is written: of a step with one LoRA, what earlier versions write and read."""
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
    counts = [found.get(name, 0) for name in ("step", "bad_in_a_row")] if isinstance(found, dict) else [None]
    step = manifest.step
    if counts[0] != step or not all(type(count) is int and 0 <= count <= step for count in counts):
        raise ValueError(f"progress {manifest.progress[:80]!r} is not that of step {step}")
    return cast("dict[str, Any]", found)


def can_belong(progress: dict[str, Any], state: Path) -> bool:
    """Returns whether the counters can belong to the optimizer's own count of its updates.

    Asked only of a manifest without a checksum, whose digits prove nothing; only AdamW trained then. A step that was
    not finite counts in the manifest and made no update, so the optimizer may have counted fewer.
    """
    with TensorFile(state) as file:
        names = file.header.tensors
        name = next((name for name in names if name.startswith("optimizer.") and name.endswith(".step")), None)
        updates = int(file.read(name)) if name is not None else 0
    return updates <= progress["step"] - progress.get("bad_in_a_row", 0)
