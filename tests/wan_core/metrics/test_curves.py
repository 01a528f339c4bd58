"""The curves of a run of any length: the same numbers as line by line, in a second and little memory."""

from __future__ import annotations

import math
import random
import time
import tracemalloc
from pathlib import Path

import pytest

from tests.support.damaged import BAD_NUMBERS, damaged_lines
from tests.support.metrics_file import read_metrics
from wan_core.events import Evaluated, Event, SampleReady, StepDone, StepSkipped, to_line
from wan_core.metrics import eval_losses, finite, read_curves

pytestmark = pytest.mark.lasts(0.2)


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


def expected(path: Path) -> tuple[list[tuple[int, float]], dict[int, float | None], list[float]]:
    """(losses, evaluations, seconds), from every record parsed as JSON."""
    records = read_metrics(path)
    steps = [record for record in records if record.get("event") == "step"]
    losses = [(r["step"], loss) for r in steps if (loss := finite(r.get("loss"))) is not None]
    evaluated = {r["step"]: finite(r.get("eval_loss")) for r in records if r.get("event") == "evaluated"}
    return losses, evaluated, [s for r in steps if (s := finite(r.get("seconds"))) is not None]


def check(path: Path) -> None:
    curves = read_curves(path)
    losses, evaluated, seconds = expected(path)
    assert list(zip(curves.steps.tolist(), curves.losses.tolist(), strict=True)) == losses
    assert curves.eval_losses == evaluated == eval_losses(path)
    assert curves.seconds_per_step == (sorted(seconds)[len(seconds) // 2] if seconds else 0.0)


def test_a_run_that_was_resumed_and_skipped_steps_has_each_step_once(tmp_path: Path) -> None:
    first = [step(n, 1 / n, n / 10) for n in range(1, 30)]
    between = [StepSkipped(step=30, reason="the loss is not finite", in_a_row=1), Evaluated(step=20, eval_loss=0.5)]
    again = [step(n, 2 / n, 0.3) for n in range(11, 26)]
    later = [Evaluated(step=20, eval_loss=math.nan), SampleReady(sample_id="evaluated", step=3, file="samples/a.mp4")]
    path = write(tmp_path / "metrics.jsonl", lines_of([*first, *between, *again, *later]))
    check(path)
    curves = read_curves(path)
    assert len(curves.steps) == 29
    assert curves.losses.tolist()[9:12] == [1 / 10, 2 / 11, 2 / 12]
    assert curves.eval_losses == {20: None}


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
    whole = path.read_bytes()
    before = dict(zip(read_curves(path).steps.tolist(), read_curves(path).losses.tolist(), strict=True))
    for _ in range(300):
        data = bytearray(whole)
        data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        curves = read_curves(path)
        after = dict(zip(curves.steps.tolist(), curves.losses.tolist(), strict=True))
        assert sum(before.get(n) != after.get(n) for n in {*before, *after}) <= 3  # two lines run into one, and a step


@pytest.mark.parametrize("block", [7, 100, 1 << 20])
def test_blocks_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("wan_core.metrics.curves._BLOCK_BYTES", block)
    events = [step(n, 1 / n) for n in range(1, 20)] + [Evaluated(step=n, eval_loss=n / 10) for n in range(5)]
    path = write(tmp_path / "metrics.jsonl", ["", "{", *lines_of(events)])
    check(path)
    path.write_bytes(path.read_bytes() + lines_of([step(21, 0.5)])[0].encode())
    check_torn = read_curves(path)
    assert check_torn.steps.tolist() == list(range(1, 20)), "a line without its newline is not whole yet"


def test_a_line_far_longer_than_any_of_ours_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.metrics.curves._BLOCK_BYTES", 1000)
    monkeypatch.setattr("wan_core.metrics.curves._LONGEST_LINE", 5000)
    path = write(tmp_path / "metrics.jsonl", [*lines_of([step(1, 1.0)]), "x" * 50_000, *lines_of([step(2, 0.5)])])
    assert read_curves(path).steps.tolist() == [1, 2]


@pytest.mark.lasts(1)
@pytest.mark.parametrize("count", [30_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_long_run_is_read_in_a_second_and_little_memory(tmp_path: Path, count: int) -> None:
    """A million lines took 80 s and 3.2 GB; now 1.1 s and 65 MB."""
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for number in range(1, count + 1):
            file.write(to_line(step(number, 1 / number)))
    began = time.process_time()
    curves = read_curves(path)
    seconds = time.process_time() - began
    tracemalloc.start()
    losses = read_curves(path).losses.tolist()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{count} lines, {path.stat().st_size / 1e6:.0f} MB: {seconds:.2f} CPU s, {peak / 2**20:.0f} MiB")  # noqa: T201
    assert len(losses) == len(curves.steps) == count
    assert seconds < 3 * max(0.1, count / 1e6)
    assert peak < (16 << 20) + 100 * count
