"""Where a run stands is read from the end of its metrics, however long the run and whatever stands there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wan_core.events import Evaluated, to_line
from wan_core.metrics import MetricsTail, read_tail


def step(number: int, seconds: float = 1.0) -> str:
    return json.dumps({"event": "step", "step": number, "loss": 1 / number, "seconds": seconds}) + "\n"


def evaluated(number: int, loss: float) -> str:
    return json.dumps({"event": "evaluated", "step": number, "eval_loss": loss}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_nothing_is_known_before_the_first_step(path: Path) -> None:
    assert read_tail(path) == MetricsTail()
    path.write_text("")
    assert read_tail(path) == MetricsTail()
    path.write_text(evaluated(0, 0.5))
    assert read_tail(path) == MetricsTail(eval_loss=0.5, eval_step=0)
    path.write_text(to_line(Evaluated(step=0, eval_loss=0.5, expert="high")))
    assert read_tail(path).eval_expert == "high"


def test_the_newest_of_each_kind_counts(path: Path) -> None:
    path.write_text(evaluated(0, 0.9) + step(1) + evaluated(1, 0.7) + step(2) + step(3))
    tail = read_tail(path)
    assert (tail.step["step"], tail.eval_loss) == (3, 0.7)


def test_the_pace_is_the_median_of_the_last_twenty_steps(path: Path) -> None:
    path.write_text("".join(step(n, seconds=100) for n in range(1, 50)) + "".join(step(n, n) for n in range(50, 70)))
    assert read_tail(path).seconds_per_step == 59.5


def test_a_torn_last_line_does_not_count(path: Path) -> None:
    path.write_text(step(1) + step(2)[:-1])
    assert read_tail(path).step["step"] == 1


def test_an_evaluation_far_back_is_found(path: Path) -> None:
    """Longer than the blocks the file is read in, so lines are cut by their borders."""
    path.write_text(evaluated(7, 0.25) + "".join(step(n) for n in range(8, 40_000)))
    assert path.stat().st_size > 2 << 20
    tail = read_tail(path)
    assert (tail.step["step"], tail.eval_loss) == (39_999, 0.25)


@pytest.mark.parametrize("length", range(65_530, 65_545))
def test_a_line_on_the_border_of_a_block_is_whole(path: Path, length: int) -> None:
    first = evaluated(1, 0.25)
    path.write_text(first + step(2) + " " * (length - len(step(3)) - 1) + "\n" + step(3))
    tail = read_tail(path)
    assert (tail.step["step"], tail.eval_loss) == (3, 0.25)


def test_lines_that_are_no_records_are_passed_over(path: Path) -> None:
    path.write_text(step(1) + '{"event": "step", "ste\n[]\n\n\xff\nnull\n')
    assert read_tail(path).step["step"] == 1


def test_a_run_has_come_as_far_as_its_last_step_also_where_that_was_skipped(path: Path) -> None:
    skipped = "".join(json.dumps({"event": "skipped", "step": n, "reason": "not finite"}) + "\n" for n in (3, 4))
    path.write_text(step(1) + step(2) + skipped)
    assert (read_tail(path).reached, read_tail(path).step["step"]) == (4, 2)
    path.write_text(step(1) + step(2) + skipped + step(2))  # it went on after a saved step
    assert read_tail(path).reached == 2
