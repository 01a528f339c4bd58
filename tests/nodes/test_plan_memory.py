"""Memory is planned on the canvas, and what does not fit is refused before a clip is encoded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from comfy_server import ComfyServer
from graphs import CACHE, TRAIN, Graph, folder_of, training_graph

from wan_core.placement.cards import CARD_LIMIT, room_of_cards

pytestmark = [pytest.mark.comfy, pytest.mark.lasts(6)]

PLAN = "plan"
GIB = 1 << 30


def plan_graph(**plan: object) -> Graph:
    """PlanMemory in the place of TrainLoRA."""
    graph = training_graph("none")
    del graph[TRAIN]
    graph[PLAN] = {"class_type": "PlanMemory", "inputs": {"model": ["model", 0], "cache": [CACHE, 0], **plan}}
    return graph


def test_a_training_is_planned_and_nothing_is_trained(comfy: ComfyServer) -> None:
    said = comfy.outputs(comfy.run(plan_graph(rank=8)), PLAN)["text"][0]
    assert "48x48x5, rank 8" in said
    assert "cpu: " in said
    assert "step " in said
    assert said.endswith("It fits.")
    assert not folder_of(comfy, "none").exists()


def test_what_does_not_fit_is_refused_before_a_clip_is_encoded(own_comfy: Callable[..., ComfyServer]) -> None:
    """The text encoder of these graphs can say what it is only when it is loaded; the VAE need not be."""
    reserve = 16 - room_of_cards([16]).devices["cuda:0"] / GIB
    comfy = own_comfy(env={CARD_LIMIT: str(reserve + 1e-4)})
    with comfy.events() as seen:
        entry = comfy.run(training_graph("too_large"), timeout=60, check=False)
    assert entry["status"]["status_str"] == "error"
    assert "vae" not in {data["node"] for data in seen.of("executing") if data.get("node")}
    said = comfy.error(entry)
    assert "48x48x5 at rank 4 needs" in said
    assert "Nothing smaller fits" in said
    assert not folder_of(comfy, "too_large").exists()
