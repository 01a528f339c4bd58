"""Who else is told of a run, what they are told, and that nothing they do changes it."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.forked import ForkServer
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.errors import ConfigError, DependencyError, ExitCode, TrainingError
from wan_core.events import CheckpointSaved, Evaluated, Event, Failed, Finished, Note, StepDone
from wan_core.files import FileError
from wan_core.packages import version_of
from wan_core.trackers import ServerSettings
from wan_core.trackers.delivery import Delivery
from wan_core.trackers.figures import About, figures_of
from wan_core.trackers.hosted import TensorBoard
from wan_core.trackers.settings import MirrorSettings, WebhookSettings
from wan_core.trackers.tracked import Tracked, trackers_of
from wan_core.trackers.webhook import Unreachable, Webhook
from wan_core.train import SaveStore, TrainConfig

ABOUT = About(folder="cat-0123", name="cat", steps=100)
STEP = StepDone(
    step=7, steps=100, loss=0.25, lr=1e-4, grad_norm=0.5, seconds=2.0, expert="single", timestep_mean=500.0,
    tokens=640, clips=2, memory={"cuda:0": {"now": 2**30, "peak": 2**31}},
)  # fmt: skip


class Posts(BaseHTTPRequestHandler):
    """Remembers what was posted; answers what its server was told to."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, json.loads(body)))  # type: ignore[attr-defined]
        answers: list[int] = self.server.answers  # type: ignore[attr-defined]
        status = answers.pop(0) if answers else 204
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://169.254.169.254/latest/meta-data/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[SimpleNamespace]:
    server = HTTPServer(("127.0.0.1", 0), Posts)
    server.posted, server.answers = [], []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/hooks/key"
    yield SimpleNamespace(url=url, posted=server.posted, answers=server.answers)  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    usual = {"save_every_n_steps": 2, "preview_every_n_steps": 0, **ONE_LOOK}
    return make_run(tmp_path, train=TrainConfig(steps=4, lr_scheduler="constant", **usual))  # type: ignore[arg-type]


def train(server: ForkServer, run: TinyRun, *options: str) -> int:
    return server.command("train", str(run.directory), "--roots", str(run.roots_file), *options).returncode


# ---- what is told


def test_figures_have_names_units_and_the_expert_of_a_pair() -> None:
    found = figures_of(STEP)
    assert found["train/loss"] == 0.25
    assert found["speed/tokens_per_second"] == 320.0
    assert found["speed/clips_per_hour"] == 3600.0
    assert (found["memory/cuda:0/now_gib"], found["memory/cuda:0/peak_gib"]) == (1.0, 2.0)
    of_expert = figures_of(Evaluated(step=7, eval_loss=0.3, per_timestep={"875": 0.1}, expert="high"))
    assert of_expert == {"evaluation/loss/high": 0.3, "evaluation/at_timestep/high/875": 0.1}
    assert figures_of(Evaluated(step=7, eval_loss=None)) == {}
    bad = Evaluated(step=7, eval_loss=math.nan, per_timestep={"125": 0.2, "875": math.inf})
    assert figures_of(bad) == {"evaluation/at_timestep/125": 0.2}, "in the worker what is not finite is not yet null"


def test_a_run_with_a_webhook_and_a_mirror_tells_both_and_writes_event_files(
    server: ForkServer, run: TinyRun, hook: SimpleNamespace, tmp_path: Path
) -> None:
    settings = tmp_path / "trackers.json"
    mirror = tmp_path / "mirror"
    settings.write_text(
        json.dumps(
            {"webhook": {"url": hook.url, "allow_private": True}, "mirror": {"url": mirror.as_uri(), "state": True}}
        )
    )
    assert train(server, run, "--trackers", str(settings)) == ExitCode.DONE
    assert [(path, body["event"]) for path, body in hook.posted] == [
        ("/hooks/key", "saved"), ("/hooks/key", "saved"), ("/hooks/key", "finished"),
    ]  # fmt: skip
    last = hook.posted[-1][1]
    assert (last["run"], last["run_name"], last["step"], last["steps"]) == (run.directory.name, "tiny", 4, 4)
    assert last["text"].startswith("tiny: done at step 4 of 4, loss ")
    assert str(tmp_path) not in json.dumps(hook.posted)

    there = mirror / run.directory.name
    for step in ("step-000002", "step-000004"):
        here = run.directory / "saves" / step
        names = {file.name for file in here.iterdir()}
        assert names == {file.name for file in (there / step).iterdir()}
        assert all((here / name).read_bytes() == (there / step / name).read_bytes() for name in names)
    assert (there / "metrics.jsonl").read_bytes() == (run.directory / "metrics.jsonl").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_event_files_are_written_through_no_link(tmp_path: Path) -> None:
    if not version_of("tensorboard"):
        pytest.skip("tensorboard is not installed")
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "outside")
    with pytest.raises(FileError, match="run/tensorboard is a link or a file"):
        TensorBoard(tmp_path / "run", ABOUT, 1, 10).begin()
    assert list((tmp_path / "outside").iterdir()) == []


def test_event_files_hold_the_curve_and_a_resume_takes_back_what_it_does_again(
    server: ForkServer, run: TinyRun
) -> None:
    if not version_of("tensorboard"):
        pytest.skip("tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def curve() -> list[tuple[int, float]]:
        read = EventAccumulator(str(run.directory / "tensorboard"), purge_orphaned_data=True)
        read.Reload()
        return [(point.step, pytest.approx(point.value)) for point in read.Scalars("train/loss")]

    def losses() -> list[tuple[int, float]]:
        lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
        return [(line["step"], line["loss"]) for line in lines if line["event"] == "step"]

    assert train(server, run, "--max-steps", "3") == ExitCode.STOPPED
    assert losses() == curve() != []
    for folder in sorted((run.directory / "saves").iterdir())[1:]:  # a kill after step 3, whose save was step 2
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert SaveStore(run.directory).steps() == [2]
    assert train(server, run) == ExitCode.DONE
    assert [step for step, _ in losses()] == [1, 2, 3, 3, 4]
    assert curve() == losses()[:2] + losses()[3:]


# ---- what goes wrong there


class Failing:
    title = "The test"
    patience_s = 5.0

    def __init__(self, fails: set[str], slow_s: float = 0.0) -> None:
        self.fails, self.slow_s, self.taken = fails, slow_s, list[Event]()

    def begin(self) -> None:
        if "begin" in self.fails:
            raise OSError("no route to host, key wandb_0123456789abcdef0123")

    def take(self, event: Event) -> None:
        time.sleep(self.slow_s)
        self.taken.append(event)
        if "take" in self.fails:
            raise SystemExit("no key")

    def end(self) -> None:
        if "end" in self.fails:
            raise RuntimeError("cannot end")


@pytest.mark.parametrize("fails", ["begin", "take", "end"])
def test_a_failure_is_said_once_without_a_key_and_ends_nothing(fails: str) -> None:
    heard: list[Event] = []
    with Tracked(heard.append, [Delivery(Failing({fails}))]) as tell:
        for _ in range(5):
            tell(STEP)
            time.sleep(0.02)
    notes = [event.text for event in heard if isinstance(event, Note)]
    assert [event for event in heard if not isinstance(event, Note)] == [STEP] * 5
    assert len(notes) == 1
    assert notes[0].startswith("The test failed, and the training continues: ")
    assert "wandb_" not in notes[0]


def test_nobody_waits_for_a_slow_one_until_the_end_of_the_run() -> None:
    slow = Failing(set(), slow_s=0.05)
    began = time.monotonic()
    with Tracked(lambda _: None, [Delivery(slow)]) as tell:
        for _ in range(6):
            tell(STEP)
        assert time.monotonic() - began < 0.05 * 6
    assert slow.taken == [STEP] * 6


def test_a_slow_one_misses_steps_and_never_a_saved_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.trackers.delivery._WAITING", 3)
    saved = [CheckpointSaved(step=step, folder=f"saves/step-{step:06d}") for step in range(3)]
    slow = Failing(set(), slow_s=0.02)
    with Tracked(lambda _: None, [Delivery(slow)]) as tell:
        for one in saved:
            tell(one)
            for _ in range(20):
                tell(STEP)
    assert [event for event in slow.taken if isinstance(event, CheckpointSaved)] == saved
    assert slow.taken.count(STEP) < 10


def test_a_destination_that_hangs_is_left_behind() -> None:
    hanging = Failing(set(), slow_s=60.0)
    hanging.patience_s = 0.2
    heard: list[Event] = []
    with Tracked(heard.append, [Delivery(hanging)]) as tell:
        tell(STEP)
    (note,) = (event for event in heard if isinstance(event, Note))
    assert note.text.startswith("The test had not received everything 0 s after the run ended.")


def test_a_run_that_fails_is_told_and_its_error_is_the_same() -> None:
    destination = Failing(set())
    with pytest.raises(TrainingError, match="5 steps"), Tracked(lambda _: None, [Delivery(destination)]):
        raise TrainingError("5 steps in a row had non-finite loss.")
    (failed,) = destination.taken
    assert isinstance(failed, Failed)
    assert (failed.message, failed.kind) == ("5 steps in a row had non-finite loss.", "TrainingError")


# ---- the webhook


def posted_by(hook: SimpleNamespace, event: Event, **settings: Any) -> list[Any]:
    Webhook(WebhookSettings(url=hook.url, allow_private=True, **settings), ABOUT).take(event)
    return [body for _, body in hook.posted]


def test_a_webhook_speaks_as_its_service_reads(hook: SimpleNamespace) -> None:
    event = Finished(state="stopped", step=40, result={"reason": "stopped by the user"})
    sentence = "cat: stopped at step 40 of 100: stopped by the user."
    assert posted_by(hook, event, shape="discord") == [{"content": sentence}]
    assert posted_by(hook, event, shape="slack")[1:] == [{"text": sentence}]
    assert posted_by(hook, STEP)[2:] == [], "a step is not among its events"
    for loss in (math.nan, None):
        told = posted_by(hook, Evaluated(step=40, eval_loss=loss), shape="slack", events=("evaluated",))
        assert told[-1] == {"text": "cat: evaluation loss not finite at step 40."}


def test_a_webhook_tries_three_times_and_follows_nobody(hook: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.trackers.webhook._PAUSES_S", (0.0, 0.0))
    saved = CheckpointSaved(step=2, folder="saves/step-000002")
    hook.answers += [503, 503, 204]
    assert len(posted_by(hook, saved)) == 3
    hook.answers += [302, 302, 302]
    with pytest.raises(Exception, match=r"127\.0\.0\.1 answered 302: it redirects to another address") as caught:
        posted_by(hook, saved)
    assert "key" not in str(caught.value)
    assert len(hook.posted) == 6


def test_an_address_that_does_not_answer_is_named_without_its_key(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("wan_core.trackers.webhook._PAUSES_S", ())
    monkeypatch.setattr("wan_core.trackers.webhook._TIMEOUT_S", 0.2)
    silent = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(silent.close)
    for port in (silent.getsockname()[1], 1):
        webhook = Webhook(WebhookSettings(url=f"http://127.0.0.1:{port}/key", allow_private=True), ABOUT)
        said = ""
        try:  # pytest.raises would keep the connection until its cycle is collected
            webhook.take(CheckpointSaved(step=2, folder="saves/step-000002"))
        except Unreachable as error:
            said = str(error)
        assert re.fullmatch(r"127\.0\.0\.1 did not answer \(.+\)\. Check the address, or wait\.", said)


# ---- the settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"webhok": {}}, 'Unknown setting "webhok".*webhook'),
        ({"webhook": {"url": "http://10.0.0.1/x"}}, "webhook.url does not begin with https://"),
        (
            {"webhook": {"url": "ftp://a.org", "allow_private": True}},
            "webhook.url does not begin with https:// or http",
        ),
        ({"webhook": {"url": "https://a.org", "events": ["step"]}}, 'webhook.events has "step". Known: saved'),
        ({"tracker": {"kind": "neptune"}}, 'kind "neptune" is unknown'),
        ({"tensorboard": {"flush_seconds": 0}}, "flush_seconds 0 is out of range"),
    ],
)
def test_settings_that_mean_nothing_are_refused_with_their_file(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "trackers.json"
    file.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=rf"^trackers\.json: .*{sentence}"):
        ServerSettings.read(file)


def test_what_cannot_be_told_is_refused_before_the_run_begins(run: TinyRun) -> None:
    for url, kind, sentence in (
        ("/mnt/nas", ConfigError, "has no protocol"),
        ("nosuch://x/y", ConfigError, "nosuch://, which fsspec does not know"),
    ):
        with pytest.raises(kind, match=sentence):
            trackers_of(ServerSettings(mirror=MirrorSettings(url=url)), run.directory)
    for url in ("https://", "https://user:word@a.org/x", "https://a.org:port/"):
        with pytest.raises(ConfigError, match="Give the complete address"):
            trackers_of(ServerSettings(webhook=WebhookSettings(url=url)), run.directory)
    if not version_of("trackio"):
        settings = ServerSettings.from_dict({"tracker": {"kind": "trackio"}})
        with pytest.raises(DependencyError, match=r"ask for trackio, which is not installed\. Run: .*pip install"):
            trackers_of(settings, run.directory)
