"""Hostile texts through POST /prompt of a real server: it answers, its queue works on, its log holds nothing unseen."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from comfy_server import ComfyServer, PromptRefused
from graphs import TRAIN, Graph, training_graph
from hostile_paths import HOSTILE_PATHS
from test_hostile_texts import BROKEN, FORGED, SURROGATES, UNSEEN, typed_inputs
from world import MODEL

SIZE = {"width": 48, "height": 48, "num_frames": 5}

pytestmark = pytest.mark.comfy


def whole_graph(name: str) -> Graph:
    """Every node of the pack that takes a text, as far as tiny files go."""
    graph = training_graph(name, steps=1, save_every_n_steps=1)
    graph["data"]["inputs"]["settings"] = ["data_settings", 0]
    graph[TRAIN]["inputs"] |= {"settings": ["settings", 0], "validation": ["preview", 0]}
    graph["model"]["inputs"]["device"] = "cpu"
    more: dict[str, tuple[str, dict[str, Any]]] = {
        "policy": ("WanPrecisionPolicy", {"model": ["model", 0]}),
        "split": ("SplitAcrossGPUs", {"model": ["model", 0]}),
        "quantize": ("Fp8Quantize", {"model": ["model", 0]}),
        "data_settings": ("WanDatasetSettings", {}),
        "settings": ("WanTrainSettings", {}),
        "preview": ("WanPreviewSettings", {"clip": ["clip", 0], **SIZE}),
        "list": ("WanDatasetFromFile", {"model": ["model", 0], "file": "hostile.csv", "width": 48, "height": 48}),
        "image": ("EmptyImage", {"width": 48, "height": 48, "batch_size": 5}),
        "images": (
            "WanDatasetFromImages",
            {
                "model": ["model", 0],
                "images": ["image", 0],
                "captions": "a",
                "width": 48,
                "height": 48,
                "num_frames": 5,
            },
        ),
        "unet": ("UNETLoader", {"unet_name": MODEL, "weight_dtype": "default"}),
        "apply": ("ApplyWanLoRA", {"run": [TRAIN, 0], "model": ["unet", 0]}),
        "validate": ("ValidateVideo", {"run": [TRAIN, 0], "vae": ["vae", 0], "baseline": False}),
    }
    return graph | {node: {"class_type": kind, "inputs": inputs} for node, (kind, inputs) in more.items()}


def graph_of(whole: Graph, kind: str, name: str, text: str) -> Graph:
    """What one node needs, with `text` for one of its inputs."""
    target = next(node for node, body in whole.items() if body["class_type"] == kind)
    wanted, waiting = set[str](), [target]
    while waiting:
        node = waiting.pop()
        if node not in wanted:
            wanted.add(node)
            waiting += [value[0] for value in whole[node]["inputs"].values() if isinstance(value, list)]
    graph = {node: {**whole[node], "inputs": dict(whole[node]["inputs"])} for node in wanted}
    graph[target]["inputs"][name] = text
    return graph | {"end": {"class_type": "PreviewAny", "inputs": {"source": [target, 0]}}}


class Count:
    """What became of the prompts."""

    def __init__(self) -> None:
        self.prompts = self.refused = self.failed = self.done = self.bad_statuses = 0

    def send(self, comfy: ComfyServer, graph: Graph, title: str = "") -> None:
        self.prompts += 1
        extra = {"extra_pnginfo": {"workflow": {"id": title, "nodes": [{"title": title}]}}} if title else None
        try:
            entry = comfy.run(graph, timeout=120, check=False, extra_data=extra)
        except PromptRefused:
            self.refused += 1
        except urllib.error.HTTPError:
            self.bad_statuses += 1
        else:
            self.done += entry["status"]["status_str"] == "success"
            self.failed += entry["status"]["status_str"] == "error"
            said = comfy.error(entry)
            assert not UNSEEN.search(said), f"{said!a}"


@pytest.fixture
def hostile_list(comfy: ComfyServer) -> Iterator[None]:
    path = comfy.base / "input" / "hostile.csv"
    path.write_text("path,caption\nclips/bikes.mp4,bikes\n", encoding="utf-8")
    yield
    path.unlink()


def test_the_queue_outlives_what_a_log_cannot_encode(comfy: ComfyServer, hostile_list: None) -> None:
    """Ten inputs that ended it once; then a graph with a cut emoji in somebody's note trains as any other."""
    whole, count, printed = whole_graph("hostile"), Count(), len(comfy.log_text())
    ended_it = [
        ("LoadWanModel", "diffusion_model"), ("LoadWanModel", "low_noise_model"), ("WanDatasetFromFile", "path_column"),
        ("WanDatasetSettings", "frame_buckets"), ("SplitAcrossGPUs", "devices"), ("SplitAcrossGPUs", "split_at"),
        ("WanTrainSettings", "eval_timesteps"), ("TrainLoRA", "start_from_lora"), ("TrainLoRA", "expert"),
        ("TrainLoRA", "resume"),
    ]  # fmt: skip
    for number, (kind, name) in enumerate(ended_it):
        count.send(comfy, graph_of(whole, kind, name, "x\n\x1b[2J[INFO] FORGED" if number % 2 else "\ud83d"))
    assert (count.prompts, count.done, count.bad_statuses) == (10, 0, 0)
    count.send(comfy, training_graph("noted", steps=1, save_every_n_steps=1), title="wow \ud83d")
    assert count.done == 1
    kept = json.loads((comfy.output / "wan_trainer" / "noted" / "workflow.json").read_text(encoding="utf-8"))
    assert kept["nodes"][0]["title"] == "wow \ud83d"
    log = comfy.log_text()[printed:]
    assert not UNSEEN.search(log)
    assert "\n[INFO] FORGED" not in log


@pytest.mark.soak
def test_a_thousand_hostile_prompts(own_comfy: Callable[..., ComfyServer], pack_nodes: dict[str, Any]) -> None:
    """Four minutes on a busy machine with four cores."""
    comfy = own_comfy()
    (comfy.base / "input" / "hostile.csv").write_text("path,caption\nclips/bikes.mp4,bikes\n", encoding="utf-8")
    whole, count = whole_graph("soak"), Count()
    known = {body["class_type"] for body in whole.values()}
    inputs = [(kind, name) for kind, name in typed_inputs(pack_nodes) if kind in known]
    texts = [*BROKEN, *HOSTILE_PATHS]
    for number, (kind, name) in enumerate(inputs):
        # Each input gets all that broke something once, and its share of the rest; together they meet all of it.
        share = HOSTILE_PATHS[number % 9 :: 9]
        for text in [*SURROGATES[:2], *FORGED[:2], *share]:
            count.send(comfy, graph_of(whole, kind, name, text))
    comfy.run(graph_of(whole, "SplitAcrossGPUs", "devices", "all"), timeout=60)
    log = comfy.log_text()
    forged = len(re.findall(r"^\[INFO\] FORGED", log, re.MULTILINE))
    sys.stdout.write(
        f"{count.prompts} prompts over {len(inputs)} inputs and {len(texts)} texts: {count.refused} refused, "
        f"{count.failed} failed, {count.done} done, {count.bad_statuses} other statuses; "
        f"{len(UNSEEN.findall(log))} raw characters and {forged} forged lines in {len(log)} characters of log\n"
    )
    assert count.prompts >= 1000
    assert count.bad_statuses == 0
    assert not UNSEEN.search(log)
    assert not forged
