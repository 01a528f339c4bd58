"""Measures the distance of each rendered clip from the base model's clip, on decoded pixels before compression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...wan_core.checkpoint import read_tensors
from ...wan_core.files import atomic_write_json, read_json
from ...wan_core.job import Cell, SampleJob
from ...wan_core.video import measure_clip
from ..bridge.sockets import ComfyVae

Frames = NDArray[np.uint8]
_MEASURED = "drift_mean_abs"


class Drift:
    """Measures the clips of a job, into a JSON file for each. Holds the base model's clip of one row in memory."""

    def __init__(self, folder: Path, run: Path, job: SampleJob, codec: ComfyVae) -> None:
        """`folder` is inside `run`."""
        self._folder, self._run, self._codec = folder, run, codec
        self._cells = {cell.name: cell for cell in job.cells()}
        self._bases = {cell.row: cell for cell in self._cells.values() if cell.column.is_base}
        self._held: tuple[str, Frames] | None = None

    def measure(self, sample_id: str, frames: Frames) -> None:
        """Write the measurements of a decoded clip (F, H, W, 3)."""
        cell = self._cells[sample_id]
        clip: dict[str, Any] = {"clip": cell.name, "prompt": cell.row.prompt, "frames": len(frames)}
        if cell.row.seed is not None:
            clip["seed"] = cell.row.seed
        base = self._bases.get(cell.row)
        if base is not None and base.name == cell.name:
            self._held = cell.name, frames
        elif base is not None:
            other = self._frames_of(base)
            clip[_MEASURED], clip["drift_psnr_db"] = _distance(frames, other)
            clip |= {name: value for name, value in measure_clip(frames, other).items() if name == "ssim"}
        atomic_write_json(self._folder / f"{cell.name}.json", clip, self._run)

    def complete(self) -> None:
        """Measure clips that were rendered before the base model's."""
        for cell in self._cells.values():
            if (base := self._bases.get(cell.row)) is None or base.name == cell.name:
                continue
            if _MEASURED not in read_json(self._folder / f"{cell.name}.json"):
                self.measure(cell.name, _pixels(self._codec, self._folder / f"{cell.name}.latent"))

    def _frames_of(self, base: Cell) -> Frames:
        """Returns the base model's clip from memory, or after Cancel from its latent."""
        if self._held is None or self._held[0] != base.name:
            self._held = None  # freed before the next clip is decoded
            self._held = base.name, _pixels(self._codec, self._folder / f"{base.name}.latent")
        return self._held[1]


def _pixels(codec: ComfyVae, latent: Path) -> Frames:
    return (codec.decode(read_tensors(latent)["latent"]) * 255).round().to(torch.uint8).numpy()


def _distance(frames: Frames, base: Frames) -> tuple[float, float | None]:
    """Returns (mean absolute difference on a scale of 0 to 1, PSNR in dB or None when equal) of clips in [0, 255]."""
    # Frame by frame, because float copies of two clips would take eight times their memory.
    pairs = zip(frames, base, strict=True)
    apart = ((one.astype(np.float32) - other.astype(np.float32)) / 255 for one, other in pairs)
    means = [(np.abs(frame).mean(dtype=np.float64), np.square(frame).mean(dtype=np.float64)) for frame in apart]
    absolute, square = np.mean(means, axis=0)
    return float(absolute), -10 * float(np.log10(square)) if square else None
