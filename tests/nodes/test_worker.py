"""Starting, following and ending an engine process, with a child that behaves as badly as it is told to."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.comfy

CHILD = """
import json, os, signal, subprocess, sys, threading, time

def emit(**event):
    sys.stdout.write(json.dumps(event) + "\\n")
    sys.stdout.flush()

mode = sys.argv[1]
print("a line for the log", file=sys.stderr)
if mode == "env":
    emit(event="note", text=str(os.environ.get("PYTORCH_CUDA_ALLOC_CONF")))
    sys.exit(0)
if mode == "fails":
    emit(event="failed", message="clip.mp4 is bad. Fix it.", kind="DatasetError", exit_code=5)
    sys.exit(5)
if mode == "dies":
    print("W1122 02:28:17.974000 20237 torch/utils/_pytree.py:630] <enum 'X'> is an Enum subclass", file=sys.stderr)
    print("/lib/peft/torchao.py:39: UserWarning: it was made without", file=sys.stderr)
    print("  warnings.warn(", file=sys.stderr)
    os._exit(9)
if mode == "noise":
    print("not json at all")
    emit(event="from a newer version", x=1)
    emit(event="finished", state="done", step=3, result={})
    sys.exit(0)
if mode in ("deaf", "stubborn"):
    if mode == "stubborn" and os.name != "nt":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    emit(event="note", text=str(grandchild.pid))
    time.sleep(60)
emit(event="note", text="ready")
for line in sys.stdin:
    command = json.loads(line)
    if command["command"] == "stop":
        emit(event="finished", state="stopped", step=1, result={})
        sys.exit(3)
    emit(event="note", text=command["command"])
open(sys.argv[2], "w").write("stdin ended")
"""


@pytest.fixture
def worker_module(pack_nodes: dict[str, Any]) -> Any:
    name = pack_nodes["TrainLoRA"].__module__.rpartition(".")[0] + ".engine.worker"
    return sys.modules[name]


@pytest.fixture
def start(worker_module: Any, tmp_path: Path) -> Callable[..., Any]:
    script = tmp_path / "child.py"
    script.write_text(CHILD, encoding="utf-8")

    def go(mode: str, held: str = "") -> Any:
        command = [sys.executable, str(script), mode, str(tmp_path / "ended.txt")]
        return worker_module.Worker(command, tmp_path, tmp_path / "log.txt", held)

    return go


class Presses:
    """A Cancel button that is pressed once an event said something, and again after a while."""

    def __init__(self, times: int = 1, gap_s: float = 0.3) -> None:
        self.left, self.gap_s = times, gap_s
        self.texts: list[str] = []
        self._next = 0.0

    def hear(self, event: Any) -> None:
        self.texts.append(getattr(event, "text", event.name))

    def pressed(self) -> bool:
        if not self.texts or not self.left or time.monotonic() < self._next:
            return False
        self.left -= 1
        self._next = time.monotonic() + self.gap_s
        return True


def never() -> bool:
    return False


def gone(pid: int) -> bool:
    import psutil

    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_cancel_is_a_command_first(start: Callable[[str], Any]) -> None:
    presses = Presses()
    with start("obeys") as worker:
        ending = worker.follow(presses.hear, presses.pressed)
    assert (ending.exit_code, ending.cancelled, ending.killed) == (3, True, False)
    assert ending.finished.state == "stopped"


def test_a_deaf_worker_gets_a_signal_and_its_children_go_too(start: Callable[[str], Any], worker_module: Any) -> None:
    presses = Presses()
    patience = worker_module.Patience(command_s=0.3, terminate_s=5)
    began = time.monotonic()
    with start("deaf") as worker:
        ending = worker.follow(presses.hear, presses.pressed, patience)
    assert ending.cancelled
    assert not ending.killed
    assert time.monotonic() - began < 15
    assert gone(int(presses.texts[0]))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal a process could ignore")
def test_a_stubborn_worker_is_killed(start: Callable[[str], Any], worker_module: Any) -> None:
    presses = Presses()
    patience = worker_module.Patience(command_s=0.2, terminate_s=0.3)
    with start("stubborn") as worker:
        ending = worker.follow(presses.hear, presses.pressed, patience)
    assert ending.killed
    assert gone(int(presses.texts[0]))


def test_on_windows_a_worker_is_ended_with_its_children_by_force(
    worker_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without /F taskkill only asks a window to close, and a worker has none."""
    module = sys.modules[f"{worker_module.__name__.rpartition('.')[0]}.process"]
    asked: list[tuple[list[str], int]] = []
    killed: list[bool] = []

    def run(command: list[str], *, creationflags: int, **_given: Any) -> None:
        asked.append((command, creationflags))

    monkeypatch.setattr(module, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr(module, "subprocess", SimpleNamespace(run=run, CREATE_NO_WINDOW=1 << 27))
    module.signal_tree(SimpleNamespace(pid=77, kill=lambda: killed.append(True)), force=False)
    ((command, flags),) = asked
    assert (command[0], set(command[1:])) == ("taskkill", {"/F", "/T", "/PID", "77"})
    assert command[command.index("/PID") + 1] == "77"
    assert (flags, killed) == (1 << 27, [True])


def test_a_second_press_kills_at_once(start: Callable[[str], Any]) -> None:
    presses = Presses(times=2)
    began = time.monotonic()
    with start("stubborn") as worker:
        ending = worker.follow(presses.hear, presses.pressed)  # 30 s of patience, which nobody waits for
    assert ending.killed
    assert time.monotonic() - began < 15
    assert gone(int(presses.texts[0]))


def test_lines_that_are_no_events_are_ignored(start: Callable[[str], Any]) -> None:
    presses = Presses(times=0)
    with start("noise") as worker:
        ending = worker.follow(presses.hear, never)
    assert presses.texts == ["finished"]
    assert ending.finished.step == 3


def test_a_failure_says_its_own_sentence(start: Callable[[str], Any]) -> None:
    with start("fails") as worker:
        ending = worker.follow(lambda _event: None, never)
    assert ending.sentence() == "clip.mp4 is bad. Fix it."


def test_a_crash_quotes_the_log(start: Callable[[str], Any]) -> None:
    with start("dies") as worker:
        ending = worker.follow(lambda _event: None, never)
    assert "exit code 9" in ending.sentence()
    ends = "its log ends with: a line for the log). Saved steps are kept; press Run again to resume."
    assert ending.sentence().endswith(ends), "what libraries always say is left out"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
@pytest.mark.parametrize(
    ("free", "said"),
    [
        (
            1,
            "The system killed the training process, most likely because the computer's memory (RAM) was full: it used",
        ),
        (
            9,
            "killed from outside, for an unknown reason. Shortly before, the computer's memory (RAM) was not full (it",
        ),
    ],
)
def test_a_worker_that_was_killed_says_whether_memory_was_full(
    start: Callable[..., Any], worker_module: Any, monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    watch = sys.modules[worker_module.HostWatch.__module__]
    monkeypatch.setattr(watch, "host_bytes", lambda: free << 30)
    monkeypatch.setattr(watch, "host_total", lambda: 16 << 30)
    with start("waits", "9.4 GiB (WanTEModel 6.7)" if free == 1 else "") as worker:
        # Only once it speaks: one that is gone before it was looked at has held nothing anybody saw.
        ending = worker.follow(lambda _event: worker.process.kill(), never)
    assert (ending.exit_code, ending.cancelled) == (-9, False)
    assert said in ending.sentence()
    first = "free the 9.4 GiB (WanTEModel 6.7) that ComfyUI itself holds: " if free == 1 else "close other programs; "
    assert f"hat helps most, in this order: {first}" in ending.sentence()
    assert ending.sentence().count("(begins a new run)") == 2, "each remedy that begins a new run says so"
    assert "INFO wan_trainer: the training process was ended by signal 9 without a final message\n" in worker.log_tail()
    assert re.search(
        rf"it used [\d.]+ GiB, and {free}\.0 of 16\.0 GiB were free at the last measurement", ending.sentence()
    )


def test_the_end_of_a_log_opens_on_a_whole_line(worker_module: Any, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("one\ntwo\nthree\n")
    log_tail = worker_module.log_tail
    assert log_tail(tmp_path / "log.txt", 8) == "three\n"
    assert log_tail(tmp_path / "log.txt", 99) == "one\ntwo\nthree\n"
    assert log_tail(tmp_path / "log.txt", 99, start=4) == "two\nthree\n"
    assert log_tail(tmp_path / "log.txt", 3) == "ee\n", "of one long line the end is better than nothing"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes with names in folders")
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_log_that_leads_elsewhere_is_refused(
    start: Callable[[str], Any], worker_module: Any, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "other").write_text("mine")
    if kind == "fifo":
        os.mkfifo(tmp_path / "log.txt")
    else:
        (tmp_path / "log.txt").symlink_to(tmp_path / "other")
    files = sys.modules[f"{worker_module.__name__.rpartition('.nodes.')[0]}.wan_core.files"]
    with pytest.raises(files.FileError, match=r"log\.txt is a link or no regular file"):
        start("noise")
    assert (tmp_path / "other").read_text() == "mine"


def test_a_worker_gets_the_users_allocator_settings(
    start: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128,backend:cudaMallocAsync")
    presses = Presses(times=0)
    with start("env") as worker:
        worker.follow(presses.hear, never)
    assert presses.texts == ["max_split_size_mb:128"]


ASYNC = "backend:cudaMallocAsync"  # what ComfyUI adds for itself
OWN = "garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,>:4]"
NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        ({}, {}),
        ({OLD: ASYNC}, {}),
        ({OLD: f"expandable_segments:False,{ASYNC}"}, {OLD: "expandable_segments:False"}),
        ({OLD: f"{OWN},{ASYNC}"}, {OLD: OWN}),
        ({NEW: f"{ASYNC},{OWN}"}, {NEW: OWN}),
        ({NEW: OWN, OLD: ASYNC}, {NEW: OWN}),
        ({OLD: "max_split_size_mb:128, backend : cudaMallocAsync ,pinned_use_background_threads:True"},
         {OLD: "max_split_size_mb:128,pinned_use_background_threads:True"}),
        ({OLD: "backend:native"}, {OLD: "backend:native"}),
    ],
)  # fmt: skip
def test_only_the_backend_of_comfyui_is_taken_out_of_the_users_allocator_settings(
    pack_nodes: dict[str, Any], outside: dict[str, str], inside: dict[str, str]
) -> None:
    module = sys.modules[f"{pack_nodes['TrainLoRA'].__module__.rpartition('.')[0]}.engine.process"]
    given = {"LANG": "C.UTF-8", **outside}
    assert module.worker_environment(given) == {"LANG": "C.UTF-8", **inside}


def test_the_import_path_of_a_worker_means_what_it_means_here(
    pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself reads it, in the folder of a run, before our code can take anything out."""
    module = sys.modules[f"{pack_nodes['TrainLoRA'].__module__.rpartition('.')[0]}.engine.process"]
    monkeypatch.chdir(tmp_path)
    given = {"PYTHONPATH": os.pathsep.join(["", "lib", str(tmp_path / "own"), ""])}
    expected = os.pathsep.join([str(tmp_path / "lib"), str(tmp_path / "own")])
    assert module.worker_environment(given)["PYTHONPATH"] == expected
    assert module.worker_environment({"PYTHONPATH": os.pathsep}) == {"PYTHONPATH": ""}


def test_nothing_is_left_when_the_caller_breaks(start: Callable[[str], Any]) -> None:
    worker = start("deaf")

    def break_out(_event: Any) -> None:
        raise RuntimeError("a bug in the node")

    with pytest.raises(RuntimeError, match="a bug"), worker:
        worker.follow(break_out, never)
    assert worker.process.poll() is not None


def test_other_children_do_not_hold_the_pipe_open(start: Callable[[str], Any], tmp_path: Path) -> None:
    """If they did, a worker would not notice that ComfyUI died."""
    import subprocess

    with start("obeys") as worker:
        next(iter(worker.events(10)))
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
        try:
            worker.process.stdin.close()
            worker.process.wait(10)
        finally:
            other.kill()
            other.wait()
    assert (tmp_path / "ended.txt").read_text() == "stdin ended"
