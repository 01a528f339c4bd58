"""Whatever a line of metrics.jsonl holds, the other lines are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.damaged import BAD_NUMBERS, damaged_lines
from wan_core.metrics import finite, read_loss_curve, read_measured, read_tail, whole

GOOD = [
    {"event": "step", "step": 1, "loss": 0.75, "seconds": 2.0},
    {"event": "evaluated", "step": 1, "eval_loss": 0.25},
    {"event": "step", "step": 2, "loss": 0.5, "seconds": 4.0},
    {"event": "stage_ended", "stage": "train", "seconds": 6.0},
]


@pytest.mark.parametrize("value", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_a_line_without_a_step_is_left_out_and_the_others_are_read(tmp_path: Path, value: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([*damaged_lines(value), *map(json.dumps, GOOD), *damaged_lines(value), "{", ""]))
    curve = read_loss_curve(path)
    points = list(zip(curve.steps.tolist(), curve.losses.tolist(), strict=True))
    assert points[:2] == [(1, 0.75), (2, 0.5)]
    assert {step for step, _ in points[2:]} <= {3}
    assert [(one.step, one.loss) for one in read_measured(path)] == [(1, 0.25)]
    tail = read_tail(path)
    assert tail.eval_loss in (None, 0.5)  # of a line whose step is damaged, or one whose loss is
    assert tail.seconds_per_step is not None
    assert 1.0 <= tail.seconds_per_step <= 4.0


def test_a_number_is_one_a_float_holds() -> None:
    assert [finite(value) for value in (0, -1.5, 10**400, float("nan"), float("inf"), True, "1", None)] == [
        *(0.0, -1.5),
        *[None] * 6,
    ]
    assert [whole(value) for value in (0, 7, -1, 10**400, 1.0, True, "1", None)] == [0, 7, *[None] * 6]
