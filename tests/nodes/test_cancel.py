"""Cancel in every phase: no process stays, and what was saved loads. test_killed_server.py has ComfyUI's own death."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import place_clips
from comfy_server import ComfyServer, Recorder
from graphs import TRAIN, Graph, folder_of, run_of, steps_trained, training_graph

from wan_core.train import SaveStore

TRAINING = "s/it"

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(2)]


def wait_for_status(comfy: ComfyServer, seen: Recorder, prompt: str, phrase: str, timeout_s: float = 60) -> None:
    """Until a status line says `phrase`. Lines are throttled, so a phrase must not name one step."""
    deadline = time.monotonic() + timeout_s
    while not any(phrase in status["text"] for status in seen.of("wan_trainer.status")):
        entry = comfy.history(prompt)
        if entry is None and time.monotonic() < deadline:
            time.sleep(0.02)
            continue
        comfy.interrupt()
        last = [status["text"] for status in seen.of("wan_trainer.status")][-5:]
        pytest.fail(f"no status said {phrase!r}; {comfy.error(entry) if entry else 'time is over'}; last: {last}")


def cancel_when(comfy: ComfyServer, graph: Graph, phrase: str) -> tuple[dict[str, Any], float]:
    """Queue, press Cancel once a status says `phrase`; the history entry, and seconds from press to end."""
    with comfy.events() as seen:
        prompt = comfy.queue(graph)
        wait_for_status(comfy, seen, prompt, phrase)
        comfy.interrupt()
        pressed = time.monotonic()
        entry = comfy.wait(prompt, timeout=60, check=False)
    return entry, time.monotonic() - pressed


def assert_nothing_runs(comfy: ComfyServer) -> None:
    deadline = time.monotonic() + 5
    while comfy.children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert comfy.children() == []


def many_captions(comfy: ComfyServer, name: str, count: int = 60) -> str:
    folder = place_clips(comfy.base / "input" / name)
    for number in range(count):
        (folder / f"copy{number:02d}.mp4").write_bytes((folder / "carphone.mp4").read_bytes())
        (folder / f"copy{number:02d}.txt").write_text(f"caption number {number}", encoding="utf-8")
    return name


def preview(**settings: Any) -> dict[str, Any]:
    inputs = {"clip": ["clip", 0], "prompts": "a red ball", "sampling": "custom", "steps": 1000, "cfg": 1.0, **settings}
    return {"class_type": "WanPreviewSettings", "inputs": inputs}


def test_while_scanning(comfy: ComfyServer) -> None:
    folder = place_clips(comfy.base / "input" / "crowd")
    for number in range(600):
        shutil.copy(folder / "carphone.mp4", folder / f"copy{number:03d}.mp4")
    graph = training_graph("never", "crowd")
    graph["data"]["inputs"]["trigger_word"] = "a man"
    with comfy.events() as seen:
        prompt = comfy.queue(graph)
        while not [data for data in seen.of("progress") if data["node"] == "data"]:
            assert comfy.history(prompt) is None
            time.sleep(0.01)
        comfy.interrupt()
        entry = comfy.wait(prompt, timeout=60, check=False)
        looked_at = max(data["value"] for data in seen.of("progress") if data["node"] == "data")
    assert comfy.error(entry) == "interrupted"
    assert looked_at < 600, "the scan went on to its end"
    assert_nothing_runs(comfy)
    shutil.rmtree(folder)


def test_while_the_engine_starts_and_loads_weights(comfy: ComfyServer, real_engine: Callable[[], None]) -> None:
    entry, _ = cancel_when(comfy, training_graph("early"), "New run")
    assert comfy.error(entry) == "interrupted"
    assert_nothing_runs(comfy)
    assert steps_trained(comfy, "early") == 0
    real_engine()
    again = run_of(comfy, comfy.run(training_graph("early")))
    assert (again["run"], again["step"], again["status"]) == ("early", 4, "done")


def test_while_encoding(comfy: ComfyServer) -> None:
    folder = many_captions(comfy, "many")
    entry, seconds = cancel_when(comfy, training_graph("never", folder), "encoding")
    assert comfy.error(entry) == "interrupted"
    assert seconds < 5
    assert_nothing_runs(comfy)
    assert not folder_of(comfy, "never").exists()


def test_while_training_saves_the_present_step_and_the_next_queue_resumes(comfy: ComfyServer) -> None:
    endless = training_graph("stopped", steps=100_000, save_every_n_steps=100_000)
    entry, seconds = cancel_when(comfy, endless, TRAINING)
    assert comfy.error(entry) == "interrupted"
    assert TRAIN not in entry["outputs"]
    assert seconds < 10
    assert_nothing_runs(comfy)
    saved = SaveStore(folder_of(comfy, "stopped")).latest()
    assert saved is not None
    assert saved.step == steps_trained(comfy, "stopped")
    assert (comfy.base / "models" / "loras" / "wan_trainer" / "stopped.safetensors").is_file()

    wanted = saved.step + 2
    resumed = run_of(comfy, comfy.run(training_graph("stopped", steps=wanted, save_every_n_steps=100_000)))
    assert (resumed["run"], resumed["step"], resumed["status"]) == ("stopped", wanted, "done")
    assert steps_trained(comfy, "stopped") == wanted


def test_while_rendering_a_preview(comfy: ComfyServer) -> None:
    graph = training_graph("previewing", vae=["vae", 0], validation=["preview", 0], preview_every_n_steps=2)
    graph["preview"] = preview()
    entry, seconds = cancel_when(comfy, graph, "rendering a preview")
    assert comfy.error(entry) == "interrupted"
    assert seconds < 10
    assert_nothing_runs(comfy)


@pytest.mark.soak  # as while a preview is rendered
def test_while_validating(comfy: ComfyServer) -> None:
    graph = training_graph("validated")
    comfy.run(graph)
    graph["preview"] = preview()
    graph["validate"] = {
        "class_type": "ValidateVideo",
        "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0], "validation": ["preview", 0]},
    }
    entry, seconds = cancel_when(comfy, graph, "rendering a preview")
    assert comfy.error(entry) == "interrupted"
    assert seconds < 10
    assert_nothing_runs(comfy)
    assert SaveStore(folder_of(comfy, "validated")).latest() is not None


def test_cancelling_another_queue_entry_leaves_training_alone(comfy: ComfyServer) -> None:
    training = comfy.queue(training_graph("unharmed", steps=6))
    waiting = comfy.queue(training_graph("unharmed_too", steps=6))
    comfy.interrupt(waiting)
    comfy.post("/queue", {"delete": [waiting]})
    assert comfy.wait(training)["status"]["status_str"] == "success"


def test_two_servers_never_write_into_one_run(comfy: ComfyServer) -> None:
    """The lock of the run is held by another process: one sentence, nothing touched."""
    from wan_core.files import locked

    comfy.run(training_graph("locked"))
    directory: Path = folder_of(comfy, "locked")
    with locked(directory / ".lock", "busy"):
        entry = comfy.run(training_graph("locked", steps=6), check=False)
    assert "being trained by another process" in comfy.error(entry)
