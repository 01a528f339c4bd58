"""Nodes speak the language of the page, also on the frontend that forgets what packs bring; graphs keep the ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import make_locales
import pytest

from tests.browser.conftest import Pages

pytestmark = pytest.mark.browser

HOVERED = "num_frames"
SHOWN = """() => {
  const node = window.LiteGraph.createNode("WanPreviewSettings");
  window.app.graph.add(node);
  node.pos = [300, 150];
  const view = window.app.canvas;
  [view.ds.scale, view.ds.offset] = [1, [0, 0]];
  view.draw(true, true);
  return {
    title: node.title,
    widgets: Object.fromEntries(node.widgets.map(w => [w.name, w.label])),
    boxes: Object.fromEntries(node.widgets.filter(w => w.element).map(w => [w.name, w.element.placeholder])),
    inputs: Object.fromEntries(node.inputs.map(i => [i.name, i.localized_name])),
    outputs: node.outputs.map(o => o.localized_name),
  };
}"""
PLACE = """name => {
  window.app.canvas.draw(true, true);  // the multi-line boxes share the height that hidden inputs leave
  const [node] = window.app.graph._nodes, edge = window.app.canvas.canvas.getBoundingClientRect();
  return [node.pos[0] + 80 + edge.left, node.pos[1] + node.widgets.find(w => w.name === name).y + 10 + edge.top];
}"""


@pytest.fixture
def japanese(canvas_server: Any) -> Iterator[None]:
    """The page comes up in Japanese."""
    canvas_server.setting("Comfy.Locale", "ja")
    yield
    canvas_server.setting("Comfy.Locale", "en")


# Newer frontends keep what packs bring by themselves.
@pytest.mark.parametrize("frontend", ["shipped"], indirect=True)
@pytest.mark.usefixtures("japanese")  # first: the page asks for its language once
def test_a_japanese_page_shows_japanese_nodes_and_saves_ids(canvas: Any) -> None:
    text = (make_locales.LOCALES / "ja" / "nodeDefs.json").read_text(encoding="utf-8")
    words = json.loads(text)["WanPreviewSettings"]
    canvas.clear()
    shown = canvas.script(SHOWN)
    names = {name: entry["name"] for name, entry in words["inputs"].items()}
    assert shown["title"] == words["display_name"]
    assert shown["inputs"] == names
    for found in (shown["widgets"], shown["boxes"]):
        assert found.pop("wan_trainer_more_1", "") is None, "the button that shows the advanced inputs"
    assert shown["widgets"].items() <= names.items()
    assert len(shown["widgets"]) == 23
    assert shown["boxes"] == {name: names[name] for name in ("prompts", "negative_prompt")}
    assert shown["outputs"] == [entry["name"] for entry in words["outputs"].values()]
    x, y = canvas.page.wait_for_function(PLACE, arg=HOVERED).json_value()
    canvas.page.mouse.move(x - 20, y)
    canvas.page.mouse.move(x, y)
    canvas.page.get_by_text(words["inputs"][HOVERED]["tooltip"]).wait_for()
    (saved,) = canvas.to_prompt().values()
    assert set(saved["inputs"]) == set(shown["widgets"])


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
