"""Every shipped API graph against what a real server says its nodes take: by our own reading, and by the server's."""

from __future__ import annotations

import copy
import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer
from shipped_graphs.core_nodes import FOLDERS, SINCE

pytestmark = pytest.mark.comfy

API = sorted((Path(__file__).resolve().parents[2] / "workflows" / "api").glob("*.json"))
TYPES: dict[str, tuple[type, ...]] = {"INT": (int,), "FLOAT": (int, float), "STRING": (str,), "BOOLEAN": (bool,)}
DYNAMIC = "COMFY_DYNAMICCOMBO_V3"  # a choice whose options bring inputs of their own, in ComfyUI since 2026
# What a user chooses: this machine has none of the files the graphs name.
FILES = {*FOLDERS, "image", "folder"}

Graph = dict[str, dict[str, Any]]
Info = dict[str, Any]


def read(path: Path) -> Graph:
    return json.loads(path.read_text(encoding="utf-8"))


def faults(graph: Graph, info: Info) -> Iterator[str]:
    """Everything about a graph that its nodes would not take, as `node.input: why`."""
    for node, body in graph.items():
        required, optional = _inputs(info[body["class_type"]]["input"], body["inputs"])
        known = {**required, **optional}
        for name in required.keys() - body["inputs"].keys():
            yield f"{node}.{name}: missing"
        for name, value in body["inputs"].items():
            why = (
                _unfit(name, value, known[name], lambda link: _output(link, graph, info))
                if name in known
                else "unknown"
            )
            if why:
                yield f"{node}.{name}: {why}"


def _inputs(said: Info, given: dict[str, Any], before: str = "") -> tuple[Info, Info]:
    """Required and optional inputs by name, with those that the given option of a dynamic choice brings.

    A choice within another is left out where it is not given, as the server does it.
    """
    parts: tuple[Info, Info] = {}, {}
    for part, title in zip(parts, ("required", "optional"), strict=True):
        for name, spec in said.get(title, {}).items():
            if before and spec[0] == DYNAMIC and before + name not in given:
                continue
            part[before + name] = spec
            for option in spec[1]["options"] if spec[0] == DYNAMIC else ():
                if option["key"] == given.get(before + name):
                    for whole, more in zip(parts, _inputs(option["inputs"], given, f"{before}{name}."), strict=True):
                        whole.update(more)
    return parts


def _output(link: list[Any], graph: Graph, info: Info) -> str:
    outputs = info[graph[link[0]]["class_type"]]["output"]
    return str(outputs[link[1]]) if link[1] < len(outputs) else "nothing"


def _unfit(name: str, value: Any, spec: list[Any], output: Any) -> str:
    """Why an input does not take a value; empty when it does."""
    kind, options = spec[0], spec[1] if len(spec) > 1 else {}
    if isinstance(value, list):
        several = kind.split(",") if isinstance(kind, str) else []  # a socket may take one of several types
        return "" if output(value) in several else f"{output(value)} is not {kind}"
    choices = kind if isinstance(kind, list) else options.get("options")
    if kind == DYNAMIC:
        choices = [option["key"] for option in choices]
    if choices is not None:
        return "" if value in choices or (name in FILES and isinstance(value, str)) else "not a choice"
    if kind not in TYPES or type(value) not in TYPES[kind]:
        return f"{type(value).__name__} is not {kind}"
    if kind in ("INT", "FLOAT") and not options.get("min", value) <= value <= options.get("max", value):
        return "out of range"
    return ""


@pytest.mark.parametrize("path", API, ids=lambda path: path.stem)
def test_every_value_is_of_its_type_in_range_and_a_choice_and_every_link_fits(path: Path, comfy: ComfyServer) -> None:
    graph, info = read(path), comfy.object_info()
    if lacking := {body["class_type"] for body in graph.values()} - info.keys():
        assert lacking <= SINCE.keys()  # the graph's note says which version has them
        return
    assert list(faults(graph, info)) == []


def test_what_does_not_fit_is_found(comfy: ComfyServer) -> None:
    """Guards `faults` itself."""
    info, sound = comfy.object_info(), read(API[6])
    kinds = {body["class_type"]: node for node, body in sound.items()}
    train, sample, clip = kinds["TrainLoRA"], kinds["KSamplerAdvanced"], kinds["CLIPLoader"]
    save = kinds["SaveVideo"]
    wrong: list[tuple[str, str, Any, str]] = [
        (train, "steps", 0, "out of range"),
        (train, "steps", 1.5, "float is not INT"),
        (train, "run_name", None, "NoneType is not STRING"),
        (train, "expert", "middle", "not a choice"),
        (train, "epochs", 3, "unknown"),
        (train, "model", [clip, 0], "CLIP is not WAN_TRAIN_MODEL"),
        (train, "cache", [clip, 9], "nothing is not WAN_CACHE"),
        (sample, "cfg", 101.0, "out of range"),
        (sample, "add_noise", True, "not a choice"),
        (save, "codec", "film", "not a choice"),
        (save, "codec.crf", 20.0, "unknown"),
    ]
    for node, name, value, why in wrong:
        graph = copy.deepcopy(sound)
        graph[node]["inputs"][name] = value
        assert list(faults(graph, info)) == [f"{node}.{name}: {why}"]
    del (lacking := copy.deepcopy(sound))[sample]["inputs"]["model"]
    assert list(faults(lacking, info)) == [f"{sample}.model: missing"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"codec": "auto"}, []),
        ({"codec": "h264", "codec.crf": 20.0}, []),
        ({"codec": "h264", "codec.crf": 20.0, "codec.speed": 1}, []),
        ({"codec": "film"}, ["1.codec: not a choice"]),
        ({"codec": "h264"}, ["1.codec.crf: missing"]),
        ({"codec": "h264", "codec.crf": 52.0}, ["1.codec.crf: out of range"]),
        ({"codec": "auto", "codec.crf": 20.0}, ["1.codec.crf: unknown"]),
    ],
)
def test_what_an_option_of_a_dynamic_choice_brings_is_held_against_it(given: dict[str, Any], found: list[str]) -> None:
    """Guards `faults` on any ComfyUI: the choice is written out here, as 0.33 says it."""
    brings = {"required": {"crf": ["FLOAT", {"min": 0.0, "max": 51.0}]}, "optional": {"speed": ["INT", {}]}}
    options = [{"key": "auto", "inputs": {"required": {}}}, {"key": "h264", "inputs": brings}]
    info = {"SaveVideo": {"input": {"required": {"codec": [DYNAMIC, {"options": options}]}}, "output": []}}
    assert list(faults({"1": {"class_type": "SaveVideo", "inputs": given}}, info)) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"format": "mp4"}, []),
        ({"format": "mp4", "format.codec": "auto"}, []),
        ({"format": "mp4", "format.codec": "film"}, ["1.format.codec: not a choice"]),
        ({"format": "film", "format.codec": "auto"}, ["1.format: not a choice", "1.format.codec: unknown"]),
        ({}, ["1.format: missing"]),
    ],
)
def test_a_choice_within_a_choice_may_be_left_out(given: dict[str, Any], found: list[str]) -> None:
    """As SaveVideo has it after 0.33.0: graphs of older versions say the outer one alone."""
    inner = {"required": {"codec": [DYNAMIC, {"options": [{"key": "auto", "inputs": {}}]}]}}
    info = {
        "SaveVideo": {
            "input": {"required": {"format": [DYNAMIC, {"options": [{"key": "mp4", "inputs": inner}]}]}},
            "output": [],
        }
    }
    assert list(faults({"1": {"class_type": "SaveVideo", "inputs": given}}, info)) == found


def refused(comfy: ComfyServer, graph: Graph) -> dict[str, Any]:
    """POST /prompt really; what the server's own validation says of each node. A branch that is sound runs."""
    try:
        answer = comfy.post("/prompt", {"prompt": graph, "client_id": comfy.client_id})
    except urllib.error.HTTPError as refusal:
        return dict(json.loads(refusal.read())["node_errors"])
    comfy.wait(answer["prompt_id"], check=False)
    return dict(answer["node_errors"])


@pytest.mark.parametrize("path", API, ids=lambda path: path.stem)
def test_the_server_refuses_nothing_but_files_this_machine_lacks(path: Path, comfy: ComfyServer) -> None:
    graph, lacking = read(path), set()
    if newer := {body["class_type"] for body in graph.values()} - comfy.object_info().keys():
        assert newer <= SINCE.keys()  # the graph's note says which version has them
        return
    for node in refused(comfy, graph).values():
        for error in node["errors"]:
            assert error["extra_info"]["input_name"] in FILES, error
            assert error["type"] in ("value_not_in_list", "custom_validation_failed"), error
            lacking.add(error["extra_info"]["input_name"])
    assert "clip_name" in lacking, "every graph names the text encoder, which is not here"
