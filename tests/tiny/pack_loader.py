"""Load the pack as ComfyUI does, in this process: `pack = load_pack(tree, base)`.

For tests of node classes and schemas that need no server. ComfyUI's tree goes first on sys.path, because its top-level
`nodes.py`, `server.py` and `utils` must win over anything of ours with the same name.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import quick_torchvision

SECOND = "WanTrainer_"
ROOT = Path(__file__).resolve().parents[2]


def load_pack(comfyui: Path, base: Path) -> ModuleType:
    """The pack's module, under the name ComfyUI gives it. `base` is ComfyUI's base directory for this process."""
    name = str(ROOT).replace(".", "_x_")
    if name in sys.modules:
        return sys.modules[name]
    sys.path.insert(0, str(comfyui))
    quick_torchvision.install()
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        from comfy.cli_args import args

        args.cpu = True
        args.base_directory = str(base)
    finally:
        sys.argv = arguments
    return _execute(name)


def _execute(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "__init__.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{ROOT} has no __init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def list_nodes(pack: ModuleType) -> dict[str, Any]:
    """Node id -> node class, through the pack's own entry point; second ids are left out."""

    async def ask() -> list[Any]:
        extension = await pack.comfy_entrypoint()
        return list(await extension.get_node_list())

    # In a thread of its own: a browser test of the same session may keep an event loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        nodes = thread.submit(lambda: asyncio.run(ask())).result()
    named = {node.define_schema().node_id: node for node in nodes}
    return {node_id: node for node_id, node in named.items() if not node_id.startswith(SECOND)}
