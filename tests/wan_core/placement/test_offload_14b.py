"""The engine itself on the real 14B shape in 8 bits, on a simulated device: what it holds, and that nothing waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import sim_device
from tests.support.forked import RunScript
from tests.support.timeline import Event, timeline

SCRIPT = Path(__file__).parents[2] / "support" / "offload_14b.py"
GIB = 2**30
WHOLE = ((33, 40, 26, 11.0), (49, 40, 18, 15.0), (81, 40, 0, 22.5))
"""frames at 832x480, layers, blocks that rest in host memory, GiB that a step and a preview may take"""
CASES = [(33, 10, 6, 6.0), *(pytest.param(*case, marks=pytest.mark.soak) for case in WHOLE)]


@pytest.mark.slow
@pytest.mark.lasts(12)
@pytest.mark.parametrize(("frames", "layers", "swap", "most"), CASES)
def test_a_14b_step_fits_and_no_copy_is_waited_for(
    run_script: RunScript, frames: int, layers: int, swap: int, most: float
) -> None:
    """On an RTX 4090 at 60 % of its peak, with a bus of 25 GB/s; the preview is the first pass of all."""
    if lacking := sim_device.missing():
        pytest.skip(lacking)
    done = run_script(SCRIPT, json.dumps([{"frames": frames, "layers": layers, "swap": swap, "offload": True}]))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    print({name: value / GIB if isinstance(value, int) else value for name, value in found.items()})  # noqa: T201
    assert max(found[phase] for phase in ("loaded", "step", "preview")) <= most * GIB
    assert found["time"]["waits"] == 0
    assert found["time"]["seconds"] <= 1.05 * found["time"]["compute"]
    inputs = layers * ((frames - 1) // 4 + 1) * 1560 * 5120 * 4
    assert found["time"]["out_bytes"] == inputs, "every input leaves once, no weight ever"
    assert found["preview_time"]["waits"] <= 1, "the first block of all has nobody to be fetched by"


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
