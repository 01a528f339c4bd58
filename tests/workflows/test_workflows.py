"""The shipped graphs: written by the script, valid for the nodes, the same in both forms."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import make_thumbnails
import make_workflows
import pytest
from comfy_server import PACK_NAME, ComfyServer
from PIL import Image
from PIL.ExifTags import Base
from route_server import our_module
from shipped_graphs.core_nodes import CONTROL, SINCE

from wan_core.dataset.held_out import A_FEW
from wan_core.lora import LoraConfig
from wan_core.train import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
CANVAS = sorted((ROOT / "workflows").glob("*.json"))
API = sorted((ROOT / "workflows" / "api").glob("*.json"))
WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
DYNAMIC = "COMFY_DYNAMICCOMBO_V3"  # SaveVideo's `codec` in ComfyUI since 0.33; one widget while it stands at "auto"


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def inputs_of(info: dict[str, Any]) -> dict[str, Any]:
    return {**info["input"].get("required", {}), **info["input"].get("optional", {})}


def is_widget(spec: Any) -> bool:
    is_socket = len(spec) > 1 and spec[1].get("forceInput")
    return isinstance(spec[0], list) or (spec[0] in {*WIDGETS, DYNAMIC} and not is_socket)


def widgets_of(info: dict[str, Any]) -> list[str]:
    """Names of the widgets the page makes, in order; behind a seed that changes by itself stands one that says how."""
    names = []
    for name, spec in inputs_of(info).items():
        if is_widget(spec):
            changes = len(spec) > 1 and spec[1].get(CONTROL)
            names += [name, CONTROL] if changes else [name]
    return names


def of_its_time(node: dict[str, Any], info: dict[str, Any], version: str) -> list[str]:
    """The widgets for which a node of the file holds values.

    On the page an optional widget that a newer core has at the end keeps its default, which is also what the server
    takes where the API form does not name it. The nodes of this pack, and core as old as the file, get no such grace.
    """
    names, count = widgets_of(info), len(node["widgets_values"])
    if node["properties"]["cnr_id"] == "comfy-core" and numbers(version) > numbers(node["properties"]["ver"]):
        optional = info["input"].get("optional", {})
        if all("default" in (*optional.get(name, [""]), {})[1] for name in names[count:]):
            return names[:count]
    return names


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def to_api(workflow: dict[str, Any], info: dict[str, Any], version: str) -> dict[str, Any]:
    """Canvas form to API form as the page does it, from what a real server of that version says about each node."""
    links = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    out = {}
    for node in workflow["nodes"]:
        if node["type"] == "MarkdownNote":
            continue
        widgets = of_its_time(node, info[node["type"]], version)
        inputs = dict(zip(widgets, node["widgets_values"], strict=True))
        inputs.pop(CONTROL, None)
        inputs |= {s["name"]: links[s["link"]] for s in node["inputs"] if s["link"] is not None}
        out[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return out


def test_the_files_are_what_the_script_writes() -> None:
    wanted = {path: path.read_text(encoding="utf-8") for path in [*CANVAS, *API]}
    assert make_workflows.files() == wanted


def test_every_graph_has_both_forms() -> None:
    assert names(CANVAS) == names(API)
    assert [name[:2] for name in names(CANVAS)] == [f"{number:02}" for number in range(1, len(CANVAS) + 1)]


@pytest.mark.parametrize("path", API, ids=lambda path: path.stem)
def test_a_graph_keeps_a_few_of_many_files_from_training_so_that_a_step_gets_a_star(path: Path) -> None:
    graph = read(path)
    (dataset,) = [node for node in graph.values() if node["class_type"] == "WanVideoDataset"]
    if "smoke" in path.stem:  # three clips, a minute
        assert "settings" not in dataset["inputs"]
        return
    settings = graph[dataset["inputs"]["settings"][0]]
    assert (settings["class_type"], settings["inputs"]["held_out_ratio"]) == ("WanDatasetSettings", A_FEW)
    assert {node["inputs"].get("held_out") for node in graph.values()} <= {None, ""}, "nothing else is held out"


def test_the_graph_for_two_gpus_has_the_settings_of_the_published_benchmark() -> None:
    graph = {node["class_type"]: node["inputs"] for node in read(API[5]).values()}
    assert graph["LoadWanModel"]["diffusion_model"] == "wan2.2_i2v_high_noise_14B_fp16.safetensors"
    assert graph["LoadWanModel"]["low_noise_model"] == "none"
    assert [graph["WanVideoDataset"][name] for name in ("width", "height", "num_frames")] == [832, 480, 49]
    assert [graph["TrainLoRA"][name] for name in ("rank", "expert")] == [32, "high"]
    assert "settings" not in graph["TrainLoRA"], "targets and accumulation are the defaults"
    assert (graph["Fp8Quantize"]["scheme"], graph["SplitAcrossGPUs"]["mode"]) == ("fp8_e4m3fn", "auto")
    assert TrainConfig().gradient_accumulation_steps == 1
    attention = [f"{kind}.{layer}" for kind in ("self_attn", "cross_attn") for layer in "qkvo"]
    names = [f"blocks.0.{layer}" for layer in (*attention, "ffn.0", "ffn.2")]
    others = ["blocks.0.norm3", "blocks.0.modulation", "head.head", "text_embedding.0"]
    assert [name for name in names + others if any(re.fullmatch(one, name) for one in LoraConfig().targets)] == names


@pytest.mark.comfy
@pytest.mark.parametrize("path", CANVAS, ids=lambda path: path.stem)
def test_both_forms_say_the_same(path: Path, comfy: ComfyServer) -> None:
    api = {
        k: {"class_type": v["class_type"], "inputs": v["inputs"]}
        for k, v in read(path.parent / "api" / path.name).items()
    }
    version, info = comfy.get("/system_stats")["system"]["comfyui_version"], comfy.object_info()
    if lacking := {body["class_type"] for body in api.values()} - info.keys():
        assert lacking <= SINCE.keys()  # the graph's note says which version has them
        return
    assert to_api(read(path), info, version) == api


def test_only_what_a_newer_core_appended_may_be_missing_from_a_file() -> None:
    """Guards `of_its_time`: a value too few is otherwise a fault of the file."""
    node = {"properties": {"cnr_id": "comfy-core", "ver": "0.3.75"}, "widgets_values": [16.0]}
    inputs = {
        "required": {"images": ["IMAGE", {}], "fps": ["FLOAT", {}]},
        "optional": {"depth": ["INT", {"default": 8}]},
    }
    assert of_its_time(node, {"input": inputs}, "0.33.0") == ["fps"]
    assert of_its_time(node, {"input": inputs}, "0.3.75") == ["fps", "depth"]
    ours = {**node, "properties": {"cnr_id": "wan-trainer", "ver": "0.1.0"}}
    assert of_its_time(ours, {"input": inputs}, "0.33.0") == ["fps", "depth"]
    asked = {"required": {**inputs["required"], **inputs["optional"]}}
    assert of_its_time(node, {"input": asked}, "0.33.0") == ["fps", "depth"]


@pytest.mark.parametrize("path", CANVAS, ids=lambda path: path.stem)
def test_values_by_name_are_those_by_position(path: Path) -> None:
    pinned = json.loads((ROOT / "tests" / "nodes" / "schemas.json").read_text(encoding="utf-8"))
    for node in read(path)["nodes"]:
        if node["type"] in pinned:
            inputs = pinned[node["type"]]["inputs"]
            names = [one["name"] for one in inputs if one["type"] in WIDGETS and not one.get("lazy")]
            assert list(node["widgets_values_named"].items()) == list(zip(names, node["widgets_values"], strict=True))


@pytest.mark.parametrize("path", CANVAS, ids=lambda path: path.stem)
def test_missing_packs_and_models_can_be_offered(path: Path) -> None:
    for node in read(path)["nodes"]:
        if node["type"] == "MarkdownNote":
            continue
        assert node["properties"]["cnr_id"] in ("wan-trainer", "comfy-core")
        assert node["properties"]["ver"]
        offered = node["properties"].get("models", [])
        for model in offered:
            assert model["url"].endswith(f"/{model['directory']}/{model['name']}")
        if "smoke" not in path.stem:  # its files are made, not published
            named = [v for v in node["widgets_values"] if str(v).endswith(".safetensors")]
            assert [model["name"] for model in offered] == named


@pytest.mark.comfy
def test_no_file_names_a_place_of_one_machine(pack_nodes: dict[str, Any]) -> None:
    scrubbed = our_module(pack_nodes, "runs.scrub").scrubbed
    assert scrubbed("see /data/me/clips") == "see [path removed]"
    for path in [*CANVAS, *API]:
        assert scrubbed(read(path)) == read(path), path.name


@pytest.mark.parametrize("path", CANVAS, ids=lambda path: path.stem)
def test_a_note_says_what_for_which_files_how_much_memory_and_how_long(path: Path) -> None:
    note, *_ = [node for node in read(path)["nodes"] if node["type"] == "MarkdownNote"]
    (text,) = note["widgets_values"]
    assert text.startswith("## ")
    for heading in ("**Files**", "**Memory**", "**How long**"):
        assert heading in text
    assert len(text) < 2000


@pytest.mark.comfy
def test_the_template_browser_lists_them_and_shows_a_picture_of_each(comfy: ComfyServer) -> None:
    offered = comfy.get("/workflow_templates")
    assert [path.stem for path in CANVAS] == sorted(offered[PACK_NAME])
    for path in CANVAS:
        with Image.open(io.BytesIO(comfy.get(f"/api/workflow_templates/{PACK_NAME}/{path.stem}.jpg"))) as picture:
            assert (picture.format, picture.size, picture.n_frames) == ("WEBP", (800, 450), 9)


@pytest.mark.parametrize("path", CANVAS, ids=names(CANVAS))
def test_the_thumbnail_of_a_graph_says_what_its_note_does(path: Path) -> None:
    """A picture cannot be compared with what is drawn here, since libraries differ; so it keeps its words."""
    words = make_thumbnails.words_of(read(path), path.name[:2])
    with Image.open(path.with_suffix(".jpg")) as picture:
        assert picture.getexif()[Base.ImageDescription] == words.comment(), "run scripts/generators/make_thumbnails.py"
        assert picture.size == make_thumbnails.SIZE
    assert path.with_suffix(".jpg").stat().st_size <= 80_000
    assert words.title
    assert "Train" in words.stages
    assert words.card
