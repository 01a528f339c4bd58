"""What benchmarks of a running ComfyUI share: CPU seconds of a process, and a pack that leaves the spare worker out."""

from __future__ import annotations

import psutil

__all__ = ["NO_SPARE", "used"]

NO_SPARE = """
import sys
from server import PromptServer

def switch(asked):
    for name, module in list(sys.modules.items()):
        if name.endswith(".nodes.engine.spare"):
            vars(module.SPARE).pop("prepare", None)
            if "no_spare" in asked.get("extra_data", {}):
                module.SPARE.prepare = lambda wanted: None
    return asked

PromptServer.instance.add_on_prompt_handler(switch)
NODE_CLASS_MAPPINGS = {}
"""
"""a pack with which jobs that say `no_spare` get a worker that has imported nothing yet"""


def used(process: psutil.Process) -> float:
    """CPU seconds of a process, of the children that ended and of those that run."""
    total = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue
    return total
