"""Names out of graphs and recipes, sent to a running ComfyUI among planted modules: nothing runs, nothing ends."""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer, PromptRefused, make_base
from graphs import TRAIN, folder_of, training_graph
from world import MODEL, TINY_PACK, fill_base

from tests.support.libraries import HOSTILE_NAMES, marking, plant
from tests.support.preforked import PreforkedEngine
from wan_core.packages import named_optimizer, version_of

pytestmark = pytest.mark.comfy

QUICK_MAIN = Path(__file__).parents[1] / "tiny" / "quick_main.py"
SENT = {"X-Wan-Trainer": "1"}
LONGEST_HOLD_S = 5.0
"""gross: a plan of the tiny model takes some hundredths of a second"""
NO_CLASS = (
    *("torch.optim.Optimizer", "torch.optim.lr_scheduler", "torch.optim.NoSuch", "torch.optim.__dict__"),
    *("torch.optim.class.SGD", "torch.optim.__main__.X", "pytorch_optimizer.load_optimizer", "pytorch_optimizer.torch"),
    *("pytorch_optimizer.__main__.X", "pytorch_optimizer.optimizer", "torchao.optim.torch", "schedulefree.X"),
    *("prodigyopt.X", "bitsandbytes.optim.X", "bitsandbytes.optim.nn.X"),
)
"""by their text these may be classes: a plan is made, or the package is missing or lies in the wrong place"""
NO_TEXT: tuple[Any, ...] = (["input.evil.X"], {"a": 1}, 7, 1.5, True, None, [["model", 0]], ["nowhere", 0])
SHORT = (
    *("input.evil.X", "certifi.__main__.X", "numpy.f2py.__main__.X", "torch.utils.model_dump.__main__.X", "main.X"),
    *("os.system", "server.PromptServer", "prodigyopt.X", "schedulefree.X", "pytorch_optimizer.\u0410dan"),
)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def planted(
    comfyui_tree: Path, tmp_path: Path, marker: Path, preforked: PreforkedEngine | None
) -> Iterator[ComfyServer]:
    """A ComfyUI whose folders lie where a user has them, beside main.py, each with a module that ends Python."""
    tree = tmp_path / "ComfyUI"
    shutil.copytree(comfyui_tree, tree, symlinks=True, ignore=shutil.ignore_patterns("tests*", "custom_nodes", ".git"))
    fill_base(make_base(tree, [TINY_PACK]), comfyui_tree)
    text = marking(marker, "raise SystemExit(3)")
    for name in ("input", "output", "temp", "user", "models", "input/clips"):
        (tree / name / "evil.py").write_text(text, encoding="utf-8")
    for name in ("prodigyopt", "bitsandbytes.optim", "evil"):
        plant(tree, name, text)
    (tree / "schedulefree.py").write_text(text, encoding="utf-8")
    env = {**(preforked.environment if preforked else {}), "WAN_TRAINER_CARD_GIB": "16"}
    with ComfyServer(tree, comfyui=tree, main=QUICK_MAIN, env=env) as server:
        yield server


class Sent:
    """What was sent, and how long each answer took."""

    def __init__(self, comfy: ComfyServer) -> None:
        self.comfy, self.longest, self.count, self.codes = comfy, 0.0, 0, set[int]()

    def plan(self, named: Any) -> str:
        """Returns what the page is told where no plan was made."""
        settings = {"optimizer": "custom", "optimizer_class": named}
        return self._post("/wan_trainer/plan", {
            "chain": [["LoadWanModel", {"diffusion_model": MODEL}]], "settings": settings,
            "train": {"rank": 4, "steps": 10}, "sizes": [[48, 48, 5]],
        })  # fmt: skip

    def recipes(self, named: str) -> list[str]:
        """Returns the classes that the graphs of four trainers' recipes name."""
        said = json.dumps(named)
        files = {
            "a.toml": f"[model]\ntype = 'wan'\n[optimizer]\ntype = {said}\n",
            "b.toml": f"task = 't2v-1.3B'\ndit = 'x.safetensors'\noptimizer_type = {said}\n",
            "c.yaml": json.dumps({"job": "extension", "config": {"name": "a", "process": [
                {"type": "sd_trainer", "model": {"arch": "wan21:1b", "name_or_path": "x"},
                 "datasets": [{"folder_path": "x"}], "train": {"optimizer": named}},
            ]}}),
            "d.json": json.dumps({"model_family": "wan", "model_type": "lora", "optimizer": named}),
            "e.sh": f"accelerate launch wan_train_network.py --task t2v-1.3B --dit x --optimizer_type '{named}'\n",
        }  # fmt: skip
        return [self._post("/wan_trainer/import", {"files": {name: text}}) for name, text in files.items()]

    def prompt(self, named: Any) -> str:
        """Returns the error of a training with such a class, of the queue or of its start."""
        began = time.monotonic()
        graph = {"model": {"class_type": "LoadWanModel", "inputs": {"diffusion_model": MODEL}}}
        inputs = {"optimizer": "custom", "optimizer_class": named}
        graph["settings"] = {"class_type": "WanTrainSettings", "inputs": inputs}
        graph["end"] = {"class_type": "PreviewAny", "inputs": {"source": ["settings", 0]}}
        try:
            entry = self.comfy.run(graph, timeout=60, check=False)
            said = "" if entry["status"]["status_str"] == "success" else self.comfy.error(entry)
        except (PromptRefused, urllib.error.HTTPError) as error:
            said = str(error)
        self._note(began)
        return said

    def _post(self, route: str, data: Any) -> str:
        began = time.monotonic()
        try:
            answer = json.dumps(self.comfy.post(route, data, headers=SENT))
        except urllib.error.HTTPError as error:
            self.codes.add(error.code)
            answer = error.read().decode()
        self._note(began)
        return answer

    def _note(self, began: float) -> None:
        self.count += 1
        self.longest = max(self.longest, time.monotonic() - began)
        assert self.longest < LONGEST_HOLD_S


def classes_in(answer: str) -> Iterator[str]:
    graph = json.loads(answer).get("graph") or {}
    for node in graph.get("nodes", []):
        yield from [value] if (value := (node.get("widgets_values_named") or {}).get("optimizer_class")) else []


def trains_as_before(comfy: ComfyServer, path: str, run_name: str) -> None:
    """A training of today that names a class, queued after all that: the queue goes on, and the class trains."""
    graph = training_graph(run_name, steps=2, save_every_n_steps=2)
    inputs = {"optimizer": "custom", "optimizer_class": path, "lr_scheduler": "constant"}
    graph["settings"] = {"class_type": "WanTrainSettings", "inputs": inputs}
    graph[TRAIN]["inputs"]["settings"] = ["settings", 0]
    assert comfy.run(graph, timeout=120)["status"]["status_str"] == "success"
    assert (folder_of(comfy, run_name) / "saves" / "step-000002" / "lora.safetensors").is_file()
    run = json.loads((folder_of(comfy, run_name) / "run.json").read_text(encoding="utf-8"))
    assert run["train"]["optimizer_class"] == path


@pytest.mark.lasts(8)
def test_names_from_outside_run_nothing_and_the_queue_goes_on(planted: ComfyServer, marker: Path) -> None:
    sent = Sent(planted)
    for name in SHORT:
        assert "optimizer_class" in sent.plan(name) or "is no library folder of this Python" in sent.plan(name)
        assert sent.prompt(name)
        named = [one for answer in sent.recipes(name) for one in classes_in(answer)]
        assert all(any(named_optimizer(one)) for one in named), named
    trains_as_before(planted, "torch.optim.sgd.SGD", "named")
    assert sent.codes <= {400, 409}
    assert not marker.exists()


@pytest.mark.soak
def test_every_hostile_name_by_every_road(planted: ComfyServer, marker: Path, real_engine: Callable[[], None]) -> None:
    """Half a minute. Each name by the plan, as a prompt and in recipes, whatever JSON can hold in its place too."""
    sent = Sent(planted)
    for name in [*HOSTILE_NAMES, *NO_CLASS, *NO_TEXT]:
        sent.plan(name)
        sent.prompt(name)
        for answer in sent.recipes(name) if isinstance(name, str) and len(name) < 10_000 else ():
            assert all(any(named_optimizer(one)) for one in classes_in(answer))
    assert not marker.exists()
    trains_as_before(planted, "torch.optim.SGD", "torch")
    if version_of("pytorch-optimizer"):
        shadow = plant(planted.base, "pytorch_optimizer", marking(marker, "raise SystemExit(3)"))
        for name in ("pytorch_optimizer.Adan", "pytorch_optimizer.AdaFactor"):
            assert "is no library folder of this Python" in sent.plan(name)
            assert "is no library folder of this Python" in sent.prompt(name)
        shutil.rmtree(shadow.parent)
        trains_as_before(planted, "pytorch_optimizer.Adan", "adan")
        trains_as_before(planted, "pytorch_optimizer.AdaFactor", "adafactor")
    assert sent.codes <= {400, 409, 413}
    assert not marker.exists()
    sys.stdout.write(f"{sent.count} sent, the longest wait {sent.longest:.2f} s\n")
