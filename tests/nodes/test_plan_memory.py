"""Memory is planned on the canvas, and what does not fit is refused before a clip is encoded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from clips import place_clips
from comfy_server import ComfyServer
from graphs import CACHE, TRAIN, Graph, folder_of, training_graph

from wan_core.placement import free_memory_of_cards

pytestmark = pytest.mark.comfy

PLAN = "plan"
GIB = 1 << 30


def plan_graph(**plan: object) -> Graph:
    """PlanMemory in the place of TrainLoRA."""
    graph = training_graph("none")
    del graph[TRAIN]
    graph[PLAN] = {"class_type": "PlanMemory", "inputs": {"model": ["model", 0], "cache": [CACHE, 0], **plan}}
    return graph


def test_a_training_is_planned_and_nothing_is_trained(comfy: ComfyServer) -> None:
    outputs = comfy.outputs(comfy.run(plan_graph(rank=8)), PLAN)
    said = outputs["text"][0]
    (card,) = outputs["wan_plan"]
    assert card == {
        "version": 1,
        "report": said,
        "cards": None,
        "asked": {"rank": 8, **card["asked"]},
    }, "one device: nothing is drawn"
    assert "48x48x5, rank 8" in said
    assert "cpu: " in said
    assert "step " in said
    assert said.endswith("It fits.")
    assert not folder_of(comfy, "none").exists()


@pytest.fixture
def card(comfy: ComfyServer) -> Iterator[Callable[[str], None]]:
    """Says how many GiB the server takes its card for; "": as it is."""

    def set_to(gib: str) -> None:
        comfy.post("/tiny/card", {"gib": gib})

    yield set_to
    set_to("")


def unseen_graph(comfy: ComfyServer, run_name: str, boxes: int) -> Graph:
    """Clips that nobody has encoded, of so many empty boxes at their ends, and a VAE that nobody has loaded."""
    for clip in place_clips(comfy.base / "input" / run_name).glob("*.mp4"):
        clip.write_bytes(clip.read_bytes() + boxes * b"\0\0\0\x08free")
    vae = comfy.base / "models" / "vae"
    shutil.copy(vae / "wan_tiny_vae.safetensors", vae / f"{run_name}.safetensors")
    graph = training_graph(run_name, run_name, steps=1)
    graph["vae"]["inputs"]["vae_name"] = f"{run_name}.safetensors"
    return graph


def test_what_does_not_fit_is_refused_before_a_clip_is_encoded(comfy: ComfyServer, card: Callable[[str], None]) -> None:
    """The text encoder of these graphs can say what it is only when it is loaded; the VAE need not be."""
    graph, loads_vae = unseen_graph(comfy, "too_large", 1), []
    reserve = 16 - free_memory_of_cards([16]).devices["cuda:0"] / GIB
    for gib in (str(reserve + 1e-4), ""):
        card(gib)
        with comfy.events() as seen:
            entry = comfy.run(graph, timeout=60, check=not gib)
        loads_vae.append("vae" in {data["node"] for data in seen.of("executing") if data.get("node")})
        if gib:
            said = comfy.error(entry)
            assert "48x48x5 at rank 4 needs" in said
            assert "Nothing smaller fits" in said
            assert not folder_of(comfy, "too_large").exists()
    assert loads_vae == [False, True]


def test_clips_of_a_step_that_cannot_be_are_refused_before_one_is_encoded(comfy: ComfyServer) -> None:
    graph = unseen_graph(comfy, "uneven", 2)
    graph["settings"] = {"class_type": "WanTrainSettings", "inputs": {"batch_size": 2, "global_batch_size": 3}}
    graph[TRAIN]["inputs"]["settings"] = ["settings", 0]
    with comfy.events() as seen:
        said = comfy.error(comfy.run(graph, timeout=60, check=False))
    assert "global_batch_size 3 is not a multiple of 2" in said
    assert "vae" not in {data["node"] for data in seen.of("executing") if data.get("node")}
