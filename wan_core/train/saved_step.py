"""A saved step on disk: manifest with checksums and counters, LoRA files, resume state."""

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
"""low noise expert of a run of both experts; LORA is then the high noise expert's"""
MANIFEST, SUSPECT = "manifest.json", "suspect.txt"
SAVED_FILES = (LORA, LOW_NOISE_LORA, STATE, SUSPECT, MANIFEST)
"""files of a saved step; the manifest is the last to be written and to be deleted"""


@dataclass(frozen=True, kw_only=True)
class Manifest(Config):
    """manifest.json, written last."""

    version: int
    step: int
    job_id: str
    lora_sha256: str
    state_sha256: str
    progress: str
    """counters of the trainer, as JSON"""
    low_noise_lora_sha256: str = ""
    """"" for a run of one model"""
    manifest_sha256: str = ""
    """checksum of the other fields"""

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON data, without an empty `low_noise_lora_sha256`."""
        data = super().to_dict()
        if not self.low_noise_lora_sha256:
            data.pop("low_noise_lora_sha256")
        return data

    def checksum(self) -> str:
        """Returns the expected `manifest_sha256`."""
        others = {name: value for name, value in self.to_dict().items() if name != "manifest_sha256"}
        return hashlib.sha256(json.dumps(others, sort_keys=True, ensure_ascii=True).encode()).hexdigest()

    def counters(self) -> dict[str, Any]:
        """Returns `progress` parsed. Raises ValueError if it belongs to another step."""
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
    """whether it holds a LoRA of both experts"""

    @property
    def lora_file(self) -> Path:
        return self.folder / LORA

    @property
    def low_noise_lora_file(self) -> Path | None:
        """LoRA of the low noise expert, once a run of both experts has trained it; None otherwise."""
        return self.folder / LOW_NOISE_LORA if self.has_low_noise else None

    @property
    def loras(self) -> dict[str, Path]:
        """LoRA files by expert, low_noise only once it has trained; in a run of one model, the key is ''."""
        if "expert_steps" not in self.progress:
            return {"": self.lora_file}
        low = self.low_noise_lora_file
        return {EXPERTS[0]: self.lora_file} | ({} if low is None else {EXPERTS[1]: low})

    @property
    def expert_steps(self) -> list[int]:
        """Steps of each expert. Raises CheckpointError if the manifest has none."""
        found: Any = self.progress.get("expert_steps")
        if isinstance(found, list):
            steps = [n for n in cast("list[Any]", found) if type(n) is int and n >= 0]
            if len(steps) == len(EXPERTS) and sum(steps) == self.step:
                return steps
        raise CheckpointError(
            f"Saved step {self.step} lacks the steps of each expert. Resume from an older saved step."
        )

    def read_state(self) -> dict[str, Tensor]:
        """Returns the resume state: adapters and optimizer."""
        return read_tensors(self.folder / STATE)
