"""From clips without captions to a dataset with them through POST /prompt, with a core node as the captioner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyError, ComfyServer
from graphs import Graph
from world import MODEL

pytestmark = pytest.mark.comfy


@pytest.fixture
def footage(comfy: ComfyServer) -> Path:
    """input/footage: the three clips of input/clips without captions."""
    folder = comfy.base / "input" / "footage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for clip in (comfy.base / "input" / "clips").glob("*.mp4"):
        shutil.copy(clip, folder)
    return folder


def graph(said: str = "The video shows ", frames: dict[str, Any] | None = None, **inputs: Any) -> Graph:
    size = {"width": 48, "height": 48, "num_frames": 5}
    captioner = {"string_a": said, "string_b": ["frames", 1], "delimiter": ""}
    save = {"dataset": ["data", 0], "captions": ["captioner", 0], "names": ["frames", 1], **inputs}
    return {
        "model": {"class_type": "LoadWanModel", "inputs": {"diffusion_model": MODEL}},
        "data": {"class_type": "WanVideoDataset", "inputs": {"model": ["model", 0], "folder": "footage", **size}},
        "frames": {"class_type": "WanClipFrames", "inputs": {"dataset": ["data", 0], "frames": 3, **(frames or {})}},
        "captioner": {"class_type": "StringConcatenate", "inputs": captioner},
        "save": {"class_type": "WanSaveCaptions", "inputs": save},
        "after": {"class_type": "PreviewAny", "inputs": {"source": ["save", 0]}},
    }


def ran(comfy: ComfyServer, asked: Graph) -> tuple[set[str], str, bool]:
    """Returns the nodes that ran, what Wan Save Captions says, and whether what follows has run."""
    with comfy.events() as seen:
        entry = comfy.run(asked)
    said = comfy.outputs(entry, "save")["text"][0]
    return {data["node"] for data in seen.of("executing")}, said, "after" in entry["outputs"]


def written(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}


def test_batches_are_saved_until_none_is_missing_and_then_no_captioner_runs(comfy: ComfyServer, footage: Path) -> None:
    names = sorted(clip.name for clip in footage.glob("*.mp4"))
    asked = graph(frames={"clips_this_queue": 2}, trigger_word="sks")
    _, said, followed = ran(comfy, asked)
    wanted = {Path(name).stem: f"sks, {name[0].upper()}{name[1:]}" for name in names}
    assert written(footage) == {stem: wanted[stem] for stem in list(wanted)[:2]}
    assert "2 captions written: about" in said
    assert "1 clip without a caption: press Run again" in said
    assert not followed
    _, said, followed = ran(comfy, asked)
    assert written(footage) == wanted
    assert "1 caption written: about" in said
    assert "captions: 3 of 3" in said
    assert followed
    nodes, said, _ = ran(comfy, asked)
    assert not nodes & {"frames", "captioner"}
    assert said == "3 captions kept, none written"
    # What is there already is replaced by its number alone, which is said before the captioner runs.
    again = graph("A film of ", frames={"clips": "all"}, replace_captions=1)
    with comfy.events() as seen, pytest.raises(ComfyError, match="3 of these 3 clips have a caption already"):
        comfy.run(again)
    assert "captioner" not in {data["node"] for data in seen.of("executing")}
    assert written(footage) == wanted


@pytest.mark.soak
def test_captions_are_replaced_by_their_number(comfy: ComfyServer, footage: Path) -> None:
    for clip in footage.glob("*.mp4"):
        clip.with_suffix(".txt").write_text("old", encoding="utf-8")
    ran(comfy, graph("A film of ", frames={"clips": "all"}, replace_captions=3))
    assert set(written(footage).values()) == {f"A film of {clip.name}" for clip in footage.glob("*.mp4")}
