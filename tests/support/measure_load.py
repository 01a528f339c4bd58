"""Loads a model and compares the peak of anonymous host memory with what stays; prints JSON. Linux only.

Arguments: folder of the model, its name there, base precision.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.measure_memory import Peak, resident
from wan_core.files import Roots
from wan_core.load import ModelPlan, materialize


def main(folder: Path, name: str, base_precision: str) -> None:
    if name.endswith(".gguf"):
        import gguf  # noqa: F401  the package's own memory is not the load's
    plan = ModelPlan(base_file=f"diffusion_models:{name}", base_precision=base_precision)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident()
    peak = Peak()
    peak.start()
    model = materialize(plan, Roots({"diffusion_models": (str(folder),)}), None)
    peak.over = True
    peak.join()
    highest = max(peak.value, resident())  # the sampling thread may not have run since the last tensor
    tensors = [*model.parameters(), *model.buffers()]
    print(  # noqa: T201
        json.dumps(
            {
                "destination": sum(tensor.nbytes for tensor in tensors),
                "largest": max(tensor.nbytes for tensor in tensors),
                "above": highest - before,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
