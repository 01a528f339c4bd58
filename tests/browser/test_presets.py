"""A preset fills clip size, block swap and steps into the widgets of a training; Ctrl+Z puts the old values back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from comfy_server import ComfyServer

from tests.browser.conftest import PATIENCE_MS, Pages, shipped_in_ci, shows, tiny_canvas
from tests.browser.test_panel import serious

pytestmark = pytest.mark.browser

ROW = '.wan-card[data-card="preset"]'
GROW = """async () => {
  const node = window.app.graph._nodes.find(n => n.type === "TrainLoRA"), before = node.size[1];
  document.querySelector(".wan-card[data-card=preset] p").textContent += " A late sentence.".repeat(20);
  for (let turn = 0; turn < 60 && node.size[1] === before; turn += 1) {
    node.setDirtyCanvas(true, true);
    await new Promise(requestAnimationFrame);
  }
  return node.size[1] - before;
}"""
FILLED = {"width": 624, "height": 624, "num_frames": 33, "steps": 400, "blocks_to_swap": -1}


@pytest.fixture
def card_of_16_gib(canvas_server: ComfyServer) -> Iterator[ComfyServer]:
    canvas_server.post("/tiny/card", {"gib": "16"})
    yield canvas_server
    canvas_server.post("/tiny/card", {"gib": ""})


def values(canvas: Any) -> dict[str, Any]:
    """The values that a preset fills, as the queue would get them."""
    nodes = {node["class_type"]: node["inputs"] for node in canvas.to_prompt().values()}
    both = {**nodes["WanVideoDataset"], **nodes["TrainLoRA"]}
    return {name: both[name] for name in FILLED}


@shipped_in_ci
def test_a_preset_fills_the_nodes_and_is_undone(
    pages: Pages, workflows: dict[str, Any], card_of_16_gib: ComfyServer, frontend: str
) -> None:
    """On the newer frontend with the nodes it draws itself."""
    from playwright.sync_api import expect

    canvas = pages.take(vue=frontend != "shipped")
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA={"run_name": "presets"}))
    prompt, before, saved = canvas.to_prompt(), values(canvas), canvas.script("() => window.app.graph.serialize()")
    row = canvas.page.locator(ROW)
    assert canvas.node("TrainLoRA").evaluate("node => node.widgets[0].name").startswith("wan_trainer_preset")

    row.get_by_role("combobox").select_option("24 GB, good")
    shows(row.get_by_role("status"), "The GPU has 16.0 GiB. Choose a preset of no more than that.")
    assert values(canvas) == before
    row.get_by_role("combobox").select_option("16 GB, quick look")
    shows(row.get_by_role("status"), "33 frames of 624x624, 400 steps: about ", "(predicted for RTX 4080)")
    assert values(canvas) == FILLED
    assert serious(canvas, ROW) == []
    canvas.show(ROW)
    canvas.screenshot("preset")

    grown = canvas.script(GROW)  # by a text that comes after the preset has filled the widgets
    canvas.page.mouse.click(1500, 900)  # the page records what has changed
    canvas.page.keyboard.press("Control+z")
    expect(row.get_by_role("combobox")).to_have_value("", timeout=PATIENCE_MS)
    canvas.prompt_becomes(prompt)
    assert grown or canvas.vue, "the canvas makes room for the text"
    # The row is no value of a workflow, by position or by name.
    (node,) = [one for one in saved["nodes"] if one["type"] == "TrainLoRA"]
    assert len(node["widgets_values"]) == len(node["widgets_values_named"])
    assert list(node["widgets_values_named"].values()) == node["widgets_values"]
    assert node["widgets_values"][0] == "presets"
    assert canvas.our_problems == []
