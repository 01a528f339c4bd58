"""Trains one step of a random bf16 model of real widths on the CPU, quantized to fp8 as it is loaded; a line of JSON.

Arguments: folder to work in, and the name of a shape in benchmarks/random_run.py. Linux only (reads /proc).
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from measure import SHAPES, Size

from benchmarks.random_run import random_run, write_random_weights
from tests.support.measure_memory import Peak, resident
from wan_core.control import SignalControl
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.plan.report import report_run
from wan_core.precision import QuantizeConfig
from wan_core.session.train_job import run_job
from wan_core.train import TrainConfig


def main(folder: Path, name: str) -> None:
    base, shape = folder / "wan_random_bf16.safetensors", SHAPES[name]
    write_random_weights(base, shape)
    plan = ModelPlan(base_file="", variant="2.1 T2V-14B" if name == "14B" else "auto", quantize=QuantizeConfig())
    train = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    directory, roots = random_run(folder, base, shape, Size(208, 112, 9), plan, LoraConfig(rank=16), train)
    predicted = report_run(directory, roots)["devices"]["cpu"]["peak_bytes"]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before, began = resident(mapped=True), time.monotonic()
    peak = Peak(mapped=True)
    peak.start()
    run_job(directory, roots, emit=lambda _: None, control=SignalControl())
    peak.over = True
    peak.join()
    found = {
        "file": base.stat().st_size,
        "predicted": predicted,
        "measured": peak.value - before,
        "seconds": round(time.monotonic() - began, 1),
        "saved": (directory / "saves" / "step-000001" / "lora.safetensors").is_file(),
    }
    print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
