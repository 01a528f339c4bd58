"""Save, sample and stop while a run trains: obeyed at the next step, and no finished step is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from safetensors.torch import load_file

import wan_core.train.preview as preview
from tests.support.sessions import NanFrom, Steered, of, same, state, train_here
from tests.support.tiny_run import make_run, steady
from wan_core.control import PipeControl, SignalControl
from wan_core.errors import Stopped
from wan_core.events import CheckpointSaved, DecodeWanted, Event, Finished, SampleReady, StepDone
from wan_core.job.config import read_status
from wan_core.sampler import SampleConfig
from wan_core.train import SaveStore

pytestmark = pytest.mark.lasts(0.3)


@contextmanager
def piped() -> Iterator[tuple[PipeControl, BinaryIO]]:
    """A control at the end of a pipe, and the end to write to."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"):
        control = PipeControl(reader)
        control.listen()
        with os.fdopen(writer, "wb", buffering=0) as pipe:
            yield control, pipe  # type: ignore[misc]
        deadline = time.monotonic() + 5
        while not control.stop_reason() and time.monotonic() < deadline:
            time.sleep(0.001)


def test_a_stop_between_micro_steps_drops_the_step_begun_and_loses_no_other(tmp_path: Path) -> None:
    config = steady(steps=4, gradient_accumulation_steps=4, save_every_n_steps=100)
    straight = make_run(tmp_path / "straight", train=config)
    train_here(straight)
    run = make_run(tmp_path / "stopped", train=config)
    control = Steered()
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepDone) and event.step == 2:
            control.stop_at_question = control.asked + 4  # step 3, its micro-steps 1, 2, 3

    target = NanFrom()
    train_here(run, control, emit=emit, target=target)
    assert target.calls == 2 * 4 + 2
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.state, finished.step, finished.result["saved_step"]) == ("stopped", 2, 2)
    assert read_status(run.directory).reason == "stopped by the user"
    train_here(run)
    assert same(state(run, 4), state(straight, 4))


def test_a_stop_while_loading_or_evaluating_ends_without_a_step(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(eval_items=2))
    for question in (1, 10, 60):  # inside the load, later in it, and in the evaluation of the base
        control = Steered()
        control.stop_at_question = question
        events = train_here(run, control)
        assert events[-1].state == "stopped"  # type: ignore[attr-defined]
        assert not of(events, StepDone)
        assert control.asked == question, "asked on after the answer was stop"
    assert SaveStore(run.directory).steps() == []


def test_save_and_sample_are_obeyed_at_the_next_step_and_once(tmp_path: Path) -> None:
    config = steady(save_every_n_steps=100, preview_every_n_steps=100)
    run = make_run(tmp_path, train=config, preview=SampleConfig(steps=2))
    control = Steered()
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepDone):
            control.commands.update({2: ["save"], 4: ["sample"]}.get(event.step, []))

    train_here(run, control, emit=emit)
    assert [e.step for e in of(events, CheckpointSaved)] == [2, 6]
    assert [e.step for e in of(events, DecodeWanted)] == [0, 4, 6]


def test_previews_can_be_asked_for_only_where_they_are_on(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady())
    control = Steered()
    control.commands["sample"] = 1
    assert of(train_here(run, control), DecodeWanted) == []
    assert control.commands["sample"] == 0


def test_commands_come_through_a_pipe_and_its_end_means_stop() -> None:
    with piped() as (control, pipe):
        pipe.write(b'nonsense\n{"command": "fly"}\n[]\n{"command": "save"}\n{"command": "save"}\n')
        pipe.write(b'{"command": "decoded", "sample_id": "b", "file": "b.mp4"}\n')
        assert control.wait_decoded("b", 5) == {"command": "decoded", "sample_id": "b", "file": "b.mp4"}
        assert control.take("save")
        assert not control.take("save")
        assert control.wait_decoded("a", 0.01) == {"error": "no answer within 0 s"}
        pipe.write(b'{"command": "decoded", "sample_id": "c", "nobody": true}\n')
        assert control.wait_decoded("c", 5) is None, "nobody decodes"
        assert control.stop_reason() == ""
    with pytest.raises(Stopped, match="the parent process ended"):
        control.wait_decoded("a", 5)
    assert control.stop_reason() == "the parent process ended"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs SIGHUP, which Windows does not have")
@pytest.mark.parametrize("control", [SignalControl, None])
def test_a_terminal_that_closes_stops_the_run_as_a_signal_does_unless_nohup_says_otherwise(control: Any) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if control is None else signal.SIG_DFL)
    steered = SignalControl()
    os.kill(os.getpid(), signal.SIGHUP)
    assert steered.stop_reason() == ("" if control is None else "signal SIGHUP")


def test_a_decoder_that_never_answers_costs_the_clip_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "DECODE_TIMEOUT_S", 0.05)
    run = make_run(tmp_path, train=steady(steps=1, preview_every_n_steps=1), preview=SampleConfig(steps=2))
    with piped() as (control, _):
        events = train_here(run, control)
    assert [e.sample_id for e in of(events, DecodeWanted)] == ["step-000000_p0", "step-000001_p0"]
    assert of(events, SampleReady) == []
    assert read_status(run.directory).state == "done"
    for wanted in of(events, DecodeWanted):
        latent = load_file(run.directory / wanted.latent_file)["latent"]
        assert latent.shape == (16, 2, 4, 4)
        assert torch.isfinite(latent).all()
