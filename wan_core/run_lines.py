"""A run as text lines, for the terminal, log.txt and ComfyUI's console."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

from .events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Finished,
    Note,
    SampleReady,
    StageEnded,
    StepDone,
    StepSkipped,
    Suggested,
)

_PACE_STEPS = 20
_FIRST_S, _MOST_S = 5.0, 60.0
"""seconds between lines of steps: the first interval, doubled each time up to the maximum"""
_GIB = 1 << 30


class RunLines:
    """Turns events into lines: every save, evaluation, preview and note, and some steps."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` returns seconds."""
        self._now = now
        self._pace: list[float] = []
        self._gap, self._next = _FIRST_S, 0.0

    def line(self, event: Event) -> str:
        """Returns the line of an event; "" if none is due."""
        if not isinstance(event, StepDone):
            return sentence_of(event)
        text = self.step(event)
        now = self._now()
        if now < self._next and event.step < event.steps:
            return ""
        self._next, self._gap = now + self._gap, min(2 * self._gap, _MOST_S)
        return text

    def step(self, event: StepDone) -> str:
        """Returns step, epoch, loss, learning rate, pace, time left and memory."""
        self._pace = [*self._pace[1 - _PACE_STEPS :], event.seconds or 0.0]
        pace = sum(self._pace) / len(self._pace)
        expert = f" {event.expert} noise" if event.expert in ("high", "low") else ""
        parts = [
            f"step {event.step}/{event.steps}{expert}",
            f"epoch {_epochs(event)}" if event.epoch else "",
            f"loss {_number(event.loss, '.4f')}",
            f"lr {_number(event.lr, '.3g')}",
            f"{pace:.2f} s/it",
            f"{span(event.left(pace))} left",
            _memory(event),
        ]
        return "  ".join(part for part in parts if part)


def sentence_of(event: Event) -> str:
    """Returns the line of an event other than a step, or ""."""
    match event:
        case Note():
            return event.text
        case CheckpointSaved():
            return f"saved step {event.step}"
        case SampleReady():
            return f"preview at step {event.step}: {event.file}"
        case StepSkipped():
            return f"step {event.step} skipped: {event.reason}"
        case Evaluated():
            held_out = "held-out clips" if event.held_out else "training clips"
            return f"loss of {held_out} at step {event.step}: {loss_text(event.eval_loss)}"
        case StageEnded(stage="load"):
            return f"weights loaded in {span(event.seconds or 0.0)}"
        case Suggested() if event.best is not None:
            return f"best so far: step {event.best}. {event.why}"
        case Finished():
            reason = event.result.get("reason")
            ended = f"{event.state} at step {event.step}" + (f": {reason}" if reason else "")
            use = closing_line(event.result.get("use"), event.result.get("template"))
            return f"{ended}. {use}" if use else ended
        case _:
            return ""  # a failure is printed on stderr


def closing_line(use: object, template: object) -> str:
    """Returns instructions for using the LoRA: model, strength, template, trigger word; "" if a run has no LoRA."""
    said: list[str] = []
    words = ""
    for one in cast("list[Any]", use) if isinstance(use, list) else []:
        words = one.get("trigger", words)
        under = " under it" if "strength" in one else ""
        said.append(f"{one['lora']} on {one['model']} at strength {one.get('strength', 1.0):g}{under}")
    graph = f", in ComfyUI's template {template}" if template else ""
    exact = ", or with Apply Wan LoRA, which is exact on quantized models too" if template else ""
    prompt = f". Write {words} into the prompt" if words else ""
    return f"Load with LoraLoaderModelOnly{graph}{exact}: {', '.join(said)}{prompt}" if said else ""


def loss_text(value: float | None) -> str:
    """Returns an evaluation loss as text; None stands for a value that is not finite, as in JSON."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4f}"


def span(seconds: float) -> str:
    """Returns seconds as 0:07, 12:05 or 3:02:01."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def _number(value: float | None, digits: str) -> str:
    """Returns a formatted number; "nan" for None, which stands for a value that is not finite, as in JSON."""
    return "nan" if value is None else format(value, digits)


def _epochs(event: StepDone) -> str:
    """Returns the epochs done, and the run's total once it is accurate, after a tenth of the first epoch. A pair's
    total is unknown.
    """
    sure = event.epoch >= 0.1 and event.expert not in ("high", "low")
    end = f" of {event.epoch * event.steps / event.step:.1f}".removesuffix(".0") if sure else ""
    return f"{event.epoch:.1f}{end}"


def _memory(event: StepDone) -> str:
    held = [values.get("peak") or values.get("now") or 0 for values in event.memory.values()]
    return f"{max(held) / _GIB:.1f} GiB" if any(held) else ""
