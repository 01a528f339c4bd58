"""Steering a run that trains in a real ComfyUI, as a page does: its buttons, where it stands, its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from comfy_server import ComfyServer
from graphs import TRAIN, Graph, training_graph

PATIENCE_S = 600  # the machine may be busy


def press(comfy: ComfyServer, run: str, button: str, data: Any = None) -> Any:
    """What a button of the page sends."""
    return comfy.post(f"/wan_trainer/runs/{run}/{button}", data, headers={"X-Wan-Trainer": "1"})


def until(comfy: ComfyServer, prompt: str, look: Callable[[], Any]) -> Any:
    """What `look` finds while the prompt runs."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        entry = comfy.history(prompt)
        if entry is not None or time.monotonic() > deadline:
            comfy.interrupt()
            pytest.fail(f"it ended too early or took too long: {comfy.error(entry) if entry else 'time is over'}")
        time.sleep(0.2)
    return found


def live_run(comfy: ComfyServer, name: str, step: int) -> dict[str, Any] | None:
    """The summary of a run once it trains here and has done so many steps."""
    found = [run for run in comfy.get("/wan_trainer/runs")["runs"] if run["id"] == name]
    return found[0] if found and found[0]["live"] and found[0]["step"] >= step and found[0]["loss"] else None


def records(comfy: ComfyServer, name: str, kind: str) -> list[dict[str, Any]]:
    found = comfy.get(f"/wan_trainer/runs/{name}/metrics")["records"]
    return [record for record in found if record["event"] == kind]


def endless(name: str, **train: Any) -> Graph:
    """A run that ends only when it is told to, with a preview before the first step and downstream nodes."""
    graph = training_graph(name, steps=100_000, save_every_n_steps=100_000, preview_every_n_steps=100_000, **train)
    graph[TRAIN]["inputs"] |= {"vae": ["vae", 0], "validation": ["preview", 0]}
    graph["preview"] = {
        "class_type": "WanPreviewSettings",
        "inputs": {"clip": ["clip", 0], "prompts": "a red ball", "sampling": "custom", "steps": 1, "cfg": 1.0},
    }
    graph["loss"] = {"class_type": "LossGraphNode", "inputs": {"loss": [TRAIN, 2], "filename_prefix": "loss"}}
    return graph
