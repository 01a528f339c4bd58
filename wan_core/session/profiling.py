"""torch.profiler over a window of steps: a trace for chrome://tracing and Perfetto, and a table of operators."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from ..events import Emit, Note
from ..files import FileError, atomic_write_bytes
from ..words import counted, first_line

PROFILED_STEPS = 3
"""default window"""
FOLDER = "profile"
_ROWS = 40


class StepProfiler:
    """Profiles complete steps between calls of `after`. Writes into the folder `profile` of the run."""

    def __init__(self, directory: Path, emit: Emit) -> None:
        self._folder, self._emit = directory / FOLDER, emit
        self._profile: Any = None
        self._first = self._last = 0

    def after(self, step: int, *, steps: int = 0) -> None:
        """Called after each step; `steps` > 0 requests a window of that length from the next step on."""
        if self._profile is not None and step >= self._last:
            self.end(step)
        if steps > 0 and self._profile is None:
            self._begin(step + 1, steps)

    def end(self, step: int) -> None:
        """Writes the profile up to `step`, if a window is open; a failed write is a note."""
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        profile.__exit__(None, None, None)
        if step < self._first:
            return
        name = f"steps-{self._first:06d}-{step:06d}"
        order = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = profile.key_averages().table(sort_by=order, row_limit=_ROWS)
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                trace = Path(folder) / "trace.json"  # torch's own gzip works line by line and takes six times as long
                profile.export_chrome_trace(str(trace))
                with trace.open("rb") as plain, gzip.open(f"{trace}.gz", "wb", 6) as packed:
                    shutil.copyfileobj(plain, packed, 1 << 20)
                data = Path(f"{trace}.gz").read_bytes()
            atomic_write_bytes(self._folder / f"{name}.json.gz", data, self._folder.parent)
            atomic_write_bytes(self._folder / f"{name}.txt", table.encode(), self._folder.parent)
        except (OSError, FileError) as error:
            why = first_line(error).rstrip(".")
            said = f"The profile of step {step} could not be written: {why}. Make room, and ask again."
            self._emit(Note(text=said, level="warning"))
            return
        self._emit(
            Note(
                text=f"{counted(step - self._first + 1, 'step')} profiled: {FOLDER}/{name}.json.gz, "
                f"{len(data) / 2**20:.1f} MiB, for Perfetto or chrome://tracing, and {name}.txt in the run's folder."
            )
        )

    def _begin(self, first: int, steps: int) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(activities=kinds, record_shapes=True)
        try:
            profile.__enter__()
        except RuntimeError as error:  # another profiler is active in this process
            self._emit(Note(text=f"Steps cannot be profiled now: {first_line(error)}.", level="warning"))
            return
        self._profile, self._first, self._last = profile, first, first + steps - 1
