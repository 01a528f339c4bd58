"""What is sent by a process of its own: a run ends without waiting for it, and what was not taken is sent later."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.forked import ForkServer
from tests.support.held import holding
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.cli.send import settings_file
from wan_core.errors import ConfigError, ExitCode
from wan_core.events import CheckpointSaved, Event, Finished, Note, StepDone, to_line
from wan_core.files import is_locked
from wan_core.trackers import with_trackers
from wan_core.trackers.figures import About
from wan_core.trackers.mirror import Mirror
from wan_core.trackers.outbox import Outbox
from wan_core.trackers.sender import send_what_waits, serve
from wan_core.trackers.settings import MirrorSettings, ServerSettings, WebhookSettings
from wan_core.trackers.webhook import Webhook
from wan_core.train import TrainConfig

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


def webhook(url: str, runs: Path, about: About) -> Webhook:
    return Webhook(WebhookSettings(url=url, allow_private=True, shape="slack"), runs, about)


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- what waits


def test_what_was_not_taken_goes_with_the_next_run_and_before_it(tmp_path: Path, hook: SimpleNamespace) -> None:
    first, second = a_run(tmp_path, "first"), a_run(tmp_path, "second")
    hook.server.up = False
    down = webhook(hook.url, tmp_path, first)
    for event in (SAVED, DONE):
        down.keep(event)
    with pytest.raises(Exception, match="answered 503"):
        down.take(DONE)
    assert (hook.posted, len(down.outbox.waiting())) == ([], 2)
    hook.server.up = True
    lines = BytesIO("".join([json.dumps(vars(second)) + "\n", to_line(DONE)]).encode())
    said = BytesIO()
    settings = ServerSettings(webhook=WebhookSettings(url=hook.url, allow_private=True, shape="slack"))
    serve(tmp_path / "second", settings, lines, said)
    assert hook.posted == [
        "first: step 2 of 4 is saved.", "first: done at step 4 of 4.", "second: done at step 4 of 4.",
    ]  # fmt: skip
    assert down.outbox.waiting() == []
    (line,) = said.getvalue().splitlines()
    assert json.loads(line)["said"].startswith("The webhook had not taken 2 messages before this run began.")


def test_nothing_is_sent_of_a_run_that_was_deleted_or_that_somebody_else_sends(
    tmp_path: Path, hook: SimpleNamespace
) -> None:
    about = a_run(tmp_path, "mine")
    mine = webhook(hook.url, tmp_path, about)
    mine.keep(SAVED)
    with Outbox(tmp_path, "webhook").alone() as alone:
        assert alone
        mine.take(SAVED)
    assert (hook.posted, len(mine.outbox.waiting())) == ([], 1)
    (tmp_path / "mine" / "run.json").unlink()
    mine.take(SAVED)
    assert (hook.posted, mine.outbox.waiting()) == ([], [])
    assert sorted(os.listdir(tmp_path / "mine")) == ["saves"], "nothing of it is made again"


def test_a_name_that_is_far_ahead_holds_no_message_up(tmp_path: Path) -> None:
    box = Outbox(tmp_path, "webhook")
    box.put({"number": 0})
    (tmp_path / "_outbox" / f"{'9' * 20}.webhook.json").write_text("{}")
    for number in (1, 2):
        box.put({"number": number})
    assert [(box.read(file) or {}).get("number") for file in box.waiting()] == [0, 1, 2, None]


def test_a_message_that_a_program_holds_open_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box, held = Outbox(tmp_path, "webhook"), holding(monkeypatch)
    for number in range(2):
        box.put({"number": number})
    first, second = box.waiting()
    held.add(first.name)
    box.remove(first)
    assert box.waiting() == [second]
    assert first.exists()
    held.clear()
    assert box.waiting() == [second]
    assert not first.exists(), "it goes at the next look"


def test_the_outbox_keeps_the_newest_and_passes_over_what_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wan_core.trackers.outbox._MOST", 3)
    box = Outbox(tmp_path, "webhook")
    for number in range(5):
        box.put({"number": number})
    assert [box.read(file) for file in box.waiting()] == [{"number": number} for number in (2, 3, 4)]
    box.waiting()[0].write_bytes(b'{"number": ')
    assert [box.read(file) for file in box.waiting()] == [None, {"number": 3}, {"number": 4}]
    assert len(box.waiting()) == 2, "a torn one is removed"
    assert Outbox(tmp_path, "mirror").waiting() == []


# ---- what hangs


@pytest.mark.parametrize("kind", ["silent", "drops", "name"])
def test_a_try_ends_in_its_time_whatever_hangs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("wan_core.trackers.webhook._PAUSES_S", ())
    monkeypatch.setattr("wan_core.trackers.webhook._TIMEOUT_S", 0.3)
    over = threading.Event()
    request.addfinalizer(over.set)
    listening = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(listening.close)
    ended: list[int] = []

    def answer() -> None:
        with listening.accept()[0] as connection:
            connection.recv(1 << 16)
            for byte in b"HTTP/1.1 204 No Content\r\nX-Drops: " + b"a" * 10_000 if kind == "drops" else b"":
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    break
                over.wait(0.05)
            while connection.recv(1 << 16):
                pass
            ended.append(1)

    if kind == "name":
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30))
    else:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
    port = listening.getsockname()[1]
    hanging = webhook(f"http://127.0.0.1:{port}/x", tmp_path, a_run(tmp_path, "cat"))
    hanging.keep(SAVED)
    with pytest.raises(Exception, match=r"127\.0\.0\.1 did not answer within 0 s"):
        hanging.take(SAVED)
    assert len(hanging.outbox.waiting()) == 1
    if kind != "name":
        thread.join(10)
        assert ended == [1], "the connection is given up, too"


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
    waiting = Outbox(run.directory.parent, "mirror").waiting()
    assert len(waiting) == 3, "two saved steps, and the end"

    copied = hanging.read_bytes()  # from here on it takes what it is given
    assert copied == (run.directory / "saves" / "step-000002" / "lora.safetensors").read_bytes()
    until(lambda: not Outbox(run.directory.parent, "mirror").waiting())
    assert sorted(path.parent.name for path in there.glob("*/manifest.json")) == ["step-000002", "step-000004"]


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
        "The webhook failed, and the training continues: 127.0.0.1 answered 503. Look at the address and its key.",
        "The webhook has not taken 1 message. What is kept is sent with the next run in this folder, or by: "
        "python wan_core/launch.py send RUN",
    ]
    nobody = BytesIO()
    nobody.close()
    serve(run.directory, settings, BytesIO(lines.encode()), nobody)
    log = (run.directory / "log.txt").read_text().splitlines()
    assert [line.partition("WARNING wan_trainer: ")[2][:32] for line in log] == [
        "The webhook had not taken 1 mess", "The webhook failed, and the trai", "The webhook has not taken 2 mess",
    ]  # fmt: skip
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
    mirror.keep(SAVED)
    mirror.take(SAVED)
    found = {str(file.relative_to(tmp_path / "mirror")) for file in (tmp_path / "mirror").rglob("*") if file.is_file()}
    assert found == {"cat/run.json", "cat/step-000002/manifest.json"}


def test_the_command_sends_what_waits_and_says_what_it_could_not(
    server: ForkServer, run: TinyRun, tmp_path: Path, hook: SimpleNamespace
) -> None:
    about = About(folder=run.directory.name, name="tiny", steps=4)
    webhook(hook.url, run.directory.parent, about).keep(DONE)
    settings = tmp_path / "trackers.json"
    address = {"url": hook.url, "allow_private": True}
    settings.write_text(json.dumps({"webhook": address, "mirror": {"url": (tmp_path / "mirror").as_uri()}}))
    ended = server.command("send", str(run.directory), "--trackers", str(settings))
    taken = {"sent": 1, "waiting": 0, "why": ""}
    assert json.loads(ended.stdout) == {"version": 1, "webhook": taken, "mirror": taken}
    assert (ended.returncode, hook.posted) == (ExitCode.DONE, ["tiny: done at step 4 of 4."])
    assert (tmp_path / "mirror" / run.directory.name / "run.json").is_file()

    hook.server.up = False
    webhook(hook.url, run.directory.parent, about).keep(DONE)
    found: Any = send_what_waits(run.directory, ServerSettings(webhook=WebhookSettings(**address)), about)
    assert found["webhook"]["waiting"] == 1
    assert found["webhook"]["why"].startswith("127.0.0.1 answered 503.")
    lacking = server.command("send", str(run.directory))
    assert lacking.returncode == ExitCode.BAD_INPUT
    assert "No trackers.json says whom to send to." in lacking.stderr


def test_the_command_takes_settings_and_messages_from_no_stranger(tmp_path: Path) -> None:
    """A folder that looks like a ComfyUI says nothing of whom to send to; what waits in the folder of a run is not
    sent.
    """
    runs = tmp_path / "output" / "wan_trainer"
    a_run(runs, "cat")
    a_run(runs / "cat", "inner")
    theirs = tmp_path / "user" / "wan_trainer" / "trackers.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    with pytest.raises(ConfigError, match=r"No trackers\.json says whom to send to"):
        settings_file(runs / "cat", None)
    assert settings_file(runs / "cat", theirs) == theirs
    with pytest.raises(ConfigError, match=r"^cat is a run itself"):
        settings_file(runs / "cat" / "inner", theirs)


def test_the_command_knows_the_settings_of_its_own_comfyui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.cli.send._OWN_COMFYUI", tmp_path)
    a_run(tmp_path / "disk", "cat")
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "wan_trainer").symlink_to(tmp_path / "disk")
    ours = tmp_path / "user" / "wan_trainer" / "trackers.json"
    ours.parent.mkdir(parents=True)
    ours.write_text("{}")
    assert settings_file(tmp_path / "disk" / "cat", None) == ours
