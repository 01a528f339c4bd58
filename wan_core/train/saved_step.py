"""A saved step as it lies on disk: its manifest with checksums and counters, its LoRA files, its resume state."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from ..checkpoint import read_tensors
from ..config import Config
from ..errors import CheckpointError
from .config import EXPERTS

LORA, STATE = "lora.safetensors", "state.safetensors"
LOW_NOISE_LORA = "lora_low_noise.safetensors"
"""of the low noise expert, where both experts of a pair are trained; the other one's is LORA"""


@dataclass(frozen=True, kw_only=True)
class Manifest(Config):
    """manifest.json, written last: the step, its job, and the checksums of its files."""

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
    """of everything else in here"""

    def to_dict(self) -> dict[str, Any]:
        """Returns what is written; without `low_noise_lora_sha256` where there is one LoRA."""
        data = super().to_dict()
        if not self.low_noise_lora_sha256:
            data.pop("low_noise_lora_sha256")
        return data

    def checksum(self) -> str:
        """Returns what `manifest_sha256` must be."""
        rest = {name: value for name, value in self.to_dict().items() if name != "manifest_sha256"}
        return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=True).encode()).hexdigest()

    def counters(self) -> dict[str, Any]:
        """Returns `progress`, read. Raises ValueError where it is not that of this step."""
        found = json.loads(self.progress)
        if not isinstance(found, dict) or type(found.get("step")) is not int or found["step"] != self.step:
            raise ValueError(f"progress {self.progress[:80]!r} is not that of step {self.step}")
        return cast("dict[str, Any]", found)


@dataclass(frozen=True)
class SavedStep:
    """One committed step."""

    step: int
    folder: Path
    job_id: str
    progress: dict[str, Any]
    has_low_noise: bool = False
    """whether it holds a LoRA of each expert of a pair"""

    @property
    def lora_file(self) -> Path:
        return self.folder / LORA

    @property
    def low_noise_lora_file(self) -> Path | None:
        """The LoRA of the low noise expert where both are trained and it has begun; `lora_file` is the other's."""
        return self.folder / LOW_NOISE_LORA if self.has_low_noise else None

    @property
    def loras(self) -> dict[str, Path]:
        """The LoRA files by expert, low_noise once that one has begun; where one model is trained, one of ''."""
        if "expert_steps" not in self.progress:
            return {"": self.lora_file}
        low = self.low_noise_lora_file
        return {EXPERTS[0]: self.lora_file} | ({} if low is None else {EXPERTS[1]: low})

    @property
    def expert_steps(self) -> list[int]:
        """How far each of both experts was. Raises CheckpointError where it does not say so."""
        found: Any = self.progress.get("expert_steps")
        if isinstance(found, list):
            steps = [n for n in cast("list[Any]", found) if type(n) is int and n >= 0]
            if len(steps) == len(EXPERTS) and sum(steps) == self.step:
                return steps
        raise CheckpointError(
            f"Saved step {self.step} does not say how far each expert is. Resume from an older saved step."
        )

    def read_state(self) -> dict[str, Tensor]:
        """Returns the resume state: adapters and optimizer, float32."""
        return read_tensors(self.folder / STATE)
