"""Memory that Windows moves off a full card is named once, and a slow step alone is no sign of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.sessions import train_here
from tests.support.tiny_run import make_run
from wan_core.events import Note, StepDone
from wan_core.session.spill import SpillWatch
from wan_core.train import TrainConfig
from wan_core.train.meters import DeviceMeters

GIB = 1 << 30
TOTAL = {"cuda:0": 24 * GIB}


def said(speeds: list[float], held: list[float], totals: dict[str, int] = TOTAL) -> list[int]:
    """The steps after which there is a remark."""
    watch, found = SpillWatch(totals), []
    for number, (speed, gib) in enumerate(zip(speeds, held, strict=True), 1):
        memory = {"cuda:0": {"now": 1, "peak": None, "reserved": round(gib * GIB), "predicted": None}}
        step = StepDone(
            step=number, steps=99, loss=1.0, lr=1.0, grad_norm=1.0, seconds=1.0, expert="auto", timestep_mean=1.0,
            memory=memory, tflops=speed,
        )  # fmt: skip
        if text := watch.remark(step):
            assert text.startswith("cuda:0 is full (")
            found.append(number)
    return found


def test_steps_that_crawl_on_a_full_card_are_named_once() -> None:
    """The median of three: one slow step is a hiccup."""
    assert said([50.0] * 8 + [10.0] * 6, [22.0] * 14) == [10]
    assert said([50.0] * 8 + [10.0] + [50.0] * 8, [23.0] * 17) == []
    assert said([50.0] * 8 + [14.0] * 6, [23.0] * 14) == [], "3.6 times slower"
    assert said([50.0] * 8 + [10.0] * 6, [20.0] * 14) == [], "there is room"


def test_more_than_a_card_has_is_a_spill_from_the_first_step_on() -> None:
    assert said([5.0] * 3, [24.5] * 3) == [1]
    assert said([5.0] * 3, [23.9] * 3) == []
    assert said([5.0] * 3, [24.5] * 3, totals={"cuda:1": GIB}) == [], "another card"


def test_long_runs_remember_the_first_steps_and_the_last() -> None:
    assert said([40.0] * 5 + [30.0] * 500 + [9.0] * 3, [23.0] * 508) == [507]


def test_only_windows_moves_memory_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wan_core.session.spill.total_bytes", lambda _device: 24 * GIB)
    for platform, watches in (("linux", False), ("win32", True)):
        monkeypatch.setattr(sys, "platform", platform)
        assert (SpillWatch.on(["cuda:0"]) is not None) == watches
        assert SpillWatch.on(["cpu"]) is None


@pytest.mark.lasts(2)
def test_a_run_tells_it_as_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, train=TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, eval_items=0))
    full = {"cpu": {"now": 1, "peak": 3 * GIB, "reserved": 3 * GIB}}
    monkeypatch.setattr(DeviceMeters, "_present", lambda _self: full)
    monkeypatch.setattr(SpillWatch, "on", classmethod(lambda cls, devices: cls(dict.fromkeys(devices, 2 * GIB))))
    events = train_here(run)
    notes = [(e.level, e.text) for e in events if isinstance(e, Note) and "is full" in e.text]
    assert len(notes) == 1
    assert notes[0][0] == "warning"
    assert notes[0][1].startswith("cpu is full (3.0 of 2.0 GiB)")
