"""The routes on a small server of their own, over run folders written by the engine's own classes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from aiohttp import web
from safetensors.torch import save

from wan_core.cache import LatentCache
from wan_core.dataset import Dataset
from wan_core.events import CheckpointSaved, Evaluated, SampleReady, StepDone
from wan_core.files import atomic_write_json
from wan_core.job.config import DataConfig, RunConfig, RunStatus, write_status
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.metrics import JsonlSink
from wan_core.train import SaveStore, TrainConfig

CANARY = b"the canary sings"
CLIP = bytes(range(256)) * 40
SCAN = "5ca9" * 8
CHANGE = {"Content-Type": "application/json", "X-Wan-Trainer": "1"}


def our_module(pack_nodes: dict[str, Any], name: str) -> Any:
    """A module of `nodes/`, as ComfyUI loaded it."""
    return sys.modules[f"{pack_nodes['TrainLoRA'].__module__.rpartition('.')[0]}.{name}"]


Headers = dict[str, str] | Sequence[tuple[str, str]]


@dataclass
class Answer:
    """What a route said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass
class RouteServer:
    """A running server and the folder of its runs."""

    runs: Path
    loras: Path
    live: Any
    clips: Path
    """of the scan SCAN: a0.mp4 and a1.png with captions, a2.webm without, a3.mp4 whose caption a list says"""
    hosts: list[str] = field(default_factory=list)
    port: int = 0

    def ask(self, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Answer:
        """One request with exactly these headers, and Host and Content-Length unless they are given."""
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host="Host" in dict(pairs), skip_accept_encoding=True)
            for name, value in [("Content-Length", str(len(body))), *pairs]:
                connection.putheader(name, value)
            connection.endheaders(body)
            said = connection.getresponse()
            return Answer(said.status, {k.lower(): v for k, v in said.getheaders()}, said.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", f"/wan_trainer{path}", {k.replace("_", "-"): v for k, v in headers.items()})

    def post(self, path: str, data: Any = None, **headers: str) -> Answer:
        """As our own page posts."""
        given = {**CHANGE, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.ask("POST", f"/wan_trainer{path}", given, json.dumps(data or {}).encode())


class Worker:
    """A worker that only listens: the commands it was sent, and the reasons that came with them."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.reasons: list[str] = []

    def send(self, command: str, **values: str) -> None:
        self.heard.append(command)
        self.reasons += values.values()


@contextlib.contextmanager
def serve(pack_nodes: dict[str, Any], runs: Path, loras: Path, clips: Path | None = None) -> Iterator[RouteServer]:
    """The routes over `runs`, and over a scan of the four files of `clips`, until the block ends."""
    live = our_module(pack_nodes, "engine.live_runs").LiveRuns()
    server = RouteServer(runs, loras, live, clips or runs / "none")
    known = {SCAN: scanned(pack_nodes, clips)} if clips else {}
    planner: Any = SimpleNamespace(answer=dict)  # says what it was asked
    routes = our_module(pack_nodes, "routes").RunRoutes(
        lambda: runs, lambda: loras, lambda: server.hosts, server.live, planner=planner
    )
    app = web.Application()
    known_scans: Any = SimpleNamespace(get=known.get, dataset={SCAN: Dataset(())}.get)
    doors = our_module(pack_nodes, "routes.answers").Doors(lambda: server.hosts)
    scans = our_module(pack_nodes, "routes.scans").ScanRoutes(doors, known_scans)
    cached = our_module(pack_nodes, "routes.scans").CacheRoutes(
        doors, lambda: LatentCache(runs / "_cache"), lambda: runs
    )
    for method, path, handler in (*routes.table(), *scans.table(), *cached.table()):
        getattr(app.router, f"add_{method.lower()}")(path, handler)  # as ComfyUI registers: GET answers HEAD too
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    server.port = runner.addresses[0][1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def scanned(pack_nodes: dict[str, Any], clips: Path) -> Any:
    """Four files as a scan that found them in `clips`."""
    clips.mkdir(parents=True)
    for name in ("a0.mp4", "a1.png", "a2.webm", "a3.mp4"):
        (clips / name).write_bytes(CLIP + name.encode())
    (clips / "a0.txt").write_text("a red cat\n", encoding="utf-8")
    (clips / "a1.txt").write_text("a red dog", encoding="utf-8")
    edits = our_module(pack_nodes, "routes.scans").CaptionEdits
    file = sys.modules[edits.__module__].ScannedFile
    listed = {"a3.mp4": {"listed_in": "l.csv", "said": "red"}}
    media = [path for path in sorted(clips.iterdir()) if path.suffix != ".txt"]
    return edits(
        [file(path=p, name=p.name, caption_file=p.with_suffix(".txt"), **listed.get(p.name, {})) for p in media],
        lambda: [clips.parent],
    )


def write_run(runs: Path, name: str = "cat", *, steps: int = 4, total: int = 10, state: str = "stopped") -> Path:
    """A run with `steps` steps, two saved ones, an evaluation at each, and a preview of one prompt before and after."""
    directory = runs / name
    directory.mkdir(parents=True)
    config = RunConfig(
        run_name=name,
        model=ModelPlan(base_file="diffusion_models:wan.safetensors", variant="2.1 T2V-1.3B"),
        data=DataConfig(fingerprint="0" * 64, num_items=3),
        lora=LoraConfig(rank=4),
        train=TrainConfig(steps=total, save_every_n_steps=2),
    )
    atomic_write_json(directory / "run.json", config.to_dict())
    sink = JsonlSink(directory / "metrics.jsonl")
    _samples(directory, sink)
    for step in range(1, steps + 1):
        sink(step_done(step, total))
        if step in (steps // 2, steps):
            lora = save({"a": torch.ones(2)}, {"wan_trainer.variant": "2.1 T2V-1.3B"})
            SaveStore(directory).commit(step, config.job_id, lora, {"lora.a": torch.ones(2)}, {"step": step})
            sink(CheckpointSaved(step=step, folder=f"saves/step-{step:06d}"))
            sink(Evaluated(step=step, eval_loss=1.0 / step))
    sink.close()
    write_status(directory, RunStatus(state=state, step=steps, steps=total, reason="Cancel was pressed"))
    atomic_write_json(directory / "workflow.json", {"nodes": [{"type": "TrainLoRA"}]})
    (directory / "log.txt").write_text("a line\n", encoding="utf-8")
    return directory


def step_done(step: int, total: int) -> StepDone:
    """A step that took step / 10 seconds."""
    return StepDone(
        step=step,
        steps=total,
        loss=1.0 / step,
        lr=1e-4,
        grad_norm=0.5,
        seconds=step / 10,
        expert="auto",
        timestep_mean=500.0,
    )


def _samples(directory: Path, sink: JsonlSink) -> None:
    (directory / "samples").mkdir()
    entries = []
    for step in (0, 2):
        name = f"step-{step:06d}_p0"
        (directory / "samples" / f"{name}.mp4").write_bytes(CLIP)
        (directory / "samples" / f"{name}.latent").write_bytes(b"latent")
        entries.append({"id": name, "step": step, "file": f"samples/{name}.mp4"})
        sink(SampleReady(sample_id=name, step=step, file=f"samples/{name}.mp4"))
    atomic_write_json(directory / "samples" / "index.json", entries)


def loose(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def assert_safe(answer: Answer) -> None:
    """Never an error of ours, a sniffed type or a stored answer."""
    assert answer.status < 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
