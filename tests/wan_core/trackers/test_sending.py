"""A run ends without waiting for those who are told of it; what the mirror lacks is copied later."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.forked import ForkServer
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.cli.send import settings_file
from wan_core.errors import ConfigError, ExitCode
from wan_core.events import CheckpointSaved, Event, Note, StepDone
from wan_core.files import is_locked
from wan_core.trackers import with_trackers
from wan_core.trackers.mirror import Mirror
from wan_core.trackers.settings import MirrorSettings
from wan_core.train import SaveStore, TrainConfig

SAVED = CheckpointSaved(step=2, folder="saves/step-000002")


def a_run(runs: Path, name: str) -> None:
    (runs / name / "saves").mkdir(parents=True)
    (runs / name / "run.json").write_text("{}")


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- what hangs


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    usual = {"save_every_n_steps": 2, "preview_every_n_steps": 0, **ONE_LOOK}
    return make_run(tmp_path, train=TrainConfig(steps=4, lr_scheduler="constant", **usual))  # type: ignore[arg-type]


IMPATIENT = """
import sys
from wan_core.__main__ import main
from wan_core.trackers import tracked

tracked._MOMENT_S = 1.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="a pipe with a name stands for storage that hangs")
def test_a_run_ends_while_its_mirror_hangs_and_the_copy_follows(
    server: ForkServer, run: TinyRun, tmp_path: Path
) -> None:
    there = tmp_path / "mirror" / run.directory.name
    hanging = there / "step-000002" / "lora.safetensors"
    hanging.parent.mkdir(parents=True)
    os.mkfifo(hanging)
    settings = tmp_path / "trackers.json"
    settings.write_text(json.dumps({"mirror": {"url": (tmp_path / "mirror").as_uri()}}))
    options = ("--roots", str(run.roots_file), "--trackers", str(settings), "--send-later")
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    ended = server.run(script, "train", str(run.directory), *options)
    assert ended.returncode == ExitCode.DONE
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert "The mirror had not received everything" in events[-1]["text"]
    assert not is_locked(run.directory / ".lock")
    copied = hanging.read_bytes()  # from here on it takes what it is given
    assert copied == (run.directory / "saves" / "step-000002" / "lora.safetensors").read_bytes()
    whole = ["step-000002", "step-000004"]
    until(lambda: sorted(path.parent.name for path in there.glob("*/manifest.json")) == whole)


STEP = StepDone(step=1, steps=4, loss=0.5, lr=1e-4, grad_norm=1.0, seconds=1.0, expert="", timestep_mean=1.0)


def test_a_tracker_that_never_finishes_does_not_hold_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, over, logged = make_run(tmp_path), threading.Event(), list[tuple[int, float]]()

    def log(figures: dict[str, float], step: int) -> None:
        logged.append((step, figures["train/loss"]))

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=lambda **_: None, log=log, finish=over.wait))
    monkeypatch.setattr("wan_core.trackers.tracked._MOMENT_S", 1.0)
    file = tmp_path / "trackers.json"
    file.write_text(json.dumps({"tracker": {"kind": "trackio"}, "tensorboard": {"enabled": False}}))
    heard: list[Event] = []
    with with_trackers(heard.append, run.directory, file, waits=False) as tell:
        tell(STEP)
    assert [event.text[:34] for event in heard if isinstance(event, Note)] == ["trackio had not received everythin"]
    assert logged == [(1, 0.5)]
    over.set()


# ---- the mirror, and the command


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_a_mirror_follows_no_link(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    runs = tmp_path / "runs"
    a_run(runs, "cat")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "manifest.json").write_text("secret")
    (runs / "cat" / "saves" / "step-000001").symlink_to(tmp_path / "secret")
    step = runs / "cat" / "saves" / "step-000002"
    step.mkdir()
    (step / "manifest.json").write_text("{}")
    (step / "lora.safetensors").symlink_to(tmp_path / "secret" / "manifest.json")
    (runs / "cat" / "metrics.jsonl").symlink_to(tmp_path / "secret" / "manifest.json")
    mirror = Mirror(MirrorSettings(url=(tmp_path / "mirror").as_uri()), runs / "cat")
    mirror.begin()
    mirror.take(SAVED)
    found = {str(file.relative_to(tmp_path / "mirror")) for file in (tmp_path / "mirror").rglob("*") if file.is_file()}
    assert found == {"cat/run.json", "cat/step-000002/manifest.json"}


def test_the_command_copies_what_the_mirror_lacks_and_says_what_it_could_not(
    server: ForkServer, run: TinyRun, tmp_path: Path
) -> None:
    SaveStore(run.directory).commit(2, run.config.job_id, b"lora", {"a": torch.zeros(1)}, {"step": 2})
    settings = tmp_path / "trackers.json"
    settings.write_text(json.dumps({"mirror": {"url": (tmp_path / "mirror").as_uri()}}))
    ended = server.command("send", str(run.directory), "--trackers", str(settings))
    assert (ended.returncode, json.loads(ended.stdout)) == (ExitCode.DONE, {"version": 1, "saved_steps": 1})
    assert (tmp_path / "mirror" / run.directory.name / "step-000002" / "lora.safetensors").read_bytes() == b"lora"

    shutil.rmtree(tmp_path / "mirror")
    (tmp_path / "mirror").write_text("a file")
    failed = server.command("send", str(run.directory), "--trackers", str(settings))
    assert failed.returncode == ExitCode.BAD_INPUT
    assert "The mirror lacks files: " in failed.stderr
    settings.write_text("{}")
    for options, sentence in (
        (("--trackers", str(settings)), "The settings name no mirror."),
        ((), "No trackers.json was found."),
    ):
        lacking = server.command("send", str(run.directory), *options)
        assert lacking.returncode == ExitCode.BAD_INPUT
        assert sentence in lacking.stderr


def test_the_command_takes_settings_and_messages_from_no_stranger(tmp_path: Path) -> None:
    """A folder that looks like a ComfyUI says nothing of whom to send to."""
    runs = tmp_path / "output" / "wan_trainer"
    a_run(runs, "cat")
    theirs = tmp_path / "user" / "wan_trainer" / "trackers.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    with pytest.raises(ConfigError, match=r"No trackers\.json was found"):
        settings_file(runs / "cat", None)
    assert settings_file(runs / "cat", theirs) == theirs


def test_the_command_knows_the_settings_of_its_own_comfyui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.cli.send._OWN_COMFYUI", tmp_path)
    a_run(tmp_path / "disk", "cat")
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "wan_trainer").symlink_to(tmp_path / "disk")
    ours = tmp_path / "user" / "wan_trainer" / "trackers.json"
    ours.parent.mkdir(parents=True)
    ours.write_text("{}")
    assert settings_file(tmp_path / "disk" / "cat", None) == ours
