"""A long run opens at once and says what its lines say: the ends exactly, extremes between, never an old state."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import wan_core.metrics.history as history_module
from wan_core.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Marked,
    SampleReady,
    StageEnded,
    StepDone,
    StepSkipped,
    Suggested,
    to_line,
)
from wan_core.metrics import MetricsHistory
from wan_core.metrics.condensed import Condensed
from wan_core.metrics.series import Series

FIXTURE = Path(__file__).parents[2] / "fixtures" / "condensed.json"


def step_line(step: int, **facts: Any) -> str:
    """As tests/web/run/condensed.test.mjs makes it."""
    given: dict[str, Any] = {"loss": (step * 7919 % 1000) / 1000, "expert": "auto", "seconds": 0.5} | facts
    event = StepDone(
        step=step, steps=5000, lr=1e-4, grad_norm=0.5, timestep_mean=float(step * 37 % 1001), tokens=7, **given
    )
    return to_line(event)


def lines_of_a_run() -> list[str]:
    """3,000 steps, of which 2,501 to 2,600 are trained twice, and a line of every kind."""
    others: dict[int, list[Event]] = {
        40: [
            StepSkipped(step=40, reason="not finite", in_a_row=1),
            Marked(step=40, kind="explosion", text="Too much."),
        ],
        41: [Marked(step=40, kind="explosion", text="Too much.")],
        50: [StageEnded(stage="save", seconds=1.5, step=50), StageEnded(stage="load", seconds=2.0, step=50)],
        900: [Suggested(step=900, best=500, why="It is the lowest.", overfits_from=700)],
        3000: [StageEnded(stage="save", seconds=0.25, step=3000)],
    }
    found: list[str] = []
    for step in [*range(1, 2601), *range(2501, 3001)]:
        expert: dict[str, Any] = {"expert": "high", "loss": 0.5} if step in (7, 9) else {}
        found.append(step_line(step, **expert, prior_loss=None if step % 3 else step / 1e5))
        found += [to_line(event) for event in others.get(step, [])]
        if step % 500 == 0:
            levels = {"200": step / 10000, "800": step / 5000}
            loss = math.nan if step == 3000 else 1000 / step
            found.append(to_line(Evaluated(step=step, eval_loss=loss, held_out=True, per_timestep=levels)))
            found.append(to_line(CheckpointSaved(step=step, folder="saves/x", updates={"blocks.0": 0.5}, modules=3)))
            found.append(to_line(SampleReady(sample_id=f"s{step}", step=step, file="x", measures={"flicker": 0.25})))
    return found


def condensed(lines: list[str]) -> Condensed:
    found = Condensed()
    found.add("".join(lines).encode())
    return found


def told(found: Condensed) -> dict[str, Any]:
    return json.loads(json.dumps(found.to_dict()))


def test_the_page_condenses_the_same_lines_to_the_same() -> None:
    """tests/web/run/condensed.test.mjs holds the page's history beside the same file."""
    found = told(condensed(lines_of_a_run()))
    if os.environ.get("WAN_TRAINER_UPDATE"):
        FIXTURE.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    assert found == json.loads(FIXTURE.read_text())
    assert told(Condensed.from_dict(found)) == found
    spelled = told(condensed([json.dumps(json.loads(line), separators=(",", ":")) + "\n" for line in lines_of_a_run()]))
    assert {name: spelled[name] for name in ("losses", "priors")} == {
        name: found[name] for name in ("losses", "priors")
    }


def test_the_ends_are_exact_and_no_spike_is_lost() -> None:
    series, values = Series(), [0.5 + (step * 7919 % 997) / 5000 for step in range(30_000)]
    values[12_345], values[23_456] = 9.0, 0.001
    for step, value in enumerate(values):
        series.add(step, value)
    assert series.length <= 2000
    assert (series.first, series.newest) == ((0, values[0]), (29_999, values[-1]))
    for index, (_, points, total, count, _) in series.buckets.items():
        own = values[index * series.width : (index + 1) * series.width]
        assert {value for _, value in points} == {min(own), max(own)}
        assert (total, count) == (pytest.approx(sum(own)), len(own))


def write(path: Path, lines: list[str], mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(lines)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A run's lines, and where what was seen of them is kept already at a hundred of them."""
    monkeypatch.setattr(history_module, "_WORTH_KEEPING", 100)
    path, file = tmp_path / "metrics.jsonl", tmp_path / "seen" / "cat.json"
    write(path, lines_of_a_run()[:400])
    MetricsHistory(path, file).condensed()
    assert file.is_file()
    return path, file


def fed(history: MetricsHistory, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[int, dict[str, Any]], int]:
    """What it says, and how many bytes of lines it read for that."""
    read: list[int] = []
    add = Condensed.add
    monkeypatch.setattr(Condensed, "add", lambda self, block: (read.append(len(block)), add(self, block))[1])
    found = history.condensed()
    monkeypatch.setattr(Condensed, "add", add)
    return found, sum(read)


def test_only_what_was_appended_is_read_again(kept: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = kept
    lines = lines_of_a_run()
    (count, found), read = fed(MetricsHistory(path, file), monkeypatch)
    assert (count, json.loads(json.dumps(found)), read) == (400, told(condensed(lines[:400])), 0)
    write(path, [*lines[400:450], lines[450][:20]], "a")
    (count, found), read = fed(MetricsHistory(path, file), monkeypatch)
    assert (count, json.loads(json.dumps(found))) == (450, told(condensed(lines[:450])))
    assert read == sum(map(len, lines[400:450])), "a torn line is nobody's"
    page = MetricsHistory(path, file).since(399)
    assert [record["event"] for record in page.records][:1] == [json.loads(lines[399])["event"]]


@pytest.mark.parametrize("change", ["edited", "replaced", "shorter", "another", "damaged", "foreign", "copied"])
def test_what_does_not_belong_to_the_lines_is_not_believed(
    kept: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path, file = kept
    lines = [line.replace('"loss": 0.', '"loss": 1.') for line in lines_of_a_run()[:400]]
    match change:
        case "edited":  # in place, as long as before
            with path.open("r+") as there:
                there.writelines(lines)
        case "replaced":
            write(path.with_suffix(".new"), lines)
            os.replace(path.with_suffix(".new"), path)
        case "shorter":
            write(path, lines := lines[:300])
        case "another":
            path.unlink()
            write(path, lines := [*lines, *lines[:200]])
        case "damaged":
            write(path, lines)
            file.write_text('{"version": 1, "inode": 0')
        case "foreign":
            write(path, lines)
            state = json.loads(file.read_text())
            state["condensed"]["losses"]["auto"]["buckets"] = [["x"]]
            info = path.stat()
            state |= {"end": info.st_size, "times": [info.st_mtime_ns, info.st_ctime_ns]}
            file.write_text(json.dumps(state))
        case _:
            write(path, lines)
            shutil.copy2(path, path.with_suffix(".new"))
            os.replace(path.with_suffix(".new"), path)
    (count, found), _ = fed(MetricsHistory(path, file), monkeypatch)
    assert (count, json.loads(json.dumps(found))) == (len(lines), told(condensed(lines)))


def test_nothing_a_line_holds_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'null\n[]\n{"event": "step"}\n{"event": "step", "step": true}\n{"event": "step", "step": 1e400, "loss": 1}\n'
        b'{"event": "step", "step": 3, "loss": "x", "expert": [1]}\n{"event": "evaluated", "step": 4, "eval_loss": {},'
        b' "per_timestep": {"x": 1, "5": null}}\n{"event": "stage_ended", "step": 1, "stage": null, "seconds": 1}\n'
        b'{"event": "marked", "step": 1, "text": null}\n\xff\xfe\n{"event": "step", "st\n'
    )
    count, found = MetricsHistory(path).condensed()
    assert (count, found["furthest"]) == (11, 3)
    assert MetricsHistory(tmp_path / "none").condensed()[0] == 0


@pytest.mark.soak
def test_a_million_lines_open_in_a_third_of_a_second(tmp_path: Path) -> None:
    path, file = tmp_path / "metrics.jsonl", tmp_path / "seen.json"
    with path.open("w") as lines:
        lines.writelines(step_line(step) for step in range(1, 1_000_001))
    MetricsHistory(path, file).condensed()
    began = time.process_time()
    count, found = MetricsHistory(path, file).condensed()
    seconds = time.process_time() - began
    assert (count, found["newest"]["step"]) == (1_000_000, 1_000_000)
    tracemalloc.start()
    MetricsHistory(path, file).condensed()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{seconds:.3f} CPU s, {peak / 1e6:.1f} MB")  # noqa: T201
    assert seconds < 0.3
    assert peak < 50e6
