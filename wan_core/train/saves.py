"""Saved steps: commits that are whole or do not exist. "Latest" is the newest that verifies, not that exists."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import Config
from ..errors import CheckpointError
from ..files import FileError, digest_file, fsync_folder, read_json

__all__ = ["SaveStore", "SavedStep"]

_NAME = re.compile(r"^step-(\d{6,})$")
LORA, STATE, MANIFEST = "lora.safetensors", "state.safetensors", "manifest.json"


@dataclass(frozen=True, kw_only=True)
class _Manifest(Config):
    """manifest.json, written last: what belongs to the commit."""

    version: int
    step: int
    job_id: str
    lora_sha256: str
    state_sha256: str
    progress: str
    """JSON of the trainer's counters"""


@dataclass(frozen=True)
class SavedStep:
    """One committed step."""

    step: int
    folder: Path
    job_id: str
    progress: dict[str, Any]

    @property
    def lora_file(self) -> Path:
        return self.folder / LORA

    def read_state(self) -> dict[str, Tensor]:
        """The resume state: adapters and optimizer, float32."""
        from safetensors.torch import load_file

        return load_file(self.folder / STATE)


class SaveStore:
    """The folder `saves/` of one run."""

    def __init__(self, run_directory: Path) -> None:
        self.folder = run_directory / "saves"

    def steps(self) -> list[int]:
        """Steps that have a folder, newest last; not verified."""
        if not self.folder.is_dir():
            return []
        return sorted(int(m[1]) for entry in os.listdir(self.folder) if (m := _NAME.match(entry)))

    def read(self, step: int) -> SavedStep | None:
        """The saved step, or None when it does not verify (missing file, wrong checksum)."""
        folder = self.folder / f"step-{step:06d}"
        try:
            manifest = _Manifest.from_dict(read_json(folder / MANIFEST))
            whole = (
                manifest.step == step
                and digest_file(folder / LORA) == manifest.lora_sha256
                and digest_file(folder / STATE) == manifest.state_sha256
            )
            progress = json.loads(manifest.progress)
        except (FileError, ValueError):
            return None
        return SavedStep(step, folder, manifest.job_id, progress) if whole else None

    def latest(self) -> SavedStep | None:
        """The newest saved step that verifies."""
        return next((saved for step in reversed(self.steps()) if (saved := self.read(step))), None)

    def commit(
        self, step: int, job_id: str, lora: bytes, state: dict[str, Tensor], progress: dict[str, Any]
    ) -> SavedStep:
        """Write a saved step: staged beside its place, synced, renamed; the manifest is the last file written.

        A step that is already there and verifies is kept as it is: the same job makes the same bytes.
        """
        known = self.read(step)
        if known is not None:
            return known
        final = self.folder / f"step-{step:06d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        staged = self.folder / f".{final.name}.partial"
        if staged.exists():
            shutil.rmtree(staged)  # our own leftover of a killed save
        staged.mkdir()
        try:
            _check_finite(state)
            manifest = _Manifest(
                version=1,
                step=step,
                job_id=job_id,
                lora_sha256=_write(staged / LORA, lora),
                state_sha256=_write(staged / STATE, _serialise(state)),
                progress=json.dumps(progress),
            )
            _write(staged / MANIFEST, json.dumps(manifest.to_dict(), indent=2).encode())
            fsync_folder(staged)
            if final.exists():
                os.replace(final, self._aside(final.name))
            os.replace(staged, final)
            fsync_folder(self.folder)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        return SavedStep(step, final, job_id, progress)

    def _aside(self, name: str) -> Path:
        """A free name for a damaged step: it is moved away, never deleted."""
        places = (self.folder / f".{name}.damaged.{number}" for number in itertools.count(1))
        return next(place for place in places if not place.exists())


def _serialise(state: dict[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save(state)


def _check_finite(state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise CheckpointError(f"The state {name} is not finite; it was not saved. Earlier saved steps stand.")


def _write(path: Path, data: bytes) -> str:
    """Write and sync; returns the SHA-256 of what was written."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()
