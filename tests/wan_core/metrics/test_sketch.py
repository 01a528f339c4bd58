"""A sketch of a long run: real lines from all over its file, within its time, and no more claimed than was seen."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import wan_core.metrics.sketch as sketch_module
from wan_core.events import StageEnded, StepDone, Suggested, to_line
from wan_core.metrics.condensed import Condensed
from wan_core.metrics.series import Series
from wan_core.metrics.sketch import sketch

STEPS = 40_000


def loss_of(step: int) -> float:
    return (step * 7919 % 1000) / 1000


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "metrics.jsonl"
    with path.open("w", encoding="ascii") as file:
        for step in range(1, STEPS + 1):
            told: dict[str, Any] = {"loss": loss_of(step), "timestep_mean": 500.0, "expert": "auto", "seconds": 0.5}
            file.write(to_line(StepDone(step=step, steps=STEPS, lr=1e-4, grad_norm=0.5, tokens=7, **told)))
            if step % 1000 == 0:
                file.write(to_line(StageEnded(stage="save", seconds=1.0, step=step)))
                file.write(to_line(Suggested(step=step, best=step, why="It is the lowest.")))
        file.write('{"event": "step", "step": 99999')  # torn
    return path


def curve(told: dict[str, object]) -> Series:
    return Condensed.from_dict({**told, "records": []}).losses["auto"]


def points(series: Series) -> list[tuple[float, float]]:
    return [point for _, bucket in sorted(series.buckets.items()) for point in bucket[1]]


def test_a_sketch_is_made_of_lines_from_all_over_the_file_and_ends_where_it_ends(lines: Path) -> None:
    seen, told = sketch(lines, within_s=60)
    series = curve(told)
    found = points(series)
    assert all(value == loss_of(int(step)) for step, value in found)
    assert (series.first, series.newest) == ((1, loss_of(1)), (STEPS, loss_of(STEPS)))
    assert told["newest"]["step"] == STEPS  # type: ignore[index]
    steps = [0.0, *(step for step, _ in found), STEPS]
    assert max(after - before for before, after in pairwise(steps)) <= STEPS / 300, "two points of a bucket of 64 steps"
    assert STEPS / 5 < seen <= STEPS + 80
    assert series.passes == 0, "no line counts twice, and none out of order"
    assert (told["trained"], told["stages"], told["records"]) == ([0.0, 0], {}, [])


def test_what_was_seen_when_its_time_is_over_lies_evenly(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter(range(1000))
    monkeypatch.setattr(sketch_module.time, "monotonic", lambda: next(asked))
    _, told = sketch(lines, within_s=64)  # seconds, of which each place takes one
    steps = [0.0, *(step for step, _ in points(curve(told))), STEPS]
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps) <= STEPS / 32 + 20
    assert len([gap for gap in gaps if gap > STEPS / 128]) >= 60, "no more places than it had time for"


def test_without_time_the_newest_step_is_known(lines: Path) -> None:
    seen, told = sketch(lines, within_s=-1)
    assert told["newest"]["step"] == STEPS  # type: ignore[index]
    assert 100 < seen < 400


def test_a_file_that_is_not_there_or_short_is_no_error(tmp_path: Path) -> None:
    assert sketch(tmp_path / "metrics.jsonl", within_s=1) == (0, Condensed().to_dict())
    (tmp_path / "metrics.jsonl").write_text("\n\nnot json\n")
    seen, told = sketch(tmp_path / "metrics.jsonl", within_s=1)
    assert (seen, told["newest"]) == (3, None)


def test_no_line_of_a_short_file_is_taken_twice(lines: Path, tmp_path: Path) -> None:
    with lines.open("rb") as long:
        (tmp_path / "metrics.jsonl").write_bytes(b"".join(long.readline() for _ in range(3000)))
    seen, told = sketch(tmp_path / "metrics.jsonl", within_s=60)
    assert 1500 < seen <= 3000
    assert curve(told).passes == 0
