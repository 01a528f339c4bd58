"""What a terminal shows of a run: one line that counts, and the sentences in between. Pipes get JSON lines."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any, BinaryIO

from ..events import CheckpointSaved, Emit, Evaluated, Event, Failed, Finished, Note, StepDone, Suggested, parse_event
from ..words import plain

__all__ = ["lines_of", "terminal_emitter"]

_EVERY_S = 0.2
"""seconds between two looks of the line"""


def terminal_emitter(out: BinaryIO) -> Emit:
    """Returns what writes events for people onto a terminal."""
    return _Terminal(out)


def lines_of(emit: Emit) -> BinaryIO:
    """Returns a stand-in for a pipe: the JSON lines of another process that are written into it are told to `emit`."""
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


class _Terminal:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._line = ""
        self._shown = 0.0
        self._pace: list[float] = []

    def __call__(self, event: Event) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            if isinstance(event, StepDone):
                self._step(event)
            elif sentence := _sentence(event):
                self._say(sentence)

    def _step(self, event: StepDone) -> None:
        self._pace = [*self._pace[-19:], event.seconds]
        now = time.monotonic()
        if now - self._shown < _EVERY_S and event.step < event.steps:
            return
        self._shown = now
        pace = sum(self._pace) / len(self._pace)
        expert = f" {event.expert} noise" if event.expert in ("high", "low") else ""
        epoch = f"  epoch {_epochs(event)}" if event.epoch else ""
        line = (
            f"step {event.step}/{event.steps}{expert}{epoch}  loss {event.loss:.4f}  lr {event.lr:.3g}  "
            f"{pace:.2f} s/step  {_span(event.left(pace))} left"
        )
        self._write("\r" + line.ljust(len(self._line)))
        self._line = line

    def _say(self, sentence: str) -> None:
        """A line of its own; the counting line goes on below it."""
        kept, self._line = self._line, ""
        self._write(("\r" + " " * len(kept) + "\r" if kept else "") + plain(sentence) + "\n")

    def _write(self, text: str) -> None:
        self._out.write(text.encode("utf-8", "replace"))


def _epochs(event: StepDone) -> str:
    """Passes over the data so far and in the end; of a pair the end of one expert is not known.

    Rounded as `epoch` is, the end is sure to a digit once a tenth of the first pass is done.
    """
    sure = event.epoch >= 0.1 and event.expert not in ("high", "low")
    end = f" of {event.epoch * event.steps / event.step:.1f}".removesuffix(".0") if sure else ""
    return f"{event.epoch:.1f}{end}"


def _sentence(event: Event) -> str:
    match event:
        case Note():
            return event.text
        case CheckpointSaved():
            return f"saved step {event.step}"
        case Evaluated() if event.eval_loss is not None:
            held_out = "held-out clips" if event.held_out else "training clips"
            return f"loss of {held_out} at step {event.step}: {event.eval_loss:.4f}"
        case Suggested() if event.best is not None:
            return f"best so far: step {event.best}. {event.why}"
        case Finished():
            return f"{event.state} at step {event.step}"
        case Failed():
            return ""  # its sentence stands on stderr
        case _:
            return ""


def _span(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
