"""Worker and ComfyUI killed at any moment of a graph, through steps that are not finite and disks that are full: what
was announced stays, the next queue goes on, and the LoRA is the one of a run that nobody disturbed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from comfy_server import ComfyServer
from graphs import folder_of, run_of, training_graph
from safetensors.torch import load_file

from tests.support.preforked import FIRST, PreforkedEngine
from wan_core.train import SaveStore

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.soak]

KILLS, STEPS = 100, 40
TROUBLES = "import os; from tests.support.troubles import install; install((0, 0, 2, 9)[os.getpid() % 4])"
SETTINGS = {"steps": STEPS, "save_every_n_steps": 4}
FILES = ("lora.safetensors", "state.safetensors")
KINDS = ("worker", "server", "both")


def test_a_hundred_kills_of_worker_and_server_lose_change_and_stop_nothing(
    own_comfy: Callable[..., ComfyServer], preforked: PreforkedEngine | None
) -> None:
    if preforked is None:
        pytest.skip("needs fork and SIGKILL, which Windows does not have")
    chance = random.Random(KILLS)
    comfy = own_comfy(env=preforked.environment | {FIRST: TROUBLES})
    comfy.run(training_graph("warm", **SETTINGS))  # encodes the clips, as the first of every life would
    began = time.monotonic()
    assert run_of(comfy, comfy.run(training_graph("straight", **SETTINGS)))["status"] == "done"
    longest = time.monotonic() - began
    assert most_bad_in_a_row(comfy, "straight") >= 2, "there are streaks"
    undisturbed = final_tensors(comfy, "straight")
    killed = dict.fromkeys(KINDS, 0)
    rounds = refused = finished = 0
    while sum(killed.values()) < KILLS:
        rounds += 1
        name = f"round-{rounds}"
        for attempt in range(60):
            kind = chance.choice(KINDS)
            prompt = comfy.queue(training_graph(name, **SETTINGS))
            patience = chance.uniform(0.05, 1.0) if attempt < 30 else 20
            entry = ended_within(comfy, prompt, patience * longest)
            if entry is None:
                entry = kill(comfy, prompt, kind)
                killed[kind] += 1
            announced = max([0, *(line["step"] for line in told(comfy, name, "saved"))])
            latest = SaveStore(folder_of(comfy, name)).latest()
            assert (latest.step if latest else 0) >= announced, f"{name}: an announced save is gone"
            if entry is None:
                continue  # the server had been killed, and is there again
            assert comfy.process is not None
            assert comfy.process.poll() is None, f"{name}: the server ended by itself"
            if entry["status"]["status_str"] == "success":
                finished += 1
                break
            refused += "still" in comfy.error(entry)  # the last worker has not ended yet
        else:
            pytest.fail(f"{name}: it does not get on; {comfy.error(entry) if entry else 'no answer'}")
        assert final_tensors(comfy, name) == undisturbed, name
    print(f"{killed}, {rounds} runs, {refused} times the last worker had not ended")  # noqa: T201
    assert min(killed.values()) >= KILLS // 5, "of every kind"


def ended_within(comfy: ComfyServer, prompt: str, seconds: float) -> dict[str, Any] | None:
    """The prompt's history entry, or None where it is not finished after so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (entry := comfy.history(prompt)) is not None:
            return entry
        time.sleep(0.02)
    return None


def kill(comfy: ComfyServer, prompt: str, kind: str) -> dict[str, Any] | None:
    """SIGKILL; a server is started again. The prompt's entry, or None where the server that knew it is gone."""
    below = [psutil.Process(pid) for pid in comfy.children()]
    if kind != "worker":
        comfy.kill()
    if kind != "server":
        for process in below:
            if process.is_running():
                process.kill()
    if kind == "worker":
        return comfy.wait(prompt, timeout=60, check=False)
    comfy.start()
    return None


def told(comfy: ComfyServer, name: str, event: str) -> list[dict[str, Any]]:
    """Every whole line of that kind in metrics.jsonl."""
    file = folder_of(comfy, name) / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    return [record for record in map(json.loads, filter(None, lines)) if record["event"] == event]


def most_bad_in_a_row(comfy: ComfyServer, name: str) -> int:
    return max([0, *(line["in_a_row"] for line in told(comfy, name, "skipped"))])


def final_tensors(comfy: ComfyServer, name: str) -> dict[str, bytes]:
    """Each tensor of the last save, of the LoRA and of the optimizer; beside them the files carry the run's name."""
    folder = folder_of(comfy, name) / "saves" / f"step-{STEPS:06d}"
    tensors = {f"{file}/{key}": value for file in FILES for key, value in load_file(folder / file).items()}
    return {key: value.reshape(-1).view(torch.uint8).numpy().tobytes() for key, value in tensors.items()}
