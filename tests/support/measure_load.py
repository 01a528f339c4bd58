"""Loads models and compares the peak of host memory, anonymous and mapped, with what stays; a line of JSON each.

Linux only. Arguments: folder of the models, then a name there and a base precision for each, or
"quantized": to fp8 as it is loaded. Every load has a process of its own,
forked before anything was loaded.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.measure_memory import Peak, resident
from wan_core.files import Roots
from wan_core.footprint import weights_once_loaded
from wan_core.load import ModelPlan, inspect_model, materialize
from wan_core.precision import QuantizeConfig


def main(folder: Path, name: str, base_precision: str) -> None:
    plan = ModelPlan(base_file=f"diffusion_models:{name}")
    if base_precision == "quantized":
        plan = plan.with_quantize(QuantizeConfig())
    else:
        plan = replace(plan, base_precision=base_precision)
    roots = Roots({"diffusion_models": (str(folder),)})
    predicted = weights_once_loaded(plan, inspect_model(plan, roots))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident(mapped=True)
    peak = Peak(mapped=True)
    peak.start()
    model = materialize(plan, roots, None)
    peak.over = True
    peak.join()
    highest = max(peak.value, resident(mapped=True))  # the sampling thread may not have run since the last tensor
    tensors = [*model.parameters(), *model.buffers()]
    print(  # noqa: T201
        json.dumps(
            {
                "name": name,
                "precision": base_precision,
                "destination": sum(tensor.nbytes for tensor in tensors),
                "largest": max(tensor.nbytes for tensor in tensors),
                "above": highest - before,
                "predicted": predicted,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    import gguf  # noqa: F401  the package's own memory is not the load's

    for found, precision in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        child = os.fork()
        if child == 0:
            main(Path(sys.argv[1]), found, precision)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{found} in {precision} was not measured.")
