"""The planner beside the meter: the engine itself with packed weights, copies and optimizer, on simulated cards."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support import sim_device
from tests.support.forked import RunScript
from wan_core.checkpoint import unpacking_bytes
from wan_core.lora import LoraConfig, check_targets, inject_lora
from wan_core.model import WanShape, WanTransformer, block_of
from wan_core.placement import JobShape, MemoryMeasures, StepShape, estimate_memory
from wan_core.placement.plan import split_blocks
from wan_core.precision import PrecisionPolicy

SCRIPT = Path(__file__).parents[2] / "support" / "offload_14b.py"
SHAPE = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)

FIRST = (33, 10, 6, True, 1)
OTHERS = (
    *((33, 10, 0, False, 1), (33, 10, 0, True, 1), (33, 10, 6, False, 1), (49, 10, 0, False, 1), (49, 10, 4, True, 1)),
    *((81, 10, 0, True, 1), (81, 10, 10, True, 1), (5, 10, 5, True, 1), (33, 8, 0, False, 2), (33, 8, 4, True, 2)),
    (49, 40, 18, True, 1),
)
CASES = [FIRST, *(pytest.param(*case, marks=pytest.mark.soak) for case in OTHERS)]


@dataclass(frozen=True)
class Adapt:
    def __call__(self, model: nn.Module) -> None:
        inject_lora(model, LoraConfig(rank=32), seed=0)


def stored(name: str, parameter: Tensor) -> int:
    """8 bits and a float32 a row for linears in blocks, else bf16."""
    packed = block_of(name) is not None and parameter.ndim == 2
    return parameter.numel() + 4 * parameter.shape[0] if packed else 2 * parameter.numel()


def job(layers: int, cards: int) -> JobShape:
    shape = replace(SHAPE, num_layers=layers)
    with torch.device("meta"):
        linears = check_targets(WanTransformer(shape), LoraConfig(rank=32))
    return JobShape(
        shape=shape,
        numerics=PrecisionPolicy().numerics(torch.bfloat16),
        placement=split_blocks([torch.device("cuda", number) for number in range(cards)], layers, "auto"),
        storage_bytes=stored,
        adapt=Adapt(),
        adapter_values={name: 32 * (one.in_features + one.out_features) for name, one in linears.items()},
        unpacking_bytes=unpacking_bytes(5120 * 13824, torch.bfloat16),
    )


@pytest.mark.slow
@pytest.mark.lasts(14)
@pytest.mark.parametrize(("frames", "layers", "swap", "offload", "cards"), CASES)
def test_the_plan_is_within_3_percent_of_the_meter(
    run_script: RunScript, frames: int, layers: int, swap: int, offload: bool, cards: int
) -> None:
    """832x480, rank 32, linears in 8 bits: the peak of a step and of a preview, on each card."""
    if lacking := sim_device.missing():
        pytest.skip(lacking)
    case = {"frames": frames, "layers": layers, "swap": swap, "offload": offload, "cards": cards}
    done = run_script(SCRIPT, json.dumps(case))
    assert done.returncode == 0, done.stderr[-2000:]
    meter = json.loads(done.stdout)["peaks"]
    step = StepShape(batch_size=1, latent_frames=(frames - 1) // 4 + 1, latent_height=60, latent_width=104)
    measures = MemoryMeasures(offload_inputs=offload, blocks_to_swap=swap)
    planned = estimate_memory(job(layers, cards), step, measures=measures, preview=step).devices
    ratios = {
        f"{phase} {number}": planned[f"cuda:{number}"].phases[phase] / meter[phase][f"sim:{number}"]
        for phase in ("step", "preview")
        for number in range(cards)
        if phase in planned[f"cuda:{number}"].phases
    }
    print(case, {name: round(ratio, 4) for name, ratio in ratios.items()})  # noqa: T201
    assert ratios
    assert all(0.98 <= ratio <= 1.03 for ratio in ratios.values()), ratios
