"""A Japanese page of a server where another pack has ids of ours, as VideoX-Fun has LoadWanModel.

Nodes speak the language of the page, also on the frontend that forgets what packs bring; graphs keep the ids. Templates
and saved workflows open all the same. The page is given the nodes such a server has; which pack is loaded first makes
no difference to them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import make_locales
import pytest
from environment import CACHE

from tests.browser.conftest import Canvas, shipped_in_ci

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

PREFIX = "WanTrainer_"
TAKEN = ("LoadWanModel", "TrainLoRA", "WanVideoDataset")
THEIRS = {
    "input": {"required": {"model": [["a"], {}], "precision": [["fp16", "bf16"], {}]}},
    "input_order": {"required": ["model", "precision"]},
    "output": ["FunModels"],
    "output_name": ["funmodels"],
    "output_is_list": [False],
    "python_module": "custom_nodes.VideoX-Fun",
    "category": "CogVideoXFUNWrapper",
    "display_name": "Load Wan Model",
    "description": "",
    "output_node": False,
}
CREATE = """type => {
  const node = window.LiteGraph.createNode(type);
  window.app.graph.add(node);
  const told = [node.title, Boolean(node.wanTrainerPanel ?? node.wanTrainerCard ?? node.wanTrainerStatus)];
  window.app.graph.remove(node);
  return told;
}"""

# What the page offers in its library and search.
IN_MENUS = """names => {
  const stores = document.getElementById("vue-app").__vue_app__.config.globalProperties.$pinia._s;
  const known = stores.get("nodeDef").visibleNodeDefs.map(node => node.name);
  return names.map(name => known.includes(name));
}"""


@pytest.fixture(scope="module")
def japanese(canvas_context: Any, canvas_server: Any, frontend: str) -> Iterator[Canvas]:
    """A Japanese page of a server where VideoX-Fun has three ids of ours."""
    canvas_server.setting("Comfy.VueNodes.Enabled", False)
    canvas_server.setting("Comfy.Locale", "ja")
    page = Canvas(canvas_context.new_page(), canvas_server, CACHE / "screenshots" / frontend)

    def answer(route: Any) -> None:
        nodes = route.fetch().json()
        own = {n: d for n, d in nodes.items() if d["python_module"].endswith("WanTrainer") and not n.startswith(PREFIX)}
        second = {PREFIX + name: {**copy.deepcopy(d), "name": PREFIX + name} for name, d in own.items()}
        route.fulfill(json={**nodes, **second, **{name: {**THEIRS, "name": name} for name in TAKEN}})

    page.page.route("**/object_info", answer)
    yield page.open()
    page.page.close()
    canvas_server.setting("Comfy.Locale", "en")


def kinds(prompt: dict[str, Any]) -> list[str]:
    return sorted(body["class_type"] for body in prompt.values())


@shipped_in_ci
def test_workflows_of_ours_open_where_another_pack_has_our_ids(japanese: Canvas, workflows: dict[str, Any]) -> None:
    japanese.page.get_by_text("VideoX-Fun").first.wait_for()
    shipped = workflows["01_wan21_t2v_1.3B_clips"]
    types = sorted(node["type"] for node in shipped["nodes"] if node["type"] != "MarkdownNote")
    wanted = sorted(PREFIX + kind if kind in TAKEN else kind for kind in types)
    japanese.load(shipped)
    assert japanese.missing_nodes() == []
    prompt = japanese.to_prompt()
    assert kinds(prompt) == wanted
    (train,) = [body for body in prompt.values() if body["class_type"] == f"{PREFIX}TrainLoRA"]
    before = next(node for node in shipped["nodes"] if node["type"] == "TrainLoRA")["widgets_values_named"]
    assert {name: train["inputs"][name] for name in before} == before

    japanese.clear()
    graph = {node: {**body, "class_type": body["class_type"].removeprefix(PREFIX)} for node, body in prompt.items()}
    japanese.load_api(graph)
    assert kinds(japanese.to_prompt()) == wanted

    theirs = {"1": {"class_type": "LoadWanModel", "inputs": {"model": "a", "precision": "bf16"}}}
    japanese.load_api(theirs)
    assert kinds(japanese.to_prompt()) == ["LoadWanModel"]
    saved = japanese.script("() => window.app.graph.serialize()")
    japanese.load(saved)
    assert kinds(japanese.to_prompt()) == ["LoadWanModel"]

    assert japanese.script(CREATE, "TrainLoRA")[1] is False, "a node of theirs got our panel"
    assert japanese.script(CREATE, f"{PREFIX}TrainLoRA") == ["Wan LoRA を学習", True]
    assert japanese.script(CREATE, f"{PREFIX}WanVideoDataset")[1]
    assert japanese.script(IN_MENUS, [PREFIX + "LoadWanModel", PREFIX + "Fp8Quantize"]) == [True, False]
    assert japanese.our_problems == []


# Newer frontends keep what packs bring by themselves.
@pytest.mark.parametrize("frontend", ["shipped"], indirect=True)
def test_a_japanese_page_shows_japanese_nodes_and_saves_ids(japanese: Canvas) -> None:
    text = (make_locales.LOCALES / "ja" / "nodeDefs.json").read_text(encoding="utf-8")
    words = json.loads(text)["WanPreviewSettings"]
    japanese.clear()
    shown = japanese.script(SHOWN)
    names = {name: entry["name"] for name, entry in words["inputs"].items()}
    assert shown["title"] == words["display_name"]
    assert shown["inputs"] == names
    for found in (shown["widgets"], shown["boxes"]):
        more = [name for name in found if name.startswith("wan_trainer_more_")]  # the button for advanced inputs
        assert [found.pop(name) for name in more] == [None]
    assert shown["widgets"].items() <= names.items()
    assert len(shown["widgets"]) == 23
    assert shown["boxes"] == {name: names[name] for name in ("prompts", "negative_prompt")}
    assert shown["outputs"] == [entry["name"] for entry in words["outputs"].values()]
    x, y = japanese.page.wait_for_function(PLACE, arg=HOVERED).json_value()
    japanese.page.mouse.move(x - 20, y)
    japanese.page.mouse.move(x, y)
    japanese.page.get_by_text(words["inputs"][HOVERED]["tooltip"]).wait_for()
    (saved,) = japanese.to_prompt().values()
    assert set(saved["inputs"]) == set(shown["widgets"])
