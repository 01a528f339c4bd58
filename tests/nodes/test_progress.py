"""What a node shows while it works; and ComfyUI's interrupt is never lost, whoever notices it first."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wan_core.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Finished,
    Note,
    SampleReady,
    Stage,
    StageEnded,
    StepDone,
    StepSkipped,
    to_line,
)

pytestmark = pytest.mark.comfy


@pytest.fixture
def nodes_package(pack_nodes: dict[str, Any]) -> str:
    return pack_nodes["TrainLoRA"].__module__.rpartition(".")[0]


@pytest.fixture
def pressed(monkeypatch: pytest.MonkeyPatch, nodes_package: str) -> Any:
    """Cancel is pressed, and ComfyUI's progress hook raises as in a running server."""
    import comfy.utils
    from comfy import model_management as mm

    class Bar:
        def __init__(self, total: int, node_id: str) -> None:
            pass

        def update_absolute(self, *_: object) -> None:
            mm.throw_exception_if_processing_interrupted()

    monkeypatch.setattr(comfy.utils, "ProgressBar", Bar)
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=None)))
    mm.interrupt_current_processing(True)
    yield mm
    mm.interrupt_current_processing(False)


def test_a_node_that_works_in_this_process_is_interrupted(pressed: Any, nodes_package: str) -> None:
    progress = sys.modules[f"{nodes_package}.bridge.progress"].NodeProgress("1")
    with pytest.raises(pressed.InterruptProcessingException):
        progress.bar(1, 2)


def test_a_node_that_follows_a_worker_gets_a_press(pressed: Any, nodes_package: str) -> None:
    button = sys.modules[f"{nodes_package}.bridge.interrupts"].CancelButton()
    sys.modules[f"{nodes_package}.bridge.progress"].NodeProgress("1", button).bar(1, 2)
    assert button.pressed()
    assert not button.pressed(), "one press is one press"


LINES = json.loads(Path(__file__).with_name("status_lines.json").read_text(encoding="utf-8"))
"""what the server says and the facts it comes with; tests/web/run/line.test.mjs makes the texts from the facts"""

STEP: dict[str, Any] = {"lr": 1e-4, "grad_norm": 1.0, "seconds": 2.5, "expert": "auto", "timestep_mean": 500.0}

EVENTS: list[Event] = [
    Stage(stage="start"),
    Stage(stage="load", done=50, total=300),
    Stage(stage="train", done=2, total=40),
    Stage(stage="evaluate"),
    Stage(stage="sample", done=3, total=20),
    Stage(stage="save"),
    Stage(stage="audit", done=2, total=9),
    StepDone(step=3, steps=43, loss=0.125, **STEP),
    Evaluated(step=8, eval_loss=0.0625),
    Evaluated(step=8, eval_loss=math.nan),
    Evaluated(step=8, eval_loss=0.0625, held_out=False),
    Evaluated(step=8, eval_loss=0.0625, held_out=True),
    CheckpointSaved(step=8, folder="saves/step-000008"),
    SampleReady(sample_id="step-000008_p0", step=8, file="samples/step-000008_p0.mp4"),
    StepSkipped(step=9, reason="the gradients are not finite", in_a_row=1),
    Finished(state="stopped", step=9),
    Note(text="Resumes after saved step 8 of 40."),
]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, nodes_package: str) -> list[dict[str, Any]]:
    """Every message; none is left out because it comes too soon after another."""
    messages: list[dict[str, Any]] = []
    instance = SimpleNamespace(send_sync=lambda _event, data: messages.append(data), last_prompt_id="p1")
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    module = sys.modules[f"{nodes_package}.bridge.progress"]
    monkeypatch.setattr(module, "_MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr("comfy.utils.ProgressBar", lambda *_, **__: SimpleNamespace(update_absolute=lambda *_: None))
    return messages


def test_every_status_comes_with_the_facts_it_says(sent: list[dict[str, Any]], nodes_package: str) -> None:
    progress = sys.modules[f"{nodes_package}.bridge.progress"].NodeProgress("1")
    events = sys.modules[f"{nodes_package.rpartition('.')[0]}.wan_core.events"]  # ComfyUI's copy: other classes
    for event in EVENTS:
        progress.on_event(events.parse_event(to_line(event)))
    assert [{"text": s["text"], "about": s["about"]} for s in sent] == LINES["events"]


def test_no_number_of_an_event_needs_to_be_finite(sent: list[dict[str, Any]], nodes_package: str) -> None:
    """On its way out of the worker what is not finite becomes null."""
    progress = sys.modules[f"{nodes_package}.bridge.progress"].NodeProgress("1")
    events = sys.modules[f"{nodes_package.rpartition('.')[0]}.wan_core.events"]
    numbers = dict.fromkeys(("loss", "lr", "grad_norm", "seconds", "timestep_mean", "tflops"), math.nan)
    for event in (
        StepDone(step=1, steps=2, expert="auto", **numbers),
        Evaluated(step=1, eval_loss=math.nan, per_timestep={"500": math.nan}),
        StageEnded(stage="load", seconds=math.nan, step=0),
    ):
        progress.on_event(events.parse_event(to_line(event)))
    assert [s["text"] for s in sent] == [
        "step 1/2   loss nan   0.00 s/it   0:00 left", "step 1: evaluation loss nan",
    ]  # fmt: skip


def test_a_text_without_facts_does_not_keep_those_of_the_one_before(
    sent: list[dict[str, Any]], nodes_package: str
) -> None:
    progress = sys.modules[f"{nodes_package}.bridge.progress"].NodeProgress("1")
    progress.say("saved step 8", about={"kind": "saved", "step": 8}, saved_step=8)
    progress.say("free words")
    assert [(s["about"], s["saved_step"]) for s in sent] == [({"kind": "saved", "step": 8}, 8), (None, 8)]
