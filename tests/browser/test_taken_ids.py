"""Another pack has an id of ours, as VideoX-Fun has LoadWanModel: templates and saved workflows open all the same.

The page is given the nodes such a server has; which pack is loaded first makes no difference to them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from environment import CACHE

from tests.browser.conftest import Canvas

pytestmark = pytest.mark.browser

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


@pytest.fixture
def crowded(canvas_context: Any, canvas_server: Any, frontend: str) -> Iterator[Canvas]:
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


def test_workflows_of_ours_open_where_another_pack_has_our_ids(crowded: Canvas, workflows: dict[str, Any]) -> None:
    crowded.page.get_by_text("VideoX-Fun").first.wait_for()
    shipped = workflows["01_wan21_t2v_1.3B_clips"]
    types = sorted(node["type"] for node in shipped["nodes"] if node["type"] != "MarkdownNote")
    wanted = sorted(PREFIX + kind if kind in TAKEN else kind for kind in types)
    crowded.load(shipped)
    assert crowded.missing_nodes() == []
    prompt = crowded.to_prompt()
    assert kinds(prompt) == wanted
    (train,) = [body for body in prompt.values() if body["class_type"] == f"{PREFIX}TrainLoRA"]
    before = next(node for node in shipped["nodes"] if node["type"] == "TrainLoRA")["widgets_values_named"]
    assert {name: train["inputs"][name] for name in before} == before

    crowded.clear()
    graph = {node: {**body, "class_type": body["class_type"].removeprefix(PREFIX)} for node, body in prompt.items()}
    crowded.load_api(graph)
    assert kinds(crowded.to_prompt()) == wanted

    theirs = {"1": {"class_type": "LoadWanModel", "inputs": {"model": "a", "precision": "bf16"}}}
    crowded.load_api(theirs)
    assert kinds(crowded.to_prompt()) == ["LoadWanModel"]
    saved = crowded.script("() => window.app.graph.serialize()")
    crowded.load(saved)
    assert kinds(crowded.to_prompt()) == ["LoadWanModel"]

    assert crowded.script(CREATE, "TrainLoRA")[1] is False, "a node of theirs got our panel"
    assert crowded.script(CREATE, f"{PREFIX}TrainLoRA") == ["Wan LoRA を学習", True]
    assert crowded.script(CREATE, f"{PREFIX}WanVideoDataset")[1]
    assert crowded.script(IN_MENUS, [PREFIX + "LoadWanModel", PREFIX + "Fp8Quantize"]) == [True, False]
    assert crowded.our_problems == []
