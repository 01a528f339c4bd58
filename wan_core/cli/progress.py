"""Events on a terminal: a progress line, with text above it. Pipes get JSON lines instead."""

from __future__ import annotations

import contextlib
import io
import shutil
import time
from typing import Any, BinaryIO

from ..events import Emit, Event, StepDone, parse_event
from ..run_lines import RunLines, sentence_of
from ..words import plain

_EVERY_S = 0.2
"""seconds between updates"""


def lines_of(emit: Emit) -> BinaryIO:
    """Returns a file that parses the JSON lines of another process and calls `emit` with the events."""
    return _Lines(emit)


class _Lines(io.RawIOBase, BinaryIO):  # type: ignore[misc]
    def __init__(self, emit: Emit) -> None:
        super().__init__()
        self._emit = emit

    def write(self, line: Any) -> int:
        event = parse_event(bytes(line).decode("utf-8", "replace"))
        if event is not None:
            self._emit(event)
        return len(line)


class Terminal:
    """An `Emit` that shows events on a terminal."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._line = ""
        self._shown = 0.0
        self._lines = RunLines()

    def __call__(self, event: Event) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            if isinstance(event, StepDone):
                self._step(event)
            elif sentence := sentence_of(event):
                self._say(sentence)

    def _step(self, event: StepDone) -> None:
        said = self._lines.step(event)  # called for every event, because `step` measures the speed
        now = time.monotonic()
        if now - self._shown < _EVERY_S and event.step < event.steps:
            return
        self._shown = now
        # Cut to the width of the terminal, because "\r" cannot overwrite a line that wraps.
        line = said[: shutil.get_terminal_size().columns - 1]
        self._write("\r" + line.ljust(len(self._line)))
        self._line = line

    def _say(self, sentence: str) -> None:
        """Prints a line above the progress line."""
        kept, self._line = self._line, ""
        self._write(("\r" + " " * len(kept) + "\r" if kept else "") + plain(sentence) + "\n")

    def _write(self, text: str) -> None:
        self._out.write(text.encode("utf-8", "replace"))
