"""Reading ahead changes nothing but the time."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from wan_core.cache import Batch, BatchReader
from wan_core.errors import CacheError


class Numbers:
    """Batches that hold their micro-step; counts what is read, and can fail or hang at one."""

    def __init__(self, fails_at: int = -1, hangs_at: int = -1) -> None:
        self.read: list[int] = []
        self.go_on = threading.Event()
        self._fails_at, self._hangs_at = fails_at, hangs_at

    def at(self, micro_step: int) -> Batch:
        self.read.append(micro_step)
        if micro_step == self._hangs_at:
            assert self.go_on.wait(20)
        if micro_step == self._fails_at:
            raise CacheError(f"no entry for {micro_step}")
        return Batch(torch.full((1, 2), float(micro_step)), torch.zeros(1), (str(micro_step),))


def reader_of(batches: Numbers, ahead: int = 2) -> BatchReader:
    reader = BatchReader(batches.at, ahead=ahead)  # type: ignore[arg-type]
    reader.start()
    return reader


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def wait_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_every_step_gets_its_batch_also_after_jumps(ahead):
    reader = reader_of(Numbers(), ahead)
    steps = [*range(20), 5, 6, 7, 100, 101, 3, 3, 3, 4]
    assert [reader.at(step).names[0] for step in steps] == [str(step) for step in steps]
    reader.stop()


def test_no_more_is_read_than_asked_for_and_two_ahead():
    batches = Numbers()
    reader = reader_of(batches)
    assert reader.at(10).names == ("10",)
    wait_until(lambda: batches.read == [10, 11, 12])
    time.sleep(0.05)
    assert batches.read == [10, 11, 12]
    reader.at(11)
    wait_until(lambda: batches.read == [10, 11, 12, 13])
    reader.stop()


def test_an_error_is_raised_by_the_step_it_belongs_to():
    reader = reader_of(Numbers(fails_at=3))
    for step in range(3):
        assert reader.at(step).names == (str(step),)
    with pytest.raises(CacheError, match="no entry for 3"):
        reader.at(3)
    with pytest.raises(CacheError, match="no entry for 3"):
        reader.at(3)
    assert reader.at(4).names == ("4",)
    reader.stop()


def test_a_stop_drops_what_was_read_and_ends_the_thread():
    reader = reader_of(Numbers())
    reader.at(0)
    assert named("batch reader")
    started = time.monotonic()
    reader.stop()
    assert time.monotonic() - started < 2
    assert not named("batch reader")
    assert not reader._waiting


def test_after_a_stop_batches_are_read_when_asked_for_and_a_start_begins_again():
    batches = Numbers()
    reader = reader_of(batches)
    reader.at(0)
    reader.stop()
    batches.read.clear()
    assert reader.at(1).names == ("1",)
    assert batches.read == [1]
    reader.start()
    assert [reader.at(step).names[0] for step in (2, 3)] == ["2", "3"]
    reader.stop()


def test_a_batch_that_is_still_being_read_is_waited_for():
    batches = Numbers(hangs_at=1)
    reader = reader_of(batches)
    reader.at(0)
    wait_until(lambda: batches.read == [0, 1])
    threading.Timer(0.05, batches.go_on.set).start()
    assert reader.at(1).names == ("1",)
    reader.stop()


def test_a_late_answer_to_a_step_nobody_wants_any_more_is_dropped():
    batches = Numbers(hangs_at=1)
    reader = reader_of(batches)
    reader.at(0)
    wait_until(lambda: batches.read == [0, 1])
    threading.Timer(0.05, batches.go_on.set).start()
    assert reader.at(7).names == ("7",)
    assert reader.at(8).names == ("8",)
    reader.stop()


def test_batches_stay_pageable_once_the_system_refuses_to_lock_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Batch] = []

    def refused(batch: Batch) -> Batch:
        tried.append(batch)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(Batch, "pinned", refused)
    reader = BatchReader(Numbers().at, ahead=0, pin=True)  # type: ignore[arg-type]
    assert [reader.at(step).names for step in range(3)] == [("0",), ("1",), ("2",)]
    assert len(tried) == 1
