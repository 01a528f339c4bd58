"""A window of steps is profiled on request, and what is learnt stays the same."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sessions import of, train_here
from tests.support.tiny_run import TINY, TinyRun, make_run
from wan_core.control import SignalControl
from wan_core.events import Event, Note
from wan_core.session.profiling import StepProfiler
from wan_core.train import TrainConfig


class Asking(SignalControl):
    """Is asked for a profile once, after a step."""

    asked = True

    def take(self, command: str) -> bool:
        given, self.asked = command == "profile" and self.asked, self.asked and command != "profile"
        return given


def trained(run: TinyRun, control: SignalControl, steps: int = 0, **options: int) -> list[str]:
    heard = of(train_here(run, control, max_steps=steps, **options), Note)
    return [note.text for note in heard if "profile" in note.text]


def lora_of(run: TinyRun) -> bytes:
    return (run.directory / "saves" / "step-000006" / "lora.safetensors").read_bytes()


@pytest.mark.soak
def test_steps_are_profiled_when_asked_and_learn_the_same(tmp_path: Path) -> None:
    config = TrainConfig(
        steps=6, save_every_n_steps=6, preview_every_n_steps=0, eval_items=0, gradient_checkpointing=False
    )
    shape = replace(TINY, num_layers=1)  # torch reads each operator of a profile for a millisecond
    names = ("plain", "button", "option")
    plain, by_button, by_option = (make_run(tmp_path / name, shape=shape, train=config) for name in names)
    assert trained(plain, SignalControl(signals=False)) == []
    (said,) = trained(by_button, Asking(signals=False))
    assert said.startswith("3 steps profiled: profile/steps-000002-000004.json.gz, ")
    assert lora_of(by_button) == lora_of(plain)

    (said,) = trained(by_option, SignalControl(signals=False), 3, profile_steps=5)
    assert said.startswith("2 steps profiled: profile/steps-000002-000003.json.gz, "), "the session ended before"
    trace = json.loads(gzip.decompress((by_option.directory / "profile" / "steps-000002-000003.json.gz").read_bytes()))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("wan: backward") == names.count("wan: optimizer") == 2
    assert "aten::addmm" in (by_option.directory / "profile" / "steps-000002-000003.txt").read_text("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_a_profile_is_written_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile").symlink_to(tmp_path / "outside")
    heard: list[Event] = []
    profiler = StepProfiler(tmp_path / "run", heard.append)
    profiler.after(0, steps=1)
    profiler.after(1)
    (said,) = [event.text for event in heard if isinstance(event, Note)]
    assert "run/profile is a link or no folder. Move it away" in said
    assert list((tmp_path / "outside").iterdir()) == []
