"""The smallest training under what Windows refuses of files (tests/support/windows): nothing held ends or loses it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.forked import ROOT, ForkServer
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from tests.support.windows_rules import below, held, windows_rules
from wan_core.files import is_partial
from wan_core.job.config import RunStatus, read_status
from wan_core.train import SaveStore, TrainConfig

pytestmark = pytest.mark.lasts(1)
SHORT = TrainConfig(steps=4, save_every_n_steps=2, preview_every_n_steps=0, **ONE_LOOK)  # type: ignore[arg-type]
NO_PATIENCE = (
    "import types\nfrom wan_core.files import inside\ninside.time = types.SimpleNamespace(sleep=lambda _: None)"
)
"""nothing here is held for a moment only"""


@pytest.fixture(scope="module")
def rules() -> Iterator[dict[str, str]]:
    with windows_rules() as environment:
        yield environment


@pytest.fixture(scope="module")
def windows(rules: dict[str, str]) -> Iterator[ForkServer]:
    """What forks workers for which Windows' file rules hold below a folder."""
    server = ForkServer(environment=rules)
    yield server
    server.close()


def lines_of(run: TinyRun, event: str) -> list[int]:
    lines = (run.directory / "metrics.jsonl").read_text().splitlines()
    return [line["step"] for line in map(json.loads, lines) if line["event"] == event]


def test_the_library_refuses_what_windows_refuses(rules: dict[str, str], tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "tests" / "tiny" / "windows_rules.py")]
    made = subprocess.run(script, env=os.environ | rules | below(tmp_path), capture_output=True, text=True, check=True)
    said = json.loads(made.stdout)
    held_open = ("replace an open file", "rename an open file", "remove an open file", "remove a mapped file")
    others = ("remove a file that another process has open", "read a file that another process keeps for itself")
    folders = ("rename a folder with an open file", "replace a folder")
    assert {said.pop(what) for what in (*held_open, *others, *folders)} == {errno.EACCES}
    assert said.pop("rename without replacing") == said.pop("make by other letters") == errno.EEXIST
    assert said.pop("read by other letters") == "folder/inner"
    assert {said.pop(what) for what in list(said) if "260" in what or "248" in what} == {errno.ENOENT}
    assert [said.pop(what) for what in ("make a path of 259", "replace", "remove")] == [0, None, None]
    assert said.pop("open a folder") is False
    assert len(said) == 11
    assert set(said.values()) == {errno.EINVAL}


def test_files_that_nothing_depends_on_end_no_run_while_they_are_held(windows: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SHORT)
    metrics, status = run.directory / "metrics.jsonl", run.directory / "status.json"
    words = ["train", str(run.directory), "--roots", str(run.roots_file)]
    log = run.directory / "log.txt"
    with held(status, run.directory / "run.json"):
        with held(metrics, log, kept=True):
            worker = windows.start(words, tmp_path / "out", environment=below(tmp_path), first=NO_PATIENCE)
            worker.wait_for("saved", 2)
            assert metrics.stat().st_size == 0
        assert worker.wait() == 0, worker.log()[-3000:]
        assert lines_of(run, "step") == [1, 2, 3, 4], "lines that waited are written too"
        assert read_status(run.directory) == RunStatus(state="done", step=4, steps=4, job_id=run.config.job_id)
        assert json.loads(status.read_text())["state"] == "new"
        assert worker.log().count("status.json is open in another program") == 1
        assert worker.log().count("metrics.jsonl is open in another program") == 1
        assert "saved step 2" not in log.read_text()
    assert all(SaveStore(run.directory).read(step) for step in (2, 4))


def test_a_save_waits_for_what_holds_its_file_and_says_so(windows: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SHORT)
    step = run.directory / "saves" / "step-000002"
    step.mkdir(parents=True)
    worker = None
    soon = f"{NO_PATIENCE}\nfrom wan_core.session import saving\nsaving._RETRY_SAVE_S = 0.2"
    with held(step / "lora.safetensors"):  # damaged, and to be moved aside
        words = ["train", str(run.directory), "--roots", str(run.roots_file)]
        worker = windows.start(words, tmp_path / "out", environment=below(tmp_path), first=soon)
        worker.wait_for("note", 0)
    assert worker.wait() == 0, worker.log()[-3000:]
    notes = {event["text"] for event in worker.events() if event["event"] == "note"}
    assert notes == {
        "Step 2 cannot be saved (Permission denied): another program, such as a virus scanner or one that syncs "
        "folders, has a file of it open. Close it there; the run waits and loses nothing."
    }
    assert all(SaveStore(run.directory).read(step) for step in (2, 4))


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("manifest.json", "lora.safetensors")),
        "state.safetensors",
    ],
)
def test_a_run_goes_on_from_no_older_step_while_its_newest_is_held(
    windows: ForkServer, tmp_path: Path, name: str
) -> None:
    """What nobody may read now is not damaged; from an older step, hours would be trained twice."""
    run = make_run(tmp_path, train=SHORT)
    words = ["train", str(run.directory), "--roots", str(run.roots_file)]
    soon = f"{NO_PATIENCE}\nfrom wan_core.session import saving\nsaving._PAUSES_S = (0.01,)"

    def train(*more: str) -> tuple[int, str]:
        worker = windows.start([*words, *more], tmp_path / "out", environment=below(tmp_path), first=soon)
        return worker.wait(), worker.log()

    assert train("--max-steps", "2")[0] == 3
    with held(run.directory / "saves" / "step-000002" / name, kept=True):
        code, said = train()
    assert code == 5, said[-3000:]
    assert "Saved step 2 of tiny cannot be read (Permission denied): another program has a file" in said
    assert os.listdir(run.directory / "saves") == ["step-000002"]
    assert lines_of(run, "step") == [1, 2]
    assert train()[0] == 0
    assert lines_of(run, "step") == [1, 2, 3, 4]


def test_a_run_file_that_must_change_is_refused_by_name_while_it_is_held(windows: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SHORT)
    words = ["train", str(run.directory), "--roots", str(run.roots_file), "--set", "steps=6"]
    before = (run.directory / "run.json").read_bytes()
    with held(run.directory / "run.json"):
        worker = windows.start(words, tmp_path / "out", environment=below(tmp_path), first=NO_PATIENCE)
        assert worker.wait() == 5
    assert worker.events()[-1]["message"] == (
        "run.json in folder tiny is open in another program, such as a viewer, a virus scanner or one that syncs "
        "folders. Close it there, then try again."
    )
    assert (run.directory / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    "steps", [4, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.lasts(60)])], ids=["short", "long"]
)
def test_a_run_is_killed_resumed_read_and_trimmed(windows: ForkServer, tmp_path: Path, steps: int) -> None:
    """Beside three readers, each of which holds what it reads for a moment."""
    train = TrainConfig(steps=steps, save_every_n_steps=2, preview_every_n_steps=0, keep_last_saves=1, **ONE_LOOK)  # type: ignore[arg-type]
    run, alone = make_run(tmp_path / "a", train=train), make_run(tmp_path / "b", train=train)
    store, ended = SaveStore(run.directory), threading.Event()
    words = ["train", str(run.directory), "--roots", str(run.roots_file)]

    def read() -> None:
        while not ended.is_set():
            with suppress(OSError):  # a folder or file that went while it was looked for
                for file in run.directory.rglob("*.json*"):
                    with file.open("rb") as opened:
                        opened.read()
                        time.sleep(0.002)
            time.sleep(0.01)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1 if steps == 4 else 8):
            worker = windows.start(words, tmp_path / f"out-{number}", environment=below(tmp_path / "a"))
            worker.wait_for("step", max(store.steps(), default=0) + 3)
            worker.kill()
        kept = max(step for step in store.steps() if store.read(step))
        with held(run.directory / "saves" / f"step-{kept:06d}" / "state.safetensors"):
            worker = windows.start(words, tmp_path / "last", environment=below(tmp_path / "a"))
            assert worker.wait() == 0, worker.log()[-3000:]
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert read_status(run.directory).state == "done"
    assert store.steps() == [kept, steps], "what is held is not half deleted"
    assert store.prune(1, ()) == [kept]
    assert not any(is_partial(name) for _, _, names in os.walk(run.directory) for name in names)
    words = ["train", str(alone.directory), "--roots", str(alone.roots_file)]
    assert windows.start(words, tmp_path / "alone").wait() == 0
    loras = [(one.directory / "saves" / f"step-{steps:06d}" / "lora.safetensors").read_bytes() for one in (run, alone)]
    assert loras[0] == loras[1]
