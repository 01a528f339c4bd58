"""The shipped graphs: written by the script, valid for the nodes, the same in both forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import make_workflows
import pytest
from comfy_server import ComfyServer
from shipped_graphs.core_nodes import CONTROL

ROOT = Path(__file__).resolve().parents[2]
CANVAS = sorted((ROOT / "workflows").glob("*.json"))
API = sorted((ROOT / "workflows" / "api").glob("*.json"))
WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def inputs_of(info: dict[str, Any]) -> dict[str, Any]:
    return {**info["input"].get("required", {}), **info["input"].get("optional", {})}


def is_widget(spec: Any) -> bool:
    return isinstance(spec[0], list) or spec[0] in WIDGETS


def widgets_of(info: dict[str, Any]) -> list[str]:
    """Names of the widgets the page makes, in order; behind a seed that changes by itself stands one that says how."""
    names = []
    for name, spec in inputs_of(info).items():
        if is_widget(spec):
            changes = len(spec) > 1 and spec[1].get(CONTROL)
            names += [name, CONTROL] if changes else [name]
    return names


def to_api(workflow: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """Canvas form to API form as the page does it, from what a real server says about each node."""
    links = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    out = {}
    for node in workflow["nodes"]:
        if node["type"] == "MarkdownNote":
            continue
        inputs = dict(zip(widgets_of(info[node["type"]]), node["widgets_values"], strict=True))
        inputs.pop(CONTROL, None)
        inputs |= {s["name"]: links[s["link"]] for s in node["inputs"] if s["link"] is not None}
        out[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return out


def test_the_files_are_what_the_script_writes() -> None:
    wanted = {path: path.read_text(encoding="utf-8") for path in [*CANVAS, *API]}
    assert make_workflows.files() == wanted


def test_every_graph_has_both_forms() -> None:
    assert names(CANVAS) == names(API)
    assert [name[:2] for name in names(CANVAS)] == [f"{number:02}" for number in range(1, 9)]


@pytest.mark.comfy
@pytest.mark.parametrize("path", CANVAS, ids=lambda path: path.stem)
def test_both_forms_say_the_same(path: Path, comfy: ComfyServer) -> None:
    api = {
        k: {"class_type": v["class_type"], "inputs": v["inputs"]}
        for k, v in read(path.parent / "api" / path.name).items()
    }
    assert to_api(read(path), comfy.object_info()) == api


@pytest.mark.comfy
@pytest.mark.parametrize("path", API, ids=lambda path: path.stem)
def test_every_input_is_known_and_every_link_fits(path: Path, comfy: ComfyServer) -> None:
    info, graph = comfy.object_info(), read(path)
    for body in graph.values():
        known = inputs_of(info[body["class_type"]])
        assert set(body["inputs"]) <= set(known)
        required = set(info[body["class_type"]]["input"].get("required", {}))
        assert required <= set(body["inputs"])
        for name, value in body["inputs"].items():
            if isinstance(value, list):
                source = info[graph[value[0]]["class_type"]]
                assert source["output"][value[1]] == known[name][0]


@pytest.mark.parametrize("path", CANVAS, ids=lambda path: path.stem)
def test_missing_packs_and_models_can_be_offered(path: Path) -> None:
    for node in read(path)["nodes"]:
        if node["type"] == "MarkdownNote":
            continue
        assert node["properties"]["cnr_id"] in ("wan-trainer", "comfy-core")
        assert node["properties"]["ver"]
        for model in node["properties"].get("models", []):
            assert model["url"].endswith(f"/{model['directory']}/{model['name']}")
            assert model["name"] in node["widgets_values"]


@pytest.mark.comfy
def test_the_template_browser_lists_them(comfy: ComfyServer) -> None:
    offered = comfy.get("/workflow_templates")
    assert [path.stem for path in CANVAS] == sorted(offered["ComfyUI-WanTrainer"])
