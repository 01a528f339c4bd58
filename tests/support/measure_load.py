"""Loads a model and compares the peak of host memory, anonymous and mapped, with what stays: a line of JSON.

Linux only. Arguments: folder of the models, a name there, and a base precision or "quantized": to fp8 as it is loaded.
"""

from __future__ import annotations

import ctypes
import gc
import json
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

    main(Path(sys.argv[1]), *sys.argv[2:])
