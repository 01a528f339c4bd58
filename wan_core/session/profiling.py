"""torch.profiler over a window of steps, and a snapshot of a card's memory over the step after it.

The trace is for Perfetto and chrome://tracing, the snapshot for pytorch.org/memory_viz. The snapshot has a step of its
own, because recording the stack of each allocation slows a step.
"""

from __future__ import annotations

import contextlib
import gzip
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..accelerator import allocator, backend_of, default_device, profiled
from ..events import Emit, Note
from ..files import atomic_write_bytes
from ..words import counted, first_line

_PROFILED_STEPS = 3
"""number of steps that the page's button profiles"""
_MOST_STEPS = 10
"""a step of a 14B model has some 100,000 events, which stay in host memory until they are written"""
_MOST_ALLOCATIONS = 100_000
"""newest allocations that a snapshot keeps"""
FOLDER = "profile"
_UNWRITTEN = "could not be written: {why}. Free disk space, and profile again."


class StepProfiler:
    """Profiles complete steps, between calls of `after`. Writes into the folder `profile` of the run.

    A failure becomes a warning and never ends the run.
    """

    def __init__(self, directory: Path, emit: Emit, *, steps: int = 0, skipped: int = 1) -> None:
        """`steps`: number of steps to profile after the first `skipped`; 0: none until `request`."""
        self._folder, self._emit = directory / FOLDER, emit
        self._steps, self._skipped = min(steps, _MOST_STEPS), skipped
        self._profile: Any = None
        self._first = self._last = self._recorded = 0

    def request(self) -> None:
        """Profile the next steps, unless a window is open or planned."""
        if not (self._steps or self._profile or self._recorded):
            self._steps, self._skipped = _PROFILED_STEPS, 0

    @property
    def due(self) -> bool:
        """Whether a window begins with the next step."""
        return bool(self._steps) and self._skipped <= 0

    def after(self, step: int) -> None:
        """Count a step that is complete, and end a window with it. Called after each step."""
        self._skipped -= 1
        if self._recorded and step >= self._recorded:
            self._write_memory()
        if self._profile is not None and step >= self._last:
            self._write_trace(step)
            self._record_memory(step + 1)

    def begin(self, step: int) -> None:
        """Begin a window that is due, with the step after `step`."""
        if not self.due:
            return
        steps, self._steps = self._steps, 0
        # For example because another profiler is active in this process.
        with self._noting("Steps cannot be profiled now: {why}."):
            profile = torch.profiler.profile(activities=profiled(), record_shapes=True)
            profile.__enter__()
            self._profile, self._first, self._last = profile, step + 1, step + steps

    def end(self, step: int) -> None:
        """Write an open window when the session ends after `step`."""
        if self._recorded:
            self._write_memory()
        if self._profile is not None:
            self._write_trace(step)
        if self._steps:
            self._emit(Note(text="No step was profiled: the run ended before profile_skip_steps were over."))

    def _write_trace(self, step: int) -> None:
        profile, self._profile = self._profile, None
        with self._noting(f"The profile of step {step} {_UNWRITTEN}"):
            profile.__exit__(None, None, None)
            if step < self._first:
                return
            name = f"steps-{self._first:06d}-{step:06d}"
            size = self._write(f"{name}.json.gz", profile.export_chrome_trace)
            memory = "" if backend_of(default_device()).memory_history else " A memory snapshot needs a GPU."
            text = (
                f"{counted(step - self._first + 1, 'step')} profiled: {FOLDER}/{name}.json.gz in the run's folder, "
                f"{size / 2**20:.1f} MiB, for Perfetto or chrome://tracing.{memory}"
            )
            self._emit(Note(text=text))

    def _record_memory(self, step: int) -> None:
        """Start recording the device allocations of `step`."""
        if not backend_of(default_device()).memory_history:
            return
        with self._noting("The memory of a step cannot be recorded: {why}."):
            allocator()._record_memory_history(max_entries=_MOST_ALLOCATIONS)
            self._recorded = step

    def _write_memory(self) -> None:
        step, self._recorded = self._recorded, 0
        name, memory = f"memory-{step:06d}.pickle", allocator()
        with self._noting(f"The memory of step {step} {_UNWRITTEN}"):
            try:
                size = self._write(name, memory._dump_snapshot)
            finally:
                memory._record_memory_history(enabled=None)
            text = f"Memory of step {step}: {FOLDER}/{name}, {size / 2**20:.1f} MiB, for pytorch.org/memory_viz."
            self._emit(Note(text=text))

    def _write(self, name: str, export: Callable[[str], object]) -> int:
        """Write the file that `export(path)` makes into the folder, as `name`; returns its size in bytes."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            made = Path(folder) / "made"
            export(str(made))
            data = made.read_bytes()
        if name.endswith(".gz"):
            data = gzip.compress(data, 6)  # torch's export to .gz compresses line by line, six times slower
        atomic_write_bytes(self._folder / name, data, self._folder.parent)
        return len(data)

    @contextlib.contextmanager
    def _noting(self, said: str) -> Iterator[None]:
        """Inside, an exception becomes the warning `said`, with its first line for {why}."""
        try:
            yield
        except Exception as error:  # A failed profile must not end the run.
            why = first_line(error).rstrip(".") or type(error).__name__
            self._emit(Note(text=said.format(why=why), level="warning"))
