"""The job of a script that runs ComfyUI's own nodes, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import quick_torchvision
import torch


def read_job() -> dict[str, Any]:
    """The job named on the command line; ComfyUI is imported then."""
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    import_comfyui(job["comfyui"])
    return job


def import_comfyui(tree: str) -> None:
    """For the CPU, and without other packs."""
    sys.path.insert(0, tree)
    sys.argv = [sys.argv[0], "--cpu", "--disable-all-custom-nodes"]
    quick_torchvision.install()
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.sd

    import nodes  # noqa: F401
