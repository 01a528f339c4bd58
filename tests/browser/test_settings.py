"""Wan Train Settings shows the first of its many settings: a search and groups bring the others, changes are marked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import Pages, shipped_in_ci, shows
from tests.browser.test_panel import serious

pytestmark = pytest.mark.browser

FINDER = '.wan-card[data-card="settings"]'
NODE = 'window.app.graph._nodes.find(n => n.type === "WanTrainSettings")'
SEEN = f"() => {NODE}.widgets.filter(w => w.serialize !== false && !w.hidden).map(w => w.name)"
TURN = f"""([name, value]) => {{
  const widget = {NODE}.widgets.find(w => w.name === name);
  widget.value = value;
  widget.callback?.(value);
}}"""
GRAPH = {"1": {"class_type": "WanTrainSettings", "inputs": {}}}
FIRST = [
    *("batch_size", "gradient_accumulation_steps", "optimizer", "lr_scheduler", "lr_warmup_steps"),
    "timestep_sampling",
]
OF_THE_PAIR = ["high_noise_share", "expert_order", "expert_turn_steps", "low_noise_learning_rate", "low_noise_rank"]


def sees(canvas: Any, *names: str) -> None:
    """Wait until the node shows these settings and no others."""
    canvas.page.wait_for_function(f"names => ({SEEN})().join() === names", arg=",".join(names))


@shipped_in_ci
def test_settings_are_found_by_search_and_group_and_changes_are_marked(pages: Pages, frontend: str) -> None:
    """On the newer frontend with the nodes it draws itself."""
    canvas = pages.take(vue=frontend != "shipped")
    canvas.load_api(GRAPH)
    finder = canvas.page.locator(FINDER)
    shows(finder, f"{len(FIRST)} of ")
    sees(canvas, *FIRST)
    before = canvas.to_prompt()["1"]["inputs"]
    assert len(before) >= 55, "what is not shown is not queued"

    finder.get_by_role("searchbox").fill("warmup")
    sees(canvas, "lr_warmup_steps", "lr_warmup_share")
    finder.get_by_role("searchbox").fill("learning rate")
    shows(finder, "learning_rate is in Train Wan LoRA")
    finder.get_by_role("searchbox").fill("")
    finder.get_by_role("button", name="Both experts").click()
    sees(canvas, *FIRST, *OF_THE_PAIR)
    canvas.script(TURN, ["weight_decay", 0.5])
    sees(canvas, *FIRST, "weight_decay", *OF_THE_PAIR)
    shows(finder, "Optimizer \u25cf1", "Changed from the default:", "weight_decay 0.5")
    assert serious(canvas, FINDER) == []
    canvas.screenshot("settings")
    canvas.load(canvas.script("() => window.app.graph.serialize()"))
    sees(canvas, *FIRST, "weight_decay", *OF_THE_PAIR)

    finder.get_by_role("button", name="weight_decay 0.5").click()
    sees(canvas, *FIRST, *OF_THE_PAIR)
    assert canvas.to_prompt()["1"]["inputs"] == before
    assert canvas.our_problems == []


DATASET = 'window.app.graph._nodes.find(n => n.type === "WanDatasetSettings")'
USUAL = ["frame_extraction", "crop", "horizontal_flip", "missing_captions", "held_out_ratio"]


def test_advanced_inputs_are_shown_on_request_or_where_they_are_changed(pages: Pages, frontend: str) -> None:
    """On the newer frontend with the nodes it draws itself."""
    canvas = pages.take(vue=frontend != "shipped")
    kind = "WanDatasetSettings"

    def shows_inputs(*names: str) -> None:
        seen = SEEN.replace("WanTrainSettings", kind)
        canvas.page.wait_for_function(f"names => ({seen})().join() === names", arg=",".join(names))

    canvas.load_api({"1": {"class_type": kind, "inputs": {}}})
    shows_inputs(*USUAL)
    before = canvas.to_prompt()["1"]["inputs"]
    assert len(before) == 25, "what is not shown is queued all the same"
    low = canvas.script(f"() => {DATASET}.size[1]")
    canvas.page.get_by_role("button", name="20 more settings").click()
    shows_inputs(*before)
    assert canvas.script(f"() => {DATASET}.size[1]") > low + 300
    canvas.script(TURN.replace("WanTrainSettings", kind), ["recursive", True])
    canvas.page.get_by_role("button", name="Fewer settings").click()
    changed = [*USUAL[:3], "recursive", *USUAL[3:]]
    shows_inputs(*changed)
    high = canvas.script(f"() => {DATASET}.size[1]")
    canvas.load(canvas.script("() => window.app.graph.serialize()"))
    shows_inputs(*changed)
    assert abs(canvas.script(f"() => {DATASET}.size[1]") - high) < 5, "a workflow opens as it was saved"
    assert canvas.to_prompt()["1"]["inputs"] == {**before, "recursive": True}
    assert canvas.our_problems == []


def test_one_strength_is_named_as_in_core_and_saved_under_its_id(pages: Pages) -> None:
    canvas = pages.take(vue=False)
    label = canvas.script("""() => {
      const node = window.LiteGraph.createNode("ApplyWanLoRA");
      window.app.graph.add(node);
      const widget = node.widgets.find(w => w.name === "strength_high_noise");
      widget.value = 0.5;
      return widget.label;
    }""")
    assert label == "strength_model"
    canvas.script("async () => { await window.app.loadGraphData(window.app.graph.serialize()); }")
    (saved,) = canvas.to_prompt().values()
    assert saved["inputs"]["strength_high_noise"] == 0.5
    assert "strength_model" not in saved["inputs"]
