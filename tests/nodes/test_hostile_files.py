"""Files of strangers on a real server: settings, tables and models. It answers others meanwhile, hears Cancel, and
writes nowhere else."""

from __future__ import annotations

import shutil
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer, PromptRefused
from graphs import Graph
from hostile_files import MODELS, SETTINGS, TABLES, write
from route_server import CHANGE
from test_hostile_patterns import Others
from world import MODEL

pytestmark = pytest.mark.comfy

SIZE = {"width": 48, "height": 48, "num_frames": 5}
SHORT = ("list.yaml", "bomb.parquet", "turned20.arrow", "size.tar")
SHORT_MODELS = ("lists.safetensors", "million.safetensors")


def load(name: str = MODEL) -> Graph:
    return {"model": {"class_type": "LoadWanModel", "inputs": {"diffusion_model": name, "device": "cpu"}}}


def dataset(name: str) -> Graph:
    data = {"class_type": "WanDatasetFromFile", "inputs": {"model": ["model", 0], "file": name, **SIZE}}
    return load() | {"data": data}


def shown(graph: Graph, node: str = "model") -> Graph:
    return graph | {"end": {"class_type": "PreviewAny", "inputs": {"source": [node, 0]}}}


def with_lora(name: str) -> Graph:
    lora = {"class_type": "AddFrozenLora", "inputs": {"model": ["model", 0], "lora": name}}
    return shown(load() | {"lora": lora}, "lora")


def asked_of(comfy: ComfyServer, path: str, body: dict[str, Any]) -> str:
    """How a request ended; any answer but one of ours fails."""
    try:
        said = comfy.post(path, body, timeout=120, headers=CHANGE)
    except urllib.error.HTTPError as error:
        if error.code not in (400, 409, 413):
            raise
        return "refused"
    return "no plan" if "reason" in said else "answered"


def planned(comfy: ComfyServer, model: str = MODEL, file: str = "", lora: str = "") -> str:
    """What the page asks by itself, a moment after a graph is there."""
    asked = {
        "chain": [["LoadWanModel", {"diffusion_model": model, "device": "cpu"}]],
        "train": {"rank": 4, "steps": 4, "preview_every_n_steps": 0},
        "sizes": [[48, 48, 5]],
        "files": [{"file": file, **SIZE}] if file else [],
        "loras": [{"lora": lora}] if lora else [],
    }
    return asked_of(comfy, "/wan_trainer/plan", asked)


def queued(comfy: ComfyServer, graph: Graph) -> str:
    """How a prompt ended: done, or the name of a refusal of ours."""
    try:
        entry = comfy.wait(comfy.queue(graph), timeout=200, check=False)
    except PromptRefused:
        return "refused"
    failed = [data for kind, data in entry["status"]["messages"] if kind == "execution_error"]
    kinds = [data["exception_type"] for data in failed]
    assert all(kind.startswith("wan_trainer.") for kind in kinds), failed
    return kinds[0] if kinds else "done"


def everything(base: Path) -> dict[str, tuple[int, int]]:
    """The files of a server that no dataset and no model may change."""
    ours = (base / "output", base / "temp", base / "user", base / "server.log")
    files = (path for path in base.rglob("*") if path.is_file() and not {path, *path.parents} & {*ours})
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


class Trial:
    """What became of files."""

    def __init__(self, comfy: ComfyServer) -> None:
        self._comfy, self.ends, self.took = comfy, dict[str, int](), list[tuple[float, str]]()

    def note(self, name: str, ask: Callable[[], str]) -> None:
        began = time.monotonic()
        end = ask()
        self.took.append((time.monotonic() - began, name))
        self.ends[end] = self.ends.get(end, 0) + 1

    def settings(self, name: str) -> None:
        data = SETTINGS[name]()
        body = {"files": {name: data.decode("utf-8", "surrogatepass")}}
        self.note(f"import {name}", lambda: asked_of(self._comfy, "/wan_trainer/import", body))
        if not name.endswith(".sh"):
            self.data(name, data)

    def data(self, name: str, data: bytes) -> None:
        path = self._comfy.base / "input" / "hostile" / name
        write(lambda: data, path)
        self.note(f"plan {name}", lambda: planned(self._comfy, file=f"hostile/{name}"))
        self.note(f"prompt {name}", lambda: queued(self._comfy, dataset(f"hostile/{name}")))

    def model(self, name: str) -> None:
        path = self._comfy.base / "models" / "diffusion_models" / "hostile" / name
        write(MODELS[name], path)
        self.note(f"plan {name}", lambda: planned(self._comfy, f"hostile/{name}"))
        self.note(f"prompt {name}", lambda: queued(self._comfy, shown(load(f"hostile/{name}"))))
        if name.endswith(".safetensors"):
            lora = self._comfy.base / "models" / "loras" / "hostile" / name
            lora.parent.mkdir(parents=True, exist_ok=True)
            path.rename(lora)
            self.note(f"prompt lora {name}", lambda: queued(self._comfy, with_lora(f"hostile/{name}")))
            lora.unlink()
        else:
            path.unlink()


@pytest.fixture
def tidy(comfy: ComfyServer) -> Iterator[ComfyServer]:
    yield comfy
    for place in ("input", "models/diffusion_models", "models/loras"):
        shutil.rmtree(comfy.base / place / "hostile", ignore_errors=True)


def cancelled(comfy: ComfyServer, graph: Graph, after_s: float) -> tuple[str, float]:
    """Queue and press Cancel a moment later; how the prompt ended, and the seconds from press to end."""
    prompt = comfy.queue(graph)
    time.sleep(after_s)
    comfy.interrupt()
    pressed = time.monotonic()
    entry = comfy.wait(prompt, timeout=120, check=False)
    return comfy.error(entry), time.monotonic() - pressed


@pytest.mark.lasts(10)
def test_a_server_reads_hostile_files_and_goes_on(tidy: ComfyServer) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    comfy, others, trial = tidy, Others(tidy), Trial(tidy)
    before = everything(comfy.base)
    with others.asking():
        for name in SHORT:
            if name in SETTINGS:
                trial.settings(name)
            else:
                trial.data(name, TABLES[name]())
        for name in SHORT_MODELS:
            trial.model(name)
    assert sum(trial.ends.values()) == 3 + 2 * 3 + 3 * 2
    assert others.answers > 3
    assert {path: seen for path, seen in everything(comfy.base).items() if "hostile" not in path} == before
    assert queued(comfy, shown(load())) == "done"


@pytest.mark.soak
def test_every_hostile_file(own_comfy: Callable[..., ComfyServer]) -> None:
    """About ten minutes on a busy machine with two cores."""
    comfy = own_comfy()
    others, trial = Others(comfy), Trial(comfy)
    before = everything(comfy.base)
    with others.asking():
        for name in SETTINGS:
            trial.settings(name)
        for name, made in TABLES.items():
            trial.data(name, made())
        for name in MODELS:
            trial.model(name)
        presses = [
            (name, *cancelled(comfy, dataset(f"hostile/{name}"), after_s))
            for name in ("honest.jsonl", "nulls.parquet", "small.tar", "bomb.parquet")
            for after_s in (0.3, 1.0)
        ]
    sys.stdout.write(
        f"{len(SETTINGS)} settings, {len(TABLES)} tables, {len(MODELS)} models: {trial.ends}, the slowest "
        f"{sorted(trial.took)[-8:]}; Cancel: {presses}; {others.answers} answers to others, the "
        f"latest after {others.longest:.2f} s\n"
    )
    assert {path: seen for path, seen in everything(comfy.base).items() if "hostile" not in path} == before
    assert queued(comfy, shown(load())) == "done"
    assert others.longest < 5
