"""Trains two steps on the CPU and compares the peak of anonymous memory with the prediction; writes result.json.

Arguments: folder to work in, then "checkpointed", "plain" or both. Each has a folder of that name and a process of its
own, forked before anything was trained. Linux only (reads /proc).
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.tiny_run import make_run
from wan_core.__main__ import main as command_line
from wan_core.lora import LoraConfig
from wan_core.model import WanShape
from wan_core.plan.report import report_run
from wan_core.train import TrainConfig

SHAPE = WanShape(dim=512, ffn_dim=2048, num_heads=4, num_layers=3)


def resident(*, mapped: bool = False) -> int:
    """Anonymous resident bytes of this process; of files that it has mapped too where they are asked for."""
    text = Path("/proc/self/status").read_text()
    kinds = ("RssAnon", "RssFile") if mapped else ("RssAnon",)
    return sum(int(re.search(rf"{kind}:\s+(\d+)", text)[1]) for kind in kinds) * 1024  # type: ignore[index]


class Peak(threading.Thread):
    def __init__(self, *, mapped: bool = False) -> None:
        super().__init__(daemon=True)
        self.value, self.over, self._mapped = 0, False, mapped

    def run(self) -> None:
        while not self.over:
            self.value = max(self.value, resident(mapped=self._mapped))
            time.sleep(0.002)


def main(folder: Path, checkpointed: bool) -> None:
    settings = TrainConfig(
        steps=1, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0, gradient_checkpointing=checkpointed
    )
    warm = make_run(folder / "warm", train=settings)
    command_line(["train", str(warm.directory), "--roots", str(warm.roots_file)])
    run = make_run(folder / "run", train=settings, shape=SHAPE, lora=LoraConfig(rank=16), clips=2, size=(4, 32, 32))
    predicted = report_run(run.directory, run.roots)["devices"]["cpu"]["peak_bytes"]
    _give_back()
    before = resident()
    peak = Peak()
    peak.start()
    code = command_line(["train", str(run.directory), "--roots", str(run.roots_file)])
    peak.over = True
    measured = peak.value - before
    result = {"code": code, "predicted": predicted, "measured": measured, "ratio": predicted / measured}
    (folder / "result.json").write_text(json.dumps(result))


def _give_back() -> None:
    """Return freed heap to the system, so that the measurement starts clean."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    import torch  # noqa: F401  once for both

    for mode in sys.argv[2:]:
        child = os.fork()
        if child == 0:
            main(Path(sys.argv[1]) / mode, mode == "checkpointed")
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{mode} was not measured.")
