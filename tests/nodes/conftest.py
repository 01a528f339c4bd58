"""Fixtures of the route tests: runs among canaries, a live one of them, and a screen nobody sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from route_server import CANARY, RouteServer, Worker, our_module, serve, write_run


@pytest.fixture
def routes(pack_nodes: dict[str, Any], tmp_path: Path) -> Iterator[RouteServer]:
    """Runs called cat and dog, and canaries wherever a path could lead."""
    runs = tmp_path / "output" / "wan_trainer"
    for name in ("cat", "dog"):
        write_run(runs, name)
    for place in ("canary.txt", "output/canary.txt", "output/wan_trainer/canary.mp4", "output/wan_trainer/canary.txt"):
        (tmp_path / place).write_bytes(CANARY)
    (runs / "_cache").mkdir()
    (runs / "_cache" / "canary.mp4").write_bytes(CANARY)
    (runs / "cat" / "samples" / "secret.mp4").write_bytes(CANARY)  # in no index
    loras = tmp_path / "loras"
    loras.mkdir()
    with serve(pack_nodes, runs, loras, tmp_path / "input" / "pets") as server:
        yield server


@pytest.fixture
def worker(routes: RouteServer, pack_nodes: dict[str, Any]) -> Iterator[Worker]:
    """The run cat is live; what its worker hears."""
    worker = Worker()
    run = our_module(pack_nodes, "engine.live_runs").LiveRun(run="cat", node="1", prompt_id="p")
    with routes.live.entered(run), run.listening(worker):
        yield worker


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, pack_nodes: dict[str, Any]) -> list[Path]:
    """The folders that were shown on this computer's screen."""
    shown: list[Path] = []
    monkeypatch.setattr(our_module(pack_nodes, "routes.handlers"), "open_folder", shown.append)
    return shown
