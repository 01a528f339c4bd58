"""The spare as ComfyUI has it: for whom it is used, and that it is gone when nobody wants it. Real processes.

That it ends with a server that is killed stands in test_killed_server.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from clips import place_clips
from comfy_server import ComfyServer
from graphs import TRAIN, Graph, folder_of, run_of, training_graph
from route_server import our_module

pytestmark = pytest.mark.comfy

CHILD = """
import json, os, sys
sys.stderr.write("said before\\n")
line = sys.stdin.readline()
if line:
    with open(json.loads(line)["log"], "a") as log:
        log.write(f"{json.loads(line)['words']} in {json.loads(line)['folder']}\\n")
    print('{"event": "finished", "state": "done", "step": 3, "result": {}}', flush=True)
"""


def yes() -> bool:
    return True


@pytest.fixture
def spares(pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Makes a `Spare` whose processes are CHILD in place of the engine."""
    module, made = our_module(pack_nodes, "engine.spare"), []
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr(module, "engine_command", lambda *words: [sys.executable, str(script), *words])

    def make(**options: Any) -> Any:
        made.append(module.Spare(**options))
        return made[-1]

    yield make
    for spare in made:
        spare.end()


@pytest.fixture
def child(tmp_path: Path) -> list[str]:
    """The command line of what a run wants to start."""
    return [sys.executable, str(tmp_path / "child.py"), "train", "cat"]


def process_of(spare: Any) -> psutil.Process:
    return psutil.Process(spare._waiting.process.pid)


def gone(process: psutil.Process, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while process.is_running() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not process.is_running()


def test_a_worker_is_the_spare_where_it_fits(
    spares: Callable[..., Any],
    child: list[str],
    tmp_path: Path,
    pack_nodes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spare, worker = spares(), our_module(pack_nodes, "engine.worker")
    monkeypatch.setattr(worker, "SPARE", spare)
    spare.prepare(yes)
    pid = process_of(spare).pid
    with worker.Worker(child, tmp_path, tmp_path / "log.txt") as one:
        assert one.process.pid == pid
        ending = one.follow(lambda _event: None, lambda: False)
    assert (ending.exit_code, ending.finished.step) == (0, 3)
    assert ending.log_tail == f"['train', 'cat'] in {tmp_path}\n"
    assert spare.take(child, tmp_path, tmp_path / "log.txt") is None, "it is used once"


def test_there_is_one_at_most(spares: Callable[..., Any]) -> None:
    spare = spares()
    spare.prepare(yes)
    first = process_of(spare)
    spare.prepare(yes)
    assert process_of(spare) == first


def test_another_environment_takes_another_process(
    spares: Callable[..., Any], child: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = spares()
    spare.prepare(yes)
    first = process_of(spare)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert spare.take(child, tmp_path, tmp_path / "log.txt") is None
    spare.prepare(yes)
    assert gone(first)
    assert process_of(spare) != first
    assert process_of(spare).environ()["CUDA_VISIBLE_DEVICES"] == "7"


def test_another_program_takes_another_process(spares: Callable[..., Any], child: list[str], tmp_path: Path) -> None:
    spare = spares()
    spare.prepare(yes)
    other = [child[0], str(tmp_path / "other.py"), *child[2:]]
    assert spare.take(other, tmp_path, tmp_path / "log.txt") is None
    assert spare.take(["another python", *child[1:]], tmp_path, tmp_path / "log.txt") is None
    assert process_of(spare).is_running()


def test_other_code_takes_another_process(
    spares: Callable[..., Any],
    child: list[str],
    tmp_path: Path,
    pack_nodes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pack was updated meanwhile: what it imported is old, and what it would import from now on is new."""
    pack = tmp_path / "pack"
    (pack / "wan_core" / "run").mkdir(parents=True)
    file = pack / "wan_core" / "run" / "job.py"
    file.write_text("STEPS = 1")
    monkeypatch.setattr(our_module(pack_nodes, "engine.spare"), "PACK", pack)
    spare = spares()
    for change in (lambda: file.write_text("STEPS = 2"), file.unlink, lambda: file.write_text("STEPS = 2")):
        spare.prepare(yes)
        first = process_of(spare)
        change()
        assert spare.take(child, tmp_path, tmp_path / "log.txt") is None
        spare.prepare(yes)
        assert gone(first)
    process = spare.take(child, tmp_path, tmp_path / "log.txt")
    assert process is not None
    process.communicate(timeout=30)


def test_it_imports_nothing_from_the_folder_of_temporary_files(
    spares: Callable[..., Any], child: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write there, and an empty name in PYTHONPATH is the folder of the process, before the libraries."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "json.py").write_text("raise SystemExit(77)")
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    spare = spares()
    spare.prepare(yes)
    process = spare.take(child, tmp_path, tmp_path / "log.txt")
    assert process is not None
    assert process.communicate(timeout=30)[0].startswith(b'{"event": "finished"')
    assert process.returncode == 0


def test_one_that_died_is_not_used(spares: Callable[..., Any], child: list[str], tmp_path: Path) -> None:
    spare = spares()
    spare.prepare(yes)
    first = process_of(spare)
    first.kill()
    deadline = time.monotonic() + 5
    while first.is_running() and first.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert spare.take(child, tmp_path, tmp_path / "log.txt") is None
    spare.prepare(yes)
    assert process_of(spare).is_running()


def test_it_goes_when_its_graph_does(spares: Callable[..., Any]) -> None:
    spare, graph = spares(), ["runs"]
    spare.prepare(lambda: bool(graph))
    process = process_of(spare)
    time.sleep(0.6)
    assert process.is_running()
    graph.clear()
    assert gone(process)
    spare.prepare(lambda: bool(graph))
    assert spare._waiting is None, "nobody wants one"


def test_it_does_not_wait_for_ever(spares: Callable[..., Any]) -> None:
    spare = spares(idle_s=0.3)
    spare.prepare(yes)
    assert gone(process_of(spare))
    assert spare._waiting is None


def test_a_spare_that_cannot_be_started_stops_nobody(
    spares: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, pack_nodes: dict[str, Any]
) -> None:
    module = our_module(pack_nodes, "engine.spare")
    monkeypatch.setattr(module, "engine_command", lambda *words: ["no such python", *words])
    spare = spares()
    spare.prepare(yes)
    assert spare._waiting is None


def spares_of(comfy: ComfyServer) -> list[psutil.Process]:
    """The processes below a server that were started as spares, whatever they are by now."""
    found = []
    for pid in comfy.children():
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).cmdline()[-1:] == ["spare"]:
                found.append(psutil.Process(pid))
    return found


def seen_spare(comfy: ComfyServer, within_s: float = 60) -> psutil.Process:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := spares_of(comfy):
            assert len(found) == 1
            return found[0]
        time.sleep(0.01)
    pytest.fail("no spare was started")


def scanning_graph(comfy: ComfyServer, name: str, count: int = 600) -> Graph:
    """A graph whose scan takes seconds."""
    folder = place_clips(comfy.base / "input" / name)
    for number in range(count):
        shutil.copy(folder / "carphone.mp4", folder / f"copy{number:03d}.mp4")
    graph = training_graph("never_trained", name)
    graph["data"]["inputs"]["trigger_word"] = "a man"
    return graph


@pytest.mark.slow
@pytest.mark.lasts(3)
def test_a_queue_trains_in_the_process_that_began_before_its_clips_were_read(comfy: ComfyServer) -> None:
    folder = place_clips(comfy.base / "input" / "spare_clips")
    with comfy.events() as seen:
        prompt = comfy.queue(training_graph("spared", folder.name, steps=100_000, save_every_n_steps=100_000))
        spare = seen_spare(comfy)
        while not any("s/it" in status["text"] for status in seen.of("wan_trainer.status")):
            assert comfy.history(prompt) is None
            time.sleep(0.02)
        assert spares_of(comfy) == [spare], "it trains"
        comfy.interrupt()
        entry = comfy.wait(prompt, timeout=60, check=False)
    assert comfy.error(entry) == "interrupted"
    assert gone(spare)
    assert "saved step" in (folder_of(comfy, "spared") / "log.txt").read_text(encoding="utf-8")
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.lasts(3)
def test_nothing_is_left_of_a_graph_that_fails_or_is_cancelled_before_it_trains(comfy: ComfyServer) -> None:
    prompt = comfy.queue(scanning_graph(comfy, "spare_crowd"))
    spare = seen_spare(comfy)
    comfy.interrupt()
    assert comfy.error(comfy.wait(prompt, timeout=60, check=False)) == "interrupted"
    assert gone(spare)
    shutil.rmtree(comfy.base / "input" / "spare_crowd")

    graph = training_graph("never_trained", "spare_empty")
    (comfy.base / "input" / "spare_empty").mkdir()
    entry = comfy.run(graph, check=False)
    assert "spare_empty" in comfy.error(entry)
    deadline = time.monotonic() + 5
    while spares_of(comfy) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert spares_of(comfy) == []
    assert not folder_of(comfy, "never_trained").exists()


@pytest.mark.slow
@pytest.mark.lasts(2)
def test_a_run_that_is_done_needs_none(comfy: ComfyServer) -> None:
    graph = training_graph("spare_done")
    first = run_of(comfy, comfy.run(graph))
    graph[TRAIN]["inputs"]["save_every_n_steps"] = 4  # the node runs again, and finds nothing to do
    again = run_of(comfy, comfy.run(graph))
    assert (first["run"], first["status"]) == (again["run"], again["status"]) == ("spare_done", "done")
    assert spares_of(comfy) == []
