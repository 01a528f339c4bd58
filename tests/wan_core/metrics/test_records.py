"""A metrics.jsonl read from front to back: each step once, and a damaged line costs no other line."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from tests.support.damaged import BAD_NUMBERS, damaged_lines
from tests.support.metrics_file import read_metrics
from wan_core.events import Evaluated, Event, SampleReady, StepDone, StepSkipped, to_line
from wan_core.metrics import finite, read_loss_curve, read_measured, records_of


def step(number: int, loss: float, seconds: float = 0.5) -> StepDone:
    return StepDone(
        step=number,
        steps=1000,
        loss=loss,
        lr=1e-4,
        grad_norm=0.25,
        seconds=seconds,
        expert="auto",
        timestep_mean=500.0,
        memory={"cuda:0": {"now": 1, "peak": 2, "predicted": None}},
    )


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))
    return path


def lines_of(events: list[Event]) -> list[str]:
    return [to_line(event).rstrip("\n") for event in events]


def check(path: Path) -> None:
    """The curve is that of every line parsed as JSON."""
    steps = [record for record in read_metrics(path) if record.get("event") == "step"]
    seconds = sorted(spent for r in steps if (spent := finite(r.get("seconds"))) is not None)
    curve = read_loss_curve(path)
    assert points(path) == {r["step"]: loss for r in steps if (loss := finite(r.get("loss"))) is not None}
    assert curve.steps.tolist() == sorted(curve.steps.tolist())
    assert curve.seconds_per_step == (seconds[len(seconds) // 2] if seconds else 0.0)


def points(path: Path) -> dict[int, float]:
    curve = read_loss_curve(path)
    return dict(zip(curve.steps.tolist(), curve.losses.tolist(), strict=True))


def test_a_run_that_was_resumed_and_skipped_steps_has_each_step_once(tmp_path: Path) -> None:
    first = [step(n, 1 / n, n / 10) for n in range(1, 30)]
    between = [StepSkipped(step=30, reason="the loss is not finite", in_a_row=1), Evaluated(step=20, eval_loss=0.5)]
    again = [step(n, 2 / n, 0.3) for n in range(11, 26)]
    later = [SampleReady(sample_id="evaluated", step=3, file="samples/a.mp4")]
    path = write(tmp_path / "metrics.jsonl", lines_of([*first, *between, *again, *later]))
    check(path)
    found = points(path)
    assert [found[n] for n in (10, 11, 12)] == [1 / 10, 2 / 11, 2 / 12]
    assert len(found) == 29
    assert [record["event"] for record in records_of(path, ("skipped", "sample"))] == ["skipped", "sample"]
    write(path, [json.dumps(json.loads(line), separators=(",", ":")) for line in path.read_text().splitlines()])
    assert points(path) == found, "another spelling"


def test_of_a_step_measured_twice_the_last_evaluation_counts(tmp_path: Path) -> None:
    values = ((0, 0.9), (2, 0.8), (2, 0.7), (4, 0.6), (4, math.nan))
    path = write(tmp_path / "metrics.jsonl", lines_of([Evaluated(step=n, eval_loss=loss) for n, loss in values]))
    assert [(one.step, one.loss) for one in read_measured(path)] == [(0, 0.9), (2, 0.7)]
    assert read_measured(path.with_name("none")) == []


@pytest.mark.parametrize("value", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_damaged_lines_mean_what_they_mean_line_by_line(tmp_path: Path, value: str) -> None:
    whole = lines_of([step(n, 1 / n) for n in range(1, 6)])
    odd = [
        f'{{"event": "step", "step": 7, "steps": 9, "loss": {value}, "lr": 1, "grad_norm": 1, "seconds": 2, "x": 1}}'
    ]
    odd += [
        f'{{"event": "step", "step": 8, "steps": 9, "loss": 2, "lr": 1, "grad_norm": 1, "seconds": {value}, "x": 1}}'
    ]
    check(write(tmp_path / "metrics.jsonl", [*whole, *damaged_lines(value), *odd, *whole[:2]]))


def test_a_byte_changed_anywhere_changes_at_most_its_own_line(tmp_path: Path) -> None:
    chance = random.Random(0)
    path = write(tmp_path / "metrics.jsonl", lines_of([step(n, 1 / n) for n in range(1, 9)]))
    complete, before = path.read_bytes(), points(path)
    for _ in range(300):
        data = bytearray(complete)
        data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        after = points(path)
        assert sum(before.get(n) != after.get(n) for n in {*before, *after}) <= 3  # two lines run into one, and a step


def test_a_line_without_its_newline_is_not_complete_yet(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", ["", "{", *lines_of([step(n, 1 / n) for n in range(1, 20)])])
    path.write_bytes(path.read_bytes() + lines_of([step(21, 0.5)])[0].encode())
    assert sorted(points(path)) == list(range(1, 20))


def test_a_line_far_longer_than_any_of_ours_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.metrics.records._LONGEST_LINE", 5000)
    long = to_line(step(3, 1.0)).replace('"auto"', f'"{"x" * 50_000}"').rstrip()
    path = write(tmp_path / "metrics.jsonl", [*lines_of([step(1, 1.0)]), long, *lines_of([step(2, 0.5)])])
    assert points(path) == {1: 1.0, 2: 0.5}
