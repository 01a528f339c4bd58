"""Shows engine events in ComfyUI: progress bar with preview, and `wan_trainer.status` messages for the page."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import comfy.utils
from PIL import Image

from ...wan_core.errors import WanTrainerError
from ...wan_core.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Finished,
    Note,
    SampleReady,
    Stage,
    StepDone,
    StepSkipped,
)
from ...wan_core.run_lines import RunLines
from ...wan_core.train import EXPERTS, expert_named
from ...wan_core.words import logger, with_sentences
from .interrupts import CancelButton

_STATUS_EVENT = "wan_trainer.status"
_SENTENCES_EVENT = "wan_trainer.sentences"
_MIN_INTERVAL_S = 0.25
_STAGES = {
    "start": "starting the engine",
    "load": "loading weights",
    "train": "training",
    "evaluate": "measuring the evaluation loss",
    "sample": "rendering a preview",
    "save": "saving",
    "audit": "measuring precision, pass",
}

_log = logger(__name__)


class NodeProgress:
    """Progress bar and status line of one node, throttled, because ComfyUI sends all started nodes with each update."""

    def __init__(
        self,
        node_id: str,
        button: CancelButton | None = None,
        *,
        graph: str = "",
        pictures: bool = True,
        facts: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """`button`: records presses of Cancel; None: ComfyUI's interrupt is raised.

        `graph`: id of the node's workflow (`graph_of`), because graphs share node ids. `pictures`: send preview
        pictures with the bar. `facts`: called for every status, and sent with it.
        """
        self._node_id = node_id
        self._pictures = pictures
        self._facts = facts
        self._button = button
        self._bar: Any = None
        self._total = 0
        self._last_bar = self._last_status = 0.0
        self._preview: Image.Image | None = None
        self._seconds: list[float] = []
        self._lines = RunLines()
        self._status: dict[str, Any] = {"node": node_id, "graph": graph}

    def bar(self, done: int, total: int) -> None:
        now = time.monotonic()
        if total <= 0 or (done < total and now - self._last_bar < _MIN_INTERVAL_S):
            return
        if self._bar is None or total != self._total:
            self._bar, self._total = comfy.utils.ProgressBar(total, node_id=self._node_id), total
        self._last_bar = now
        preview = ("JPEG", self._preview, 512) if self._preview is not None else None
        self._preview = None
        # update_absolute raises ComfyUI's interrupt after Cancel.
        with self._button.listening() if self._button is not None else contextlib.nullcontext():
            self._bar.update_absolute(done, total, preview)

    def show(self, picture: Image.Image) -> None:
        """Send a preview picture with the next update."""
        if self._pictures:
            self._preview, self._last_bar = picture, 0.0

    def say(self, text: str, now: bool = False, about: dict[str, Any] | None = None, **facts: Any) -> None:
        """Send the status line. `about`: `text` as data for translation. `facts`: also sent with later lines."""
        self._status.update(facts, text=text, about=about)
        moment = time.monotonic()
        if now or moment - self._last_status >= _MIN_INTERVAL_S:
            self._last_status = moment
            server = _server()
            prompt = {"prompt_id": str(getattr(server, "last_prompt_id", None) or "")}
            server.send_sync(_STATUS_EVENT, with_sentences({**self._status, **prompt, **self._facts()}))

    def on_event(self, event: Event) -> None:
        """Show an event of the engine, and log its line."""
        about: dict[str, Any]
        # The files of a finished run are published later, under other names.
        logged = replace(event, result={**event.result, "use": None}) if isinstance(event, Finished) else event
        if line := self._lines.line(logged):
            level = logging.WARNING if isinstance(event, Note) and event.level == "warning" else logging.INFO
            run = self._status.get("run")
            _log.log(level, "%s", f"{run}: {line[:1000]}" if run else line[:1000])
        match event:
            case StepDone():
                self._on_step(event)
            case Stage(stage=stage) if stage in _STAGES:
                about, text = {"kind": "stage", "stage": stage}, _STAGES[stage]
                if event.total > 0 and stage != "train":
                    about |= {"done": event.done, "total": event.total}
                    text += f" {event.done}/{event.total}"
                self.say(text, about=about, stage=stage)
            case Evaluated(step=step, eval_loss=loss):
                about = {"kind": "evaluated", "step": step, "eval_loss": loss}
                text = f"step {step}: evaluation loss {_shown(loss)}"
                if event.held_out is False:
                    about["held_out"], text = False, f"{text} on training clips"
                self.say(text, about=about, eval_loss=loss)
            case CheckpointSaved(step=step):
                self.say(f"saved step {step}", now=True, about={"kind": "saved", "step": step}, saved_step=step)
            case SampleReady(step=step):
                self.say(
                    f"preview at step {step}", now=True, about={"kind": "preview", "step": step}, sample=event.file
                )
            case StepSkipped(step=step, reason=reason):
                about = {"kind": "skipped", "step": step, "reason": reason}
                self.say(f"step {step} skipped: {reason}", now=True, about=about)
            case Note():
                self.say(event.text, now=True)
            case Finished(state=state, step=step):
                about = {"kind": "ended", "state": state, "step": step}
                self.say(f"{state} at step {step}", now=True, about=about, state=state)
            case _:
                pass

    def _on_step(self, event: StepDone) -> None:
        self._seconds = [*self._seconds[-19:], event.seconds or 0.0]
        pace = sorted(self._seconds)[len(self._seconds) // 2]  # the median of the last twenty steps
        left = event.left(pace)
        self.bar(event.step, event.steps)
        numbers: dict[str, Any] = {
            "step": event.step,
            "steps": event.steps,
            "loss": event.loss,
            "seconds_per_step": pace,
            "seconds_left": left,
        }
        whose = ""
        if expert_named(event.expert) in EXPERTS:
            numbers["expert"], whose = event.expert, f"{event.expert} noise   "
        self.say(
            f"{whose}step {event.step}/{event.steps}   loss {_shown(event.loss)}   {pace:.2f} s/it   "
            f"{_clock(left)} left",
            now=event.step == event.steps,
            about={"kind": "step", **numbers},
            stage="train",
            **numbers,
        )


def _shown(value: float | None) -> str:
    """Returns a value with four digits; "nan" for None, which stands for NaN and inf."""
    return "nan" if value is None else f"{value:.4f}"


def graph_of(hidden: Any) -> str:
    """Returns the canvas id of the queued workflow; "" for a headless queue."""
    workflow = (hidden.extra_pnginfo or {}).get("workflow")
    return str(workflow.get("id") or "")[:100] if isinstance(workflow, dict) else ""


def current_prompt_id() -> str:
    return str(_server().last_prompt_id)


def announced(error: WanTrainerError) -> str:
    """Sends template and values of a refusal to the page, for translation. Returns the text."""
    said = with_sentences({"text": str(error)})  # ComfyUI's own error event has text only
    with contextlib.suppress(ImportError, AttributeError):  # no server runs
        if said.keys() > {"text"}:
            _server().send_sync(_SENTENCES_EVENT, said)
    return str(error)


def _server() -> Any:
    from server import PromptServer  # only a running ComfyUI has one

    return PromptServer.instance


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
