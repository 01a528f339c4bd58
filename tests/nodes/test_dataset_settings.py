"""Wan Dataset Settings: what it refuses, and a training on windows and mirror images through the queue."""

from __future__ import annotations

from typing import Any

import pytest
from comfy_server import ComfyServer
from graphs import run_of, training_graph

from wan_core.dataset import DatasetConfig

pytestmark = pytest.mark.comfy


def values_of(pack_nodes: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    return dict(pack_nodes["WanDatasetSettings"].execute(**inputs).args[0].values)


def test_values_travel_as_settings_of_the_dataset(pack_nodes: dict[str, Any]) -> None:
    values = values_of(pack_nodes, frame_extraction="chunk", frame_buckets="17, 33 81", horizontal_flip="turns")
    assert values == {"frame_extraction": "chunk", "frame_buckets": (17, 33, 81), "horizontal_flip": "turns"}
    held_out = values_of(pack_nodes, held_out="a.mp4\n\n b \nlast/\n", frame_buckets="")
    assert held_out == {"frame_buckets": (), "held_out": ("a.mp4", "b"), "held_out_folder": "last"}


def test_a_queue_that_leaves_the_share_out_holds_nothing_out(pack_nodes: dict[str, Any]) -> None:
    """A node made now begins with -1; prompts of before, which lack it, mean what they meant."""
    shown = pack_nodes["WanDatasetSettings"].GET_NODE_INFO_V1()["input"]["optional"]["held_out_ratio"][1]
    assert (shown["default"], DatasetConfig(folder="clips", **values_of(pack_nodes)).held_out_ratio) == (-1.0, 0.0)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"frame_extraction": "chunks"}, 'frame_extraction "chunks" is not a choice. Did you mean "chunk"'),
        ({"frame_buckets": "17; 33"}, "is not a list of lengths. Example: 17, 33, 81"),
        ({"frame_buckets": "17, 30"}, "frame_buckets is 30; Wan needs 4n+1. Set frame_buckets to 29 or 33."),
        ({"crop": "centre"}, 'crop "centre" is not a choice. Did you mean "center"'),
        ({"frame_stride": 0}, "frame_stride is 0. Set it between 1 and 10000."),
    ],
)
def test_impossible_values_are_refused_with_the_fix(pack_nodes: dict[str, Any], inputs: Any, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  ConfigError of the pack's own copy of wan_core
        values_of(pack_nodes, **inputs)
    assert message in str(refused.value)


@pytest.mark.soak
def test_windows_and_mirror_images_are_cached_and_trained_on(comfy: ComfyServer) -> None:
    graph = training_graph("cut", steps=1)
    windows = {"frame_extraction": "uniform", "frame_sample": 2, "frame_rounding": "nearest"}
    graph["cuts"] = {"class_type": "WanDatasetSettings", "inputs": {**windows, "horizontal_flip": "both"}}
    graph["data"]["inputs"] |= {"settings": ["cuts", 0], "num_frames": 6}
    entry = comfy.run(graph)
    run = run_of(comfy, entry)
    assert (run["status"], run["cache"]["clips"]) == ("done", 3 * 2 * 2)
    # The first window as it is, of each clip, may be there from other runs on this server.
    assert run["cache"]["latents_encoded"] in (12, 9)
    report = str(comfy.outputs(entry, "data"))
    assert "frames: 5 (6 rounded down) of each clip" in report
    assert "windows: uniform, 6 of 3 clips (2 of each)" in report
    assert "mirrored: every sample also left to right" in report
