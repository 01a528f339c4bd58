"""The pack loads as ComfyUI loads it, with only ComfyUI's own packages present, and without doing anything else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from comfy_server import PACK_NAME, ComfyServer

ROOT = Path(__file__).resolve().parent.parent

# What a user's ComfyUI may lack. av is ComfyUI's own, but the engine must not need it to be imported.
OPTIONAL = (
    "peft",
    "torchao",
    "bitsandbytes",
    "tensorboard",
    "trackio",
    "wandb",
    "gguf",
    "flash_attn",
)
ENGINE_BLOCKED = (
    *OPTIONAL,
    "av",
    "comfy",
    "comfy_api",
    "folder_paths",
    "server",
    "nodes",
    "transformers",
)

BLOCK = """
import sys

class Block:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the test)", name=name)
        return None

sys.meta_path.insert(0, Block)
"""


def python(code: str, *arguments: str, blocked: tuple[str, ...], cwd: Path) -> str:
    """Run `code` in a fresh process where `blocked` cannot be imported; returns its stdout."""
    done = subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {set(blocked)!r}\n{BLOCK}\n{code}", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,  # one that hangs; a busy machine may take a minute or two
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_every_engine_module_imports_without_comfyui_and_optional_packages(tmp_path: Path) -> None:
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in sorted((ROOT / "wan_core").rglob("*.py"))
    ]
    code = (
        "import importlib, json, os, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "before = set(os.listdir('.'))\n"
        "for name in json.loads(sys.argv[2]):\n"
        "    importlib.import_module(name)\n"
        "assert set(os.listdir('.')) == before, 'an import wrote files'\n"
        "if 'torch' in sys.modules:\n"
        "    import torch\n"
        "    assert not torch.cuda.is_initialized(), 'an import touched the GPU'\n"
    )
    python(code, str(ROOT), json.dumps(names), blocked=ENGINE_BLOCKED, cwd=tmp_path)


def test_importing_the_engine_package_is_light(tmp_path: Path) -> None:
    code = "import sys\nsys.path.insert(0, sys.argv[1])\nimport wan_core\nprint('torch' in sys.modules)\n"
    assert python(code, str(ROOT), blocked=(), cwd=tmp_path).strip() == "False"


@pytest.mark.soak
@pytest.mark.comfy
@pytest.mark.skipif(not (ROOT / "__init__.py").exists(), reason="the pack has no __init__.py yet")
def test_the_pack_lists_its_nodes_with_optional_packages_absent(comfyui_tree: Path, tmp_path: Path) -> None:
    code = (
        "import sys, json\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import pack_loader\n"
        "pack = pack_loader.load_pack(Path(sys.argv[2]), Path.cwd())\n"
        "assert 'torch' not in sys.modules, 'the root module must import nothing heavy'\n"
        "print(json.dumps(sorted(pack_loader.list_nodes(pack))))\n"
    )
    tiny = str(ROOT / "tests" / "tiny")
    listed = json.loads(python(code, tiny, str(comfyui_tree), blocked=OPTIONAL, cwd=tmp_path).splitlines()[-1])
    first_six = {
        "LoadWanModel",
        "Fp8Quantize",
        "SplitAcrossGPUs",
        "CacheLatents",
        "TrainLoRA",
        "ValidateVideo",
    }
    assert first_six <= set(listed)


@pytest.mark.comfy
def test_every_schema_can_be_built(pack_nodes: dict[str, Any]) -> None:
    for node_id, node in pack_nodes.items():
        info = node.GET_NODE_INFO_V1()
        assert info["name"] == node_id
        assert info["display_name"] != node_id, f"{node_id} has no display name"
        assert info["description"], f"{node_id} has no description"


@pytest.mark.comfy
@pytest.mark.skipif(not list((ROOT / "web" / "docs").glob("*.md")), reason="no help page is written yet")
def test_every_node_has_a_help_page(pack_nodes: dict[str, Any]) -> None:
    pages = {file.stem for file in (ROOT / "web" / "docs").glob("*.md")}
    assert pages == set(pack_nodes)


@pytest.mark.comfy
@pytest.mark.skipif(not (ROOT / "__init__.py").exists(), reason="the pack has no __init__.py yet")
def test_a_real_server_imports_the_pack(comfy: ComfyServer) -> None:
    # Core files whose optional packages are not installed here fail too; they are not listed with a pack's path.
    failed = [line for line in comfy.log_text().splitlines() if "IMPORT FAILED" in line and PACK_NAME in line]
    assert failed == []
    assert "LoadWanModel" in comfy.object_info()
