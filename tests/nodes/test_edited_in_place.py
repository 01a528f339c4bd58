"""A file edited in place, its size and modification time put back, is another file to every node that reads it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from clips import place_clips
from comfy_server import ComfyServer
from graphs import CACHE, training_graph
from safetensors.torch import load_file, save_file
from test_graph_data import showing, shown
from world import VAE

pytestmark = [pytest.mark.comfy, pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of the last change")]


def edit(file: Path, place: int = -1) -> None:
    """Turn one bit of one byte around, of the last; what a listing shows of the file stays."""
    before, data = file.stat(), bytearray(file.read_bytes())
    data[place] ^= 1
    with open(file, "r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.fixture
def place(pack_nodes: dict[str, Any], tmp_path: Path) -> Path:
    """A folder of files below the input folder."""
    import folder_paths

    place = Path(folder_paths.get_input_directory()) / tmp_path.name
    (place / "control").mkdir(parents=True)
    for name in ("a.mp4", "a.txt", "control/a.mp4", "b.mp4"):
        (place / name).write_bytes(b"as it was")
    (place / "list.jsonl").write_text('{"path": "b.mp4", "caption": "a cat"}\n', encoding="utf-8")
    (place / "whole.tar").write_bytes(bytes(1024))
    (place / "one.tfrec").write_bytes(b"as it was")
    return place


@pytest.mark.parametrize(
    ("node", "given", "file"),
    [
        ("WanVideoDataset", {"folder": ""}, "a.mp4"),
        ("WanVideoDataset", {"folder": ""}, "a.txt"),
        ("WanVideoDataset", {"folder": ""}, "control/a.mp4"),
        ("WanDatasetFromFile", {"file": "/list.jsonl"}, "list.jsonl"),
        ("WanDatasetFromFile", {"file": "/list.jsonl"}, "b.mp4"),
        ("WanDatasetFromFile", {"file": "/whole.tar"}, "whole.tar"),
    ],
)
def test_data(pack_nodes: dict[str, Any], place: Path, node: str, given: dict[str, str], file: str) -> None:
    asked = {name: place.name + value for name, value in given.items()}
    seen = [pack_nodes[node].fingerprint_inputs(**asked) for _ in range(2)]
    edit(place / file)
    seen.append(pack_nodes[node].fingerprint_inputs(**asked))
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize(
    ("node", "kind", "given"),
    [
        ("LoadWanModel", "diffusion_models", "diffusion_model"),
        ("AddFrozenLora", "loras", "lora"),
        ("WanLoraFile", "loras", "lora"),
    ],
)
def test_models_and_loras(
    pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: str, kind: str, given: str
) -> None:
    import folder_paths

    folder = Path(folder_paths.get_folder_paths(kind)[0])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{tmp_path.name}.safetensors"
    save_file({"a": torch.zeros(2)}, file)
    monkeypatch.setattr(
        sys.modules[pack_nodes[node].__module__.rpartition(".")[0] + ".bridge.folders"],
        "file_names",
        lambda _kind: [file.name],
    )
    seen = [pack_nodes[node].fingerprint_inputs(**{given: file.name}) for _ in range(2)]
    edit(file)
    seen.append(pack_nodes[node].fingerprint_inputs(**{given: file.name}))
    assert seen[0] == seen[1] != seen[2]
    assert str(folder) not in str(seen), "ComfyUI writes it into the metadata of images"


def report(comfy: ComfyServer, **inputs: Any) -> str:
    graph = showing(training_graph("none", "in_place"), [CACHE, 1])
    graph["data"]["inputs"] |= inputs
    return shown(comfy, comfy.run(graph))


@pytest.mark.slow
@pytest.mark.lasts(2)
def test_a_running_server_sees_a_clip_and_a_caption_and_encodes_nothing_that_was_only_touched(
    comfy: ComfyServer,
) -> None:
    clips = place_clips(comfy.base / "input" / "in_place")
    clip = sorted(clips.glob("*.mp4"))[0]
    report(comfy)
    assert "latents: 0 encoded" in report(comfy, num_repeats=2)
    edit(clip)
    edit(clip.with_suffix(".txt"), 0)
    found = report(comfy, num_repeats=2)
    assert "latents: 1 encoded, 2 reused" in found
    assert "texts: 1 encoded" in found
    for file in clips.iterdir():
        file.chmod(0o640)
    found = report(comfy, num_repeats=2)
    assert "latents: 0 encoded, 3 reused" in found
    assert "texts: 0 encoded" in found


@pytest.mark.soak
def test_a_vae_that_was_replaced_after_it_was_loaded_is_not_taken_for_the_new_one(comfy: ComfyServer) -> None:
    place_clips(comfy.base / "input" / "in_place")
    folder = comfy.base / "models" / "vae"
    own = folder / "own_vae.safetensors"
    own.write_bytes((folder / VAE).read_bytes())

    def graph(width: int) -> dict[str, Any]:
        made = showing(training_graph("none", "in_place"), [CACHE, 1])
        made["vae"]["inputs"]["vae_name"] = own.name
        made["data"]["inputs"]["width"] = width
        return made

    assert "latents: 3 encoded" in shown(comfy, comfy.run(graph(64)))
    save_file({name: value * 1.01 for name, value in load_file(own).items()}, own)
    refused = comfy.error(comfy.run(graph(80), check=False))
    assert "The file of vae was replaced after ComfyUI had loaded it" in refused
    comfy.free()
    assert "latents: 3 encoded" in shown(comfy, comfy.run(graph(80)))
