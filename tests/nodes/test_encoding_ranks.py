"""Clips encoded by several ComfyUI processes: under torchrun, and beside the one that has the queue."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from route_server import our_module
from world import tiny_graph

from wan_core.cli.encode import encoding_graph

ROOT = Path(__file__).parents[2]
GRAPH = json.loads((ROOT / "workflows" / "api" / "08_smoke_test.json").read_text(encoding="utf-8"))
pytestmark = [pytest.mark.comfy]


def entries_of(base: Path) -> dict[str, bytes]:
    cache = base / "output" / "wan_trainer" / "_cache"
    return {file.relative_to(cache).as_posix(): file.read_bytes() for file in cache.glob("*/*/*.safetensors")}


def with_clips(base: Path) -> Path:
    """Twelve clips: each of the three with four names, so with own bytes at their ends."""
    folder = base / "input" / "clips"
    for clip in sorted(folder.glob("*.mp4")):
        for number in range(3):
            copy = folder / f"{clip.stem}_{number}.mp4"
            shutil.copyfile(clip, copy)
            with copy.open("ab") as file:
                file.write(b"\0\0\0\x0cfree" + f"{number:04}".encode())  # a box that players skip
            copy.with_suffix(".txt").write_text(f"{clip.stem} take {number}")
    return base


@pytest.mark.soak
def test_two_ranks_of_torchrun_write_the_entries_of_one(
    comfy_base: Callable[..., Path], comfyui_tree: Path, tmp_path: Path
) -> None:
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(tiny_graph(GRAPH)), encoding="utf-8")
    bases = [with_clips(comfy_base(name)) for name in ("alone", "shared")]
    words = ["wan_core/launch.py", "cache", "encode", str(file), "--comfyui", str(comfyui_tree), "--comfyui-options"]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    reports: list[dict[str, Any]] = []
    for start, base in zip(([], torchrun), bases, strict=True):
        command = [sys.executable, *start, *words, "--base-directory", str(base), "--cpu"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        reports.append(json.loads(done.stdout[: done.stdout.index("\n}") + 2]))
    assert [report["ranks"] for report in reports] == [1, 2]
    assert all("latents: 12 encoded, 0 reused" in report["reports"][0] for report in reports), reports
    assert entries_of(bases[1]) == entries_of(bases[0])


@pytest.mark.soak
def test_a_further_process_encodes_its_share_for_the_node(own_comfy: Callable[..., Any], comfy_base: Any) -> None:
    """Two processes on the CPU in place of two cards."""
    base = with_clips(comfy_base("further"))
    graph = tiny_graph(GRAPH, CacheLatents={"mode": "all GPUs"})
    server = own_comfy(base, env={"WAN_TRAINER_CARDS": "0"})
    entry = server.run(encoding_graph(graph))
    assert "latents: 12 encoded, 0 reused" in str(entry["outputs"])
    log = server.log_file.read_text()
    assert "failed; this process encodes its clips" not in log
    assert log.count("got prompt") == 2


@pytest.mark.parametrize(("kind", "further"), [("cuda", ["5", "7"]), ("xpu", [])])
def test_further_cards_are_those_that_a_process_can_be_kept_to(
    pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kind: str, further: list[str]
) -> None:
    module = our_module(pack_nodes, "bridge.encoding_ranks")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    monkeypatch.setattr(module, "gpu_names", lambda: [f"{kind}:{number}" for number in range(3)])
    monkeypatch.setattr(module.mm, "get_torch_device", lambda: torch.device(kind, 1))
    assert module._further_cards() == further


def test_a_further_process_ends_where_the_next_one_cannot_start(
    pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = our_module(pack_nodes, "bridge.encoding_ranks")
    commands = iter([[sys.executable, "-c", "input()"], ["/nowhere"]])
    monkeypatch.setattr(module, "_command", lambda _graph: next(commands))
    monkeypatch.setattr(module, "shares_of", lambda *_given, **_named: [[], [], []])
    cards = module.FurtherCards({}, SimpleNamespace(missing_clips=range(12)), ["0", "1"])
    with pytest.raises(FileNotFoundError), cards:
        pass
    assert [process.poll() is not None for process in cards._processes] == [True]
    assert not Path(cards._folder.name).exists()
