"""What a node handed on is deleted or damaged while the server runs: the next queue of that graph makes it again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from comfy_server import ComfyServer
from graphs import CACHE, TRAIN, Graph, folder_of, run_of, training_graph
from test_graph_data import from_images
from world import sampling_graph

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(2)]


def cache_of(comfy: ComfyServer) -> Path:
    return comfy.output / "wan_trainer" / "_cache"


def set_file(comfy: ComfyServer, run: str) -> Path:
    told = json.loads((folder_of(comfy, run) / "run.json").read_text(encoding="utf-8"))
    return cache_of(comfy) / "sets" / f"{told['data']['fingerprint']}.json"


def entries(comfy: ComfyServer, run: str) -> list[Path]:
    items = json.loads(set_file(comfy, run).read_text(encoding="utf-8"))["items"]
    keys = [item["latent_key"] for item in items]
    return [cache_of(comfy) / "latents" / key[:2] / f"{key}.safetensors" for key in keys]


def damage(file: Path) -> None:
    """One byte in the middle, size and modification time as before."""
    before, data = file.stat(), bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    with open(file, "r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


TAKEN: dict[str, Callable[[ComfyServer, str], None]] = {
    "set": lambda comfy, run: set_file(comfy, run).unlink(),
    "damaged_set": lambda comfy, run: damage(set_file(comfy, run)),
    "cache": lambda comfy, run: shutil.rmtree(cache_of(comfy)),
    "latents": lambda comfy, run: shutil.rmtree(cache_of(comfy) / "latents"),
}


def ran(comfy: ComfyServer, graph: Graph) -> set[str]:
    """The nodes that ran when the graph was queued."""
    with comfy.events() as seen:
        comfy.run(graph)
    return {data["node"] for data in seen.of("executing") if data.get("node")}


@pytest.mark.parametrize(
    "what", ["set", *(pytest.param(name, marks=pytest.mark.soak) for name in TAKEN if name != "set")]
)
@pytest.mark.soak
def test_a_cache_that_was_taken_away_is_made_again_by_the_next_queue(comfy: ComfyServer, what: str) -> None:
    name = f"taken_{what}"
    comfy.run(training_graph(name, steps=2))
    for steps in (4, 6):
        TAKEN[what](comfy, name)
        assert run_of(comfy, comfy.run(training_graph(name, steps=steps)))["step"] == steps
    assert ran(comfy, training_graph(name, steps=6)) <= {TRAIN}, "and then no more"


@pytest.mark.soak
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_an_entry_that_was_taken_away_is_encoded_again_when_its_refusal_is_followed(
    comfy: ComfyServer, how: str
) -> None:
    name = f"entry_{how}"
    comfy.run(training_graph(name, steps=2))
    for steps in (4, 6):
        for entry in entries(comfy, name):
            entry.unlink() if how == "deleted" else damage(entry)
        refused = comfy.run(training_graph(name, steps=steps), check=False)
        if refused["status"]["status_str"] == "error":
            assert "Queue Cache Latents + Captions again" in comfy.error(refused)
        assert run_of(comfy, comfy.run(training_graph(name, steps=steps)))["step"] == steps


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_run_and_a_lora_that_were_deleted_come_back(comfy: ComfyServer, rounds: int) -> None:
    name = f"gone_{rounds}"
    graph = training_graph(name, steps=2)
    if rounds > 1:
        graph |= sampling_graph(prefix=name)
        graph["apply"] = {"class_type": "ApplyWanLoRA", "inputs": {"run": [TRAIN, 0], "model": ["1", 0]}}
        graph["2"]["inputs"]["model"] = ["apply", 0]
    comfy.run(graph)
    lora = comfy.base / "models" / "loras" / "wan_trainer" / f"{name}.safetensors"
    for number in range(rounds):
        shutil.rmtree(folder_of(comfy, name))
        assert run_of(comfy, comfy.run(graph))["step"] == 2
        damage(lora) if number else lora.unlink()
        comfy.run(graph)
        assert lora.read_bytes() == next(folder_of(comfy, name).glob("saves/*/lora.safetensors")).read_bytes()
    assert ran(comfy, graph) == set()


@pytest.mark.soak
@pytest.mark.parametrize("stills", [False, True])
def test_images_of_the_graph_that_were_kept_are_kept_again(comfy: ComfyServer, stills: bool) -> None:
    graph = from_images(**({"batch_is": "stills", "captions": "\n".join("abcdefghijklmno")} if stills else {}))
    comfy.run(graph)
    folder = cache_of(comfy) / ("pictures" if stills else "clips")
    files = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for act in (Path.unlink, damage, Path.unlink):
        for file in files:
            act(file)
        shutil.rmtree(cache_of(comfy) / "latents")  # so that they are read
        comfy.run(graph)
        assert all(file.is_file() for file in files)
    if stills:
        assert {file: file.read_bytes() for file in files} == files
    assert ran(comfy, graph) == set()


@pytest.mark.soak
def test_a_list_of_drawn_clips_is_written_again(comfy: ComfyServer) -> None:
    def graph(steps: int) -> Graph:
        drawn = training_graph("drawn_again", steps=steps)
        sizes = {"count": 2, "width": 48, "height": 48, "num_frames": 5}
        drawn[CACHE] = {"class_type": "WanSyntheticDataset", "inputs": {"model": ["model", 0], **sizes}}
        return drawn

    comfy.run(graph(2))
    for steps, act in ((4, Path.unlink), (6, damage)):
        act(set_file(comfy, "drawn_again"))
        assert run_of(comfy, comfy.run(graph(steps)))["step"] == steps


@pytest.mark.soak
def test_prompts_of_previews_are_encoded_again_when_their_refusal_is_followed(comfy: ComfyServer) -> None:
    def graph(steps: int) -> Graph:
        shown = training_graph("prompt_gone", steps=steps, vae=["vae", 0], validation=["preview", 0])
        shown[TRAIN]["inputs"]["preview_every_n_steps"] = 2
        settings = {"sampling": "custom", "steps": 2, "cfg": 1.0}
        inputs = {"clip": ["clip", 0], "prompts": "a red ball on a hill", **settings}
        shown["preview"] = {"class_type": "WanPreviewSettings", "inputs": inputs}
        return shown

    comfy.run(graph(2))
    for steps in (4, 6):
        told = json.loads((folder_of(comfy, "prompt_gone") / "run.json").read_text(encoding="utf-8"))
        (key,) = told["preview"]["prompt_keys"]
        (cache_of(comfy) / "texts" / key[:2] / f"{key}.safetensors").unlink()
        comfy.run(graph(steps), check=False)
        entry = run_of(comfy, comfy.run(graph(steps)))
        assert entry["step"] == steps
        assert (cache_of(comfy) / "texts" / key[:2] / f"{key}.safetensors").is_file()
