"""A server with all that can be wrong around the pack: other packs have ids of ours, one loaded before us and one
after us; our pack is there twice; packages that others brought are broken. It starts, and both packs' nodes work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ROOT, ComfyServer, link_folder
from graphs import Graph, folder_of, run_of, training_graph
from world import CLIP

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(2)]

OTHER = """
class LoadsSomethingElse:
    RETURN_TYPES = ("FunModels",)
    FUNCTION = "load"
    CATEGORY = "other"

    @classmethod
    def INPUT_TYPES(cls):
        return {{"required": {{"model": (["a"],)}}}}

    def load(self, model):
        return (model,)

NODE_CLASS_MAPPINGS = {{"{node_id}": LoadsSomethingElse}}
"""
TAKEN = {"LoadWanModel": "VideoX-Fun", "Fp8Quantize": "Quantizers"}
"""id -> the pack that has it; the first pack is loaded before ours, the second after it"""
NAMES = {"LoadWanModel": "Load Wan Model (Training)", "Fp8Quantize": "Fp8 / Int8 Quantize (Wan)"}


@pytest.fixture(scope="module")
def server(
    comfy_base: Callable[..., Path], comfyui_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyServer]:
    """The server; which pack comes first is an order of folders."""
    place = tmp_path_factory.mktemp("around")
    folders = [place / "before", place / "after"]
    for folder, (node_id, pack) in zip(folders, TAKEN.items(), strict=True):
        (folder / pack).mkdir(parents=True)
        (folder / pack / "__init__.py").write_text(OTHER.format(node_id=node_id), encoding="utf-8")
    link_folder(ROOT, folders[1] / "ComfyUI-WanTrainer-main")
    (place / "paths.yaml").write_text(
        f"before:\n  is_default: true\n  custom_nodes: {folders[0].as_posix()}\n"
        f"after:\n  custom_nodes: {folders[1].as_posix()}\n",
        encoding="utf-8",
    )
    (place / "packages").mkdir()
    for name in ("peft", "torchao"):
        broken = place / "packages" / f"{name}.py"
        broken.write_text("raise ImportError('broken by the test')", encoding="utf-8")
    with ComfyServer(
        comfy_base("crowded"),
        comfyui=comfyui_tree,
        main=ROOT / "tests" / "tiny" / "quick_main.py",
        flags=["--extra-model-paths-config", str(place / "paths.yaml")],
        env={"PYTHONPATH": str(place / "packages")},  # it comes first
    ) as server:
        yield server


def prefixed(graph: Graph) -> Graph:
    """With second ids for every node of ours, as docs/use/headless.md has them."""
    others = {"VAELoader", CLIP}
    return {
        node: body if (kind := body["class_type"]) in others else {**body, "class_type": f"WanTrainer_{kind}"}
        for node, body in graph.items()
    }


def test_packs_before_and_after_us_keep_their_nodes_and_ours_answer_to_second_ids(server: ComfyServer) -> None:
    info: dict[str, Any] = server.object_info()
    for node_id, pack in TAKEN.items():
        theirs, ours = info[node_id], info[f"WanTrainer_{node_id}"]
        assert theirs["output"] == ["FunModels"]
        assert theirs["python_module"] == f"custom_nodes.{pack}"
        assert ours["output"][0] == "WAN_TRAIN_MODEL"
        assert ours["display_name"] == NAMES[node_id]
        assert not ours["deprecated"], "the only one of ours: menus must show it"
    assert info["WanTrainer_LoadWanModel"]["output"] == ["WAN_TRAIN_MODEL", "STRING"]
    assert info["WanTrainer_TrainLoRA"]["deprecated"], "menus show TrainLoRA already"
    assert not info["TrainLoRA"]["deprecated"]
    assert server.get("/wan_trainer/ids") == {
        "version": 1,
        "prefix": "WanTrainer_",
        "taken": {node_id: f"custom_nodes.{pack}" for node_id, pack in TAKEN.items()},
    }
    said = [line for line in server.log_text().splitlines() if "is no node of ComfyUI-WanTrainer" in line]
    assert len(said) == len(TAKEN)
    for node_id, pack in TAKEN.items():
        sentence = (
            f"{node_id} of custom_nodes.{pack} is no node of ComfyUI-WanTrainer. Workflows that are opened here use "
            f"WanTrainer_{node_id} instead; in API graphs write that yourself."
        )
        assert any(line.endswith(sentence) for line in said), said  # newer ComfyUI puts the level before it
    graph = prefixed(training_graph("second"))
    scanned = server.run({node: graph[node] for node in ("model", "data")}, timeout=120)
    assert "clips: 3 clips" in server.outputs(scanned, "data")["text"][0]


def test_a_second_copy_of_ours_is_not_used_and_the_log_says_so(server: ComfyServer) -> None:
    said = [line for line in server.log_text().splitlines() if "installed twice" in line]
    assert len(said) == 1
    assert "ComfyUI-WanTrainer is installed twice: custom_nodes.ComfyUI-WanTrainer is used, " in said[0]
    assert said[0].endswith("Remove one of them.")


@pytest.mark.soak
def test_packages_that_others_brought_and_that_are_broken_keep_nobody_from_training(server: ComfyServer) -> None:
    """Nothing of ours imports them: neither the nodes nor the worker."""
    done = run_of(server, server.run(prefixed(training_graph("nopeft")), timeout=120))
    assert (done["status"], done["step"]) == ("done", 4)
    assert "broken by the test" not in server.log_text() + (folder_of(server, "nopeft") / "log.txt").read_text()
