"""A run ends without waiting for the process that sends; what the mirror lacks is copied later."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.forked import ForkServer
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.cli.send import settings_file
from wan_core.errors import ConfigError, ExitCode
from wan_core.events import CheckpointSaved, Event, Finished, Note, StepDone, to_line
from wan_core.files import is_locked
from wan_core.trackers import with_trackers
from wan_core.trackers.figures import About
from wan_core.trackers.mirror import Mirror
from wan_core.trackers.sender import serve
from wan_core.trackers.settings import MirrorSettings, ServerSettings, WebhookSettings
from wan_core.train import SaveStore, TrainConfig

SAVED = CheckpointSaved(step=2, folder="saves/step-000002")
DONE = Finished(state="done", step=4)


class Posts(BaseHTTPRequestHandler):
    """Remembers the texts that were posted while its server is up; else answers 503."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.up:  # type: ignore[attr-defined]
            self.server.posted.append(body["text"])  # type: ignore[attr-defined]
        self.send_response(204 if self.server.up else 503)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.setattr("wan_core.trackers.webhook._PAUSES_S", ())
    server = HTTPServer(("127.0.0.1", 0), Posts)
    server.posted, server.up = [], True  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/key"
    yield SimpleNamespace(url=url, server=server, posted=server.posted)  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def a_run(runs: Path, name: str) -> About:
    (runs / name / "saves").mkdir(parents=True)
    (runs / name / "run.json").write_text("{}")
    return About(folder=name, name=name, steps=4)


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
    ended = server.command("train", str(run.directory), *options)
    assert ended.returncode == ExitCode.DONE
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert "Some messages of this run are not sent yet." in events[-1]["text"]
    assert not is_locked(run.directory / ".lock")
    copied = hanging.read_bytes()  # from here on it takes what it is given
    assert copied == (run.directory / "saves" / "step-000002" / "lora.safetensors").read_bytes()
    whole = ["step-000002", "step-000004"]
    until(lambda: sorted(path.parent.name for path in there.glob("*/manifest.json")) == whole)


def test_the_run_hears_what_goes_wrong_and_its_log_once_it_has_ended(tmp_path: Path, hook: SimpleNamespace) -> None:
    hook.server.up = False
    run = make_run(tmp_path)
    settings = ServerSettings(webhook=WebhookSettings(url=hook.url, allow_private=True))
    about = About(folder=run.directory.name, name="cat", steps=4)
    lines = json.dumps(vars(about)) + "\n" + to_line(DONE)
    said = BytesIO()
    serve(run.directory, settings, BytesIO(lines.encode()), said)
    sentences = [json.loads(line)["said"] for line in said.getvalue().splitlines()]
    assert sentences == [
        "The webhook failed, and the training continues: 127.0.0.1 answered 503. Check the address and its key.",
    ]
    nobody = BytesIO()
    nobody.close()
    serve(run.directory, settings, BytesIO(lines.encode()), nobody)
    log = (run.directory / "log.txt").read_text().splitlines()
    assert [line.partition("WARNING wan_trainer: ")[2][:32] for line in log] == ["The webhook failed, and the trai"]
    assert "/key" not in "".join(log)


STEP = StepDone(step=1, steps=4, loss=0.5, lr=1e-4, grad_norm=1.0, seconds=1.0, expert="", timestep_mean=1.0)


def test_a_sender_that_dies_ends_nothing(tmp_path: Path, hook: SimpleNamespace) -> None:
    run = make_run(tmp_path)
    file = tmp_path / "trackers.json"
    address = {"url": hook.url, "allow_private": True}
    file.write_text(json.dumps({"webhook": address, "tensorboard": {"enabled": False}}))
    heard: list[Event] = []
    with with_trackers(heard.append, run.directory, file, waits=True) as tell:
        tell(SAVED)
        until(lambda: hook.posted)
        (companion,) = tell._deliveries
        companion._line._process.kill()  # type: ignore[union-attr]
        companion._line._process.wait()  # type: ignore[union-attr]
        tell(STEP)
        tell(DONE)
    (note,) = (event.text for event in heard if isinstance(event, Note))
    assert note.startswith(
        "The process that sends this run's messages failed, and the training continues: it has ended, and later "
        "messages "
    )
    assert "python wan_core/launch.py send RUN" in note
    assert [event for event in heard if not isinstance(event, Note)] == [SAVED, STEP, DONE]


def test_a_tracker_that_never_finishes_does_not_hold_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    library = tmp_path / "library"
    library.mkdir()
    (library / "trackio.py").write_text(
        f"""import pathlib, time
def init(**_): pass
def log(figures, step):
    with open({str(library / "figures")!r}, "a") as file: file.write(f"{{step}} {{figures['train/loss']}};")
def finish():
    pathlib.Path({str(library / "finishing")!r}).touch()
    while not pathlib.Path({str(library / "over")!r}).exists(): time.sleep(0.02)
    pathlib.Path({str(library / "finished")!r}).touch()
"""
    )
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.setenv("PYTHONPATH", str(library))
    file = tmp_path / "trackers.json"
    file.write_text(json.dumps({"tracker": {"kind": "trackio"}, "tensorboard": {"enabled": False}}))
    heard: list[Event] = []
    with with_trackers(heard.append, run.directory, file, waits=False) as tell:
        tell(STEP)
    assert [event.text[:33] for event in heard if isinstance(event, Note)] == ["Some messages of this run are not"]
    until((library / "finishing").exists)
    assert (library / "figures").read_text() == "1 0.5;"
    assert not (library / "finished").exists()
    (library / "over").touch()
    until((library / "finished").exists)


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
