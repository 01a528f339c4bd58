"""Wan Dataset From File through POST /prompt: a list, a tar and another trainer's settings instead of a folder."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer, PromptRefused
from graphs import CACHE, TRAIN, Graph, training_graph
from world import MODEL

pytestmark = pytest.mark.comfy

SIZE = {"width": 48, "height": 48, "num_frames": 5}


@pytest.fixture
def listed(comfy: ComfyServer) -> Path:
    """input/listed: the three clips of input/clips without caption files, and list.jsonl."""
    folder = comfy.base / "input" / "listed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows = []
    for clip in sorted((comfy.base / "input" / "clips").glob("*.mp4")):
        shutil.copy(clip, folder)
        rows.append({"video": clip.name, "text": f"a clip of {clip.stem}"})
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"video": "gone.mp4"}])))
    return folder


def graph(**inputs: Any) -> Graph:
    return {
        "model": {"class_type": "LoadWanModel", "inputs": {"diffusion_model": MODEL}},
        "data": {"class_type": "WanDatasetFromFile", "inputs": {"model": ["model", 0], **SIZE, **inputs}},
    }


def ran_again(comfy: ComfyServer, asked: Graph) -> bool:
    with comfy.events() as seen:
        comfy.run(asked)
    return "data" in {data["node"] for data in seen.of("executing") if data.get("node")}


def test_a_list_is_read_and_every_edit_of_it_or_of_what_it_names_is_noticed(comfy: ComfyServer, listed: Path) -> None:
    asked = graph(file="listed/list.jsonl")
    shown = comfy.outputs(comfy.run(asked), "data")
    report = shown["text"][0].splitlines()
    assert report[0] == "list.jsonl: 3 clips, 0 stills"
    assert "captions: 3 of 3 from the list" in report
    place = report.index("not used: 1 file")
    assert report[place + 1] == "  line 4 (gone.mp4): does not exist"
    assert shown["wan_dataset"][0]["image"]["filename"].endswith(".png")
    assert not ran_again(comfy, asked)

    clip = sorted(listed.glob("*.mp4"))[0]
    os.utime(clip, ns=(1, 1))  # the same bytes, another time: it may have been replaced
    assert ran_again(comfy, asked)
    (listed / "gone.mp4").write_bytes(clip.read_bytes())
    (listed / "gone.txt").write_text("a clip that came back")
    assert ran_again(comfy, asked)
    text = (listed / "list.jsonl").read_text().replace("a clip of", "a film of")
    (listed / "list.jsonl").write_text(text)
    assert ran_again(comfy, asked)
    assert not ran_again(comfy, asked)


def test_a_file_made_a_moment_ago_can_be_typed_or_chosen(comfy: ComfyServer, listed: Path) -> None:
    (listed / "new.csv").write_text("file,caption\n" + "".join(f"{c.name},x\n" for c in listed.glob("*.mp4")))
    for inputs in ({"file": "listed/new.csv"}, {"other_file": "input:listed/new.csv"}):
        assert "new.csv: 3 clips, 0 stills" in comfy.outputs(comfy.run(graph(**inputs)), "data")["text"][0]


def test_a_tar_is_cached_once_and_its_captions_are_counted(comfy: ComfyServer, listed: Path) -> None:
    with tarfile.open(listed / "set.tar", "w") as tar:
        for number, clip in enumerate(sorted(listed.glob("*.mp4"))):
            caption = f"a clip, number {number}, outdoors".encode()
            for name, data in ((f"{number:04}.mp4", clip.read_bytes()), (f"{number:04}.txt", caption)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    asked = training_graph("")
    del asked[TRAIN]
    asked["data"] = graph(file="listed/set.tar", weight=2.0)["data"]
    asked["said"] = {"class_type": "PreviewAny", "inputs": {"source": [CACHE, 1]}}
    report = comfy.outputs(comfy.run(asked), "said")["text"][0]
    assert report.startswith("3 items, 15 frames")
    assert "caption length: " in report
    # What is in the tar has the same bytes as the clips of the other tests, so only captions can be missing.
    asked["data"]["inputs"]["num_repeats"] = 2
    again = comfy.outputs(comfy.run(asked), "said")["text"][0]
    assert "latents: 0 encoded, 3 reused" in again
    assert "texts: 0 encoded, 5 reused" in again
    assert "caption length" not in again
    unpacked = comfy.output / "wan_trainer" / "_cache" / "unpacked"
    assert len(list(unpacked.glob("*/*.mp4"))) == 3


def test_settings_of_another_trainer_become_datasets(comfy: ComfyServer, listed: Path) -> None:
    (listed / "dataset.toml").write_text(
        "[general]\nresolution = [50, 50]\nenable_bucket = false\n"
        "[[datasets]]\nvideo_jsonl_file = 'list.jsonl'\ntarget_frames = [7]\ncache_directory = 'x'\n"
    )
    text = (listed / "list.jsonl").read_text().replace('"video"', '"video_path"').replace('"text"', '"caption"')
    (listed / "list.jsonl").write_text(text)
    report = comfy.outputs(comfy.run(graph(file="listed/dataset.toml", width=832)), "data")["text"][0]
    assert "dataset.toml, dataset 1: 3 clips, 0 stills" in report
    assert "buckets: 48x48x5 (3)" in report
    assert "target_frames 7 -> 5 frames (Wan needs 4n+1)" in report
    assert "resolution 50x50 -> 48x48 (sides are multiples of 16)" in report
    widgets = comfy.outputs(comfy.run(graph(file="listed/dataset.toml", use_file_settings=False, num_frames=9)), "data")
    assert "frames: 9 of each clip" in widgets["text"][0]


@pytest.mark.parametrize("typed", ["/etc/passwd", "../output/x.jsonl", "nowhere:x.jsonl", "~/x.csv", "http://h/x.csv"])
def test_files_elsewhere_are_refused_before_anything_runs(comfy: ComfyServer, listed: Path, typed: str) -> None:
    with pytest.raises(PromptRefused) as refused:
        comfy.run(graph(file="listed/list.jsonl", other_file=typed))
    said = str(refused.value)
    assert any(words in said for words in ("outside the allowed folders", "is unknown", "does not exist"))
