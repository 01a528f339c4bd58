"""The spare: what it imports before it waits, what it becomes once it is told, and how it ends untold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.dying import forked
from tests.support.forked import ForkServer
from tests.support.tiny_run import TinyRun, make_run
from wan_core.cli.spare import _write_into  # pyright: ignore[reportPrivateUsage]
from wan_core.files import FileError
from wan_core.run.config import read_status
from wan_core.train import SaveStore, TrainConfig

pytestmark = pytest.mark.lasts(1)

ROOT = Path(__file__).parents[3]
SETTINGS = TrainConfig(steps=3, save_every_n_steps=3, preview_every_n_steps=0, learning_rate=1e-3)

# Says when compiled code is loaded, and when stdin is read for the first time.
STAND_IN = """
import importlib.machinery, os, sys

load, read = importlib.machinery.ExtensionFileLoader.create_module, os.read

def create_module(self, spec):
    sys.stderr.write(f"LOADS {spec.name}\\n")
    return load(self, spec)

def first_read(file, count):
    if file == 0:
        os.read = read
        sys.stderr.write(f"READS cuda={sys.modules['torch'].cuda.is_initialized()}\\n")
    return read(file, count)

importlib.machinery.ExtensionFileLoader.create_module = create_module
os.read = first_read
"""


def told(run: TinyRun, *more: str) -> dict[str, object]:
    words = ["train", str(run.directory), "--controlled", "--roots", str(run.roots_file), *more]
    return {"words": words, "folder": str(run.directory), "log": str(run.directory / "log.txt")}


def lora_of(run: TinyRun) -> bytes:
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    (file,) = saved.loras.values()
    assert load_file(file)
    return file.read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_the_log_of_a_strangers_run_is_written_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"someone's")
    (tmp_path / "log.txt").symlink_to(tmp_path / "other")

    def told_where_to_write() -> None:
        try:
            _write_into(tmp_path / "log.txt")
        except FileError:
            os._exit(5)
        os._exit(0)

    assert forked(told_where_to_write) == 5
    assert (tmp_path / "other").read_bytes() == b"someone's"


@pytest.mark.slow
@pytest.mark.lasts(8)
def test_every_compiled_library_is_loaded_before_stdin_is_read_and_no_gpu_is_asked(tmp_path: Path) -> None:
    """On Windows a library would wait for the read. A new Python, told through a real pipe that ends then."""
    run = make_run(tmp_path / "run", train=replace(SETTINGS, steps=100_000))
    trackers = tmp_path / "trackers.json"
    trackers.write_text('{"tensorboard": {"enabled": false}}')  # trackers load theirs before commands are read
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    with (tmp_path / "said.txt").open("w+b") as said:
        done = subprocess.run(
            [sys.executable, "-X", "utf8", str(ROOT / "wan_core" / "launch.py"), "spare"],
            check=False,
            cwd=tmp_path,
            input=json.dumps(told(run, "--trackers", str(trackers))).encode() + b"\n",
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        )
    assert done.returncode == 3, "whoever told it went away, and it stopped with its state"
    log = (run.directory / "log.txt").read_text().splitlines()
    marks = [line for line in log if line.startswith(("LOADS ", "READS "))]
    read = marks.index("READS cuda=False")
    assert read > 30, "what it said before it was told stands in the log of the run: torch, numpy and safetensors"
    assert marks[read + 1 :] == []


def test_a_run_through_the_spare_is_that_of_a_fresh_worker_bit_for_bit(tmp_path: Path, server: ForkServer) -> None:
    fresh, through = (make_run(tmp_path / name, train=SETTINGS) for name in ("fresh", "through"))
    words = [str(word) for word in told(fresh)["words"]]  # type: ignore[attr-defined]
    plain = server.start(words, tmp_path / "fresh.out", stdin=True)
    assert plain.wait() == 0

    spare = server.start(["spare"], tmp_path / "spare.out", stdin=True)
    spare.send(told(through))
    assert spare.wait() == 0

    assert lora_of(fresh) == lora_of(through)
    assert [e["event"] for e in spare.events()] == [e["event"] for e in plain.events()]
    said = (through.directory / "log.txt").read_text()
    assert [line.split(" ", 2)[2] for line in said.splitlines() if "saved step" in line] == [
        line.split(" ", 2)[2] for line in plain.log().splitlines() if "saved step" in line
    ]
    assert said.count("saved step 3") == 1
    assert spare.log() == "", "after it was told, all it says goes into the log of the run"


def test_commands_that_follow_at_once_are_heard(tmp_path: Path, server: ForkServer) -> None:
    run = make_run(tmp_path, train=replace(SETTINGS, steps=100_000, save_every_n_steps=100_000))
    spare = server.start(["spare"], tmp_path / "out", stdin=True)
    assert spare.stdin is not None
    stop = {"command": "stop", "reason": "Cancel was pressed"}
    os.write(spare.stdin, "".join(json.dumps(line) + "\n" for line in (told(run), stop)).encode())
    assert spare.wait() == 3
    assert read_status(run.directory).reason == "Cancel was pressed"


def test_what_it_is_told_ends_as_it_would_by_itself(tmp_path: Path, server: ForkServer) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    (run.directory / "run.json").write_text("{}")
    spare = server.start(["spare"], tmp_path / "out", stdin=True)
    spare.send(told(run))
    assert spare.wait() == 5
    (failed,) = spare.events()
    assert (failed["event"], failed["exit_code"]) == ("failed", 5)
    assert failed["message"] in (run.directory / "log.txt").read_text()


def test_the_end_of_stdin_ends_it(tmp_path: Path, server: ForkServer) -> None:
    spare = server.start(["spare"], tmp_path / "out", stdin=True)
    spare.close_stdin()
    assert spare.wait() == 0
    assert (spare.events(), spare.log()) == ([], "")


@pytest.mark.parametrize("package", ["torch", pytest.param("safetensors", marks=pytest.mark.slow)])
def test_a_library_that_cannot_be_imported_is_said_as_a_fresh_worker_says_it(package: str, tmp_path: Path) -> None:
    """It is told before its imports are over, as where clips are cached already."""
    (tmp_path / f"{package}.py").write_text("raise ImportError('libbroken.so: cannot open shared object file')")
    run, launch = make_run(tmp_path / "run", train=SETTINGS), str(ROOT / "wan_core" / "launch.py")
    words = [str(word) for word in told(run)["words"]]  # type: ignore[attr-defined]

    def end(*start: str, input: bytes) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-X", "utf8", launch, *start]
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, check=False, cwd=tmp_path, input=input, capture_output=True, env=env)

    fresh = end(*words, input=b"")
    through = end("spare", input=json.dumps(told(run)).encode() + b"\n")
    assert "libbroken.so" in json.loads(fresh.stdout.splitlines()[-1])["message"]
    assert (through.returncode, through.stdout) == (fresh.returncode, fresh.stdout)
    (said,) = fresh.stderr.decode().splitlines()[-1:]
    assert (run.directory / "log.txt").read_text().splitlines()[-1:] == [said]
    if package == "torch":  # which is where it ends soonest
        assert end("spare", input=b"").returncode == 0, "nobody wanted it"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", -15), ("SIGHUP", -1), ("SIGKILL", -9)])
def test_a_signal_ends_it_while_it_waits(tmp_path: Path, server: ForkServer, sent: str, code: int) -> None:
    spare = server.start(["spare"], tmp_path / "out", stdin=True)
    os.kill(spare.pid, getattr(signal, sent))
    assert spare.wait() == code


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_a_signal_stops_its_run_as_any_other(tmp_path: Path, server: ForkServer) -> None:
    run = make_run(tmp_path, train=replace(SETTINGS, steps=100_000, save_every_n_steps=100_000))
    spare = server.start(["spare"], tmp_path / "out", stdin=True)
    spare.send(told(run))
    spare.wait_for_a_step()
    os.kill(spare.pid, signal.SIGTERM)
    assert spare.wait() == 3
    assert read_status(run.directory).state == "stopped"
    assert SaveStore(run.directory).latest() is not None


def test_an_endless_line_is_refused(tmp_path: Path, server: ForkServer) -> None:
    spare = server.start(["spare"], tmp_path / "out", stdin=True)
    assert spare.stdin is not None
    os.write(spare.stdin, b"x" * (1 << 16))
    assert spare.wait() == 1
