"""The engine itself on the real 14B shape in 8 bits, on a simulated device: what it holds, and that nothing waits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import sim_device
from tests.support.forked import RunScript
from tests.support.timeline import Event, timeline
from tests.wan_core.placement.test_memory import job
from wan_core.checkpoint import unpacking_bytes
from wan_core.placement import MemoryMeasures, StepShape, estimate_memory
from wan_core.placement.plan import split_blocks

SCRIPT = Path(__file__).parents[2] / "support" / "offload_14b.py"
GIB = 2**30
WHOLE = ((33, 40, 26, 11.0), (49, 40, 18, 15.0), (81, 40, 0, 22.5))
"""frames at 832x480, layers, blocks that rest in host memory, GiB that a step and a preview may take"""
CASES = [(33, 10, 6, 6.0), *(pytest.param(*case, marks=pytest.mark.soak) for case in WHOLE)]
FIRST, SECOND = "sim:0", "sim:1"


def measured(run_script: RunScript, **case: Any) -> dict[str, Any]:
    if lacking := sim_device.missing():
        pytest.skip(lacking)
    done = run_script(SCRIPT, json.dumps(case))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    gib = {phase: {device: round(b / GIB, 2) for device, b in at.items()} for phase, at in found["peaks"].items()}
    print(case, gib, found["times"])  # noqa: T201
    return found


@pytest.mark.slow
@pytest.mark.lasts(12)
@pytest.mark.parametrize(("frames", "layers", "swap", "most"), CASES)
def test_a_14b_step_fits_and_no_copy_is_waited_for(
    run_script: RunScript, frames: int, layers: int, swap: int, most: float
) -> None:
    """On an RTX 4090 at 60 % of its peak, with a bus of 25 GB/s; the preview is the first pass of all."""
    found = measured(run_script, frames=frames, layers=layers, swap=swap, offload=True, cards=1)
    assert max(peaks[FIRST] for peaks in found["peaks"].values()) <= most * GIB
    assert planned(frames, layers, swap) == pytest.approx(found["peaks"]["step"][FIRST], rel=0.05)
    step = found["times"]["step"][FIRST]
    assert step["waits"] == 0
    assert step["seconds"] <= 1.05 * step["compute"]
    assert step["out_bytes"] == layers * input_bytes(frames), "every input leaves once, no weight ever"
    assert found["times"]["preview"][FIRST]["waits"] <= 1, "the first block of all has nobody to be fetched by"


def planned(frames: int, layers: int, swap: int) -> int:
    """The bytes at the peak of such a step, as the planner predicts them."""
    one = job()
    shape = replace(one.shape, num_layers=layers)
    within = {name: values for name, values in one.adapter_values.items() if int(name.split(".")[1]) < layers}
    one = replace(
        one,
        shape=shape,
        placement=split_blocks([torch.device("cuda", 0)], layers, "auto"),
        storage_bytes=resting_bytes,
        adapter_values=within,
        unpacking_bytes=unpacking_bytes(shape.dim * shape.ffn_dim, torch.bfloat16),
    )
    step = StepShape(batch_size=1, latent_frames=(frames - 1) // 4 + 1, latent_height=60, latent_width=104)
    measures = MemoryMeasures(offload_inputs=True, blocks_to_swap=swap)
    return estimate_memory(one, step, measures=measures).devices["cuda:0"].step


def resting_bytes(name: str, parameter: Tensor) -> int:
    """In a block a linear has 8 bits and a float32 scale per row; all else is bfloat16."""
    packed = name.startswith("blocks.") and parameter.ndim == 2
    return parameter.numel() + 4 * parameter.shape[0] if packed else 2 * parameter.numel()


def input_bytes(frames: int) -> int:
    return ((frames - 1) // 4 + 1) * 1560 * 5120 * 4


@pytest.mark.slow
@pytest.mark.lasts(8)
def test_each_card_of_a_split_has_buffers_and_kept_inputs_of_its_own(run_script: RunScript) -> None:
    """A tensor of one on the other would be an error there."""
    found = measured(run_script, frames=5, layers=6, swap=6, offload=True, cards=2)
    for device in (FIRST, SECOND):
        step = found["times"]["step"][device]
        assert step["out_bytes"] == 3 * input_bytes(5)
        assert step["waits"] == 0
    block = 13_824 * 5120 * 2 + 8 * 5120 * 5120  # bytes of its linears in 8 bits
    # Of three blocks two are still there from the pass before: one comes in each direction.
    assert found["times"]["step"][SECOND]["in_bytes"] == pytest.approx(2 * block + 2 * input_bytes(5), rel=0.01)


def copied(*events: tuple[Any, ...]) -> tuple[float, int]:
    found = timeline([Event(*event) for event in events], flops=10.0, bandwidth=10.0)
    return found.seconds, found.waits


def test_the_event_model_by_hand() -> None:
    compute = ("compute", "", -1, 20.0)  # two seconds
    into, out = ("start", "in", 0, 10.0), ("start", "out", 1, 30.0)
    assert copied(compute, compute) == (4.0, 0)
    assert copied(into, compute, ("wait", "", 0)) == (2.0, 0), "beside what is computed"
    assert copied(into, ("wait", "", 0), compute) == (3.0, 1), "asked for too late"
    assert copied(compute, out, compute, ("wait", "", 1)) == (5.0, 1), "one second longer than compute"
    assert copied(into, out, compute, ("wait", "", 0), ("wait", "", 1)) == (3.0, 1), "an engine for each direction"
    second = ("start", "in", 2, 20.0)
    assert copied(into, second, compute, ("wait", "", 2)) == (3.0, 1), "one engine copies one after another"
