"""Runs in letters of any script, in a real ComfyUI: files, loader lists, routes, going on, use and deletion."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from comfy_server import ComfyServer
from graphs import TRAIN, folder_of, run_of, training_graph
from route_server import our_module, write_run

pytestmark = [pytest.mark.comfy, pytest.mark.lasts(5)]


@pytest.mark.parametrize("name", ["动漫风格", pytest.param("Алиса_v1 (é+)", marks=pytest.mark.soak)])
def test_a_run_in_letters_of_another_script(comfy: ComfyServer, name: str) -> None:
    graph = training_graph(name, steps=2)
    graph[TRAIN]["inputs"] |= {"vae": ["vae", 0], "preview_every_n_steps": 2, "save_every_n_steps": 1}
    ended = run_of(comfy, comfy.run(graph))
    assert (ended["run"], ended["status"], ended["lora_name"]) == (
        *(name, "done", os.path.join("wan_trainer", f"{name}.safetensors")),
    )
    assert folder_of(comfy, name).is_dir()
    listed = comfy.get("/models/loras")
    assert {os.path.join("wan_trainer", f"{name}{step}.safetensors") for step in ("", "_000001", "_000002")} <= {
        *listed
    }

    assert name in [run["id"] for run in comfy.get("/wan_trainer/runs")["runs"]]
    route = f"/wan_trainer/runs/{quote(name)}"
    about = comfy.get(route)
    assert (about["id"], about["step"], about["in_use"]) == (name, 2, 2)
    (*_, clip) = about["samples"]
    assert clip["url"].startswith(route)
    assert b"ftyp" in comfy.get(clip["url"])[:16]
    assert len(comfy.get(f"{route}/metrics")["records"]) > 2
    assert comfy.get(f"{route}/workflow")

    changed = {"headers": {"X-Wan-Trainer": "1"}}
    assert comfy.post(f"{route}/use", {"step": 1}, **changed)["lora_name"] == ended["lora_name"]
    assert comfy.get(route)["in_use"] == 1
    info = comfy.object_info("LoraLoaderModelOnly")["LoraLoaderModelOnly"]["input"]["required"]["lora_name"]
    assert ended["lora_name"] in str(info)

    graph[TRAIN]["inputs"]["steps"] = 3
    spelled = unicodedata.normalize("NFD", name.swapcase())
    graph[TRAIN]["inputs"]["run_name"] = spelled
    again = run_of(comfy, comfy.run(graph))
    assert (again["run"], again["step"], again["status"]) == (name, 3, "done")
    assert ("is the same name" in again["note"]) == (name.swapcase() != name)

    assert comfy.post(f"{route}/delete", {"confirm": name}, **changed)["kept"] == []
    assert not folder_of(comfy, name).exists()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("con", "Windows keeps that name for a device"),
        ("v1.", "must not end with a dot or space, which Windows drops"),
        ("a:b", "must not have ':' in it"),
        ("-x", "must start with a letter or digit"),
    ],
)
def test_a_refusal_says_the_rule_before_anything_is_encoded(comfy: ComfyServer, name: str, rule: str) -> None:
    with comfy.events() as seen:
        entry = comfy.run(training_graph(name), timeout=60, check=False)
    assert rule in comfy.error(entry)
    assert entry["status"]["status_str"] == "error"
    assert not {data["node"] for data in seen.of("executing") if data.get("node")} & {"vae", "clip"}


def test_a_folder_that_a_mac_spelled_is_listed_and_found_by_its_own_name(
    pack_nodes: dict[str, Any], tmp_path: Path
) -> None:
    folders = our_module(pack_nodes, "routes.run_folders")
    name = unicodedata.normalize("NFD", "größe 動")
    directory = write_run(tmp_path / "runs", name)
    assert folders.list_runs(tmp_path / "runs") == [(name, directory)]
    assert folders.find_run(tmp_path / "runs", name) == directory
    with pytest.raises(Exception, match="no such run"):
        folders.find_run(tmp_path / "runs", unicodedata.normalize("NFC", name).upper())
