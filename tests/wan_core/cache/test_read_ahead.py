"""Reading runs ahead of encoding and writing behind it, both within bounds; a failure is told where it belongs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.bench import MeanVision, PoolingCodec
from tests.support.caching import cache_all
from wan_core.cache import LatentCache, read_ahead
from wan_core.cache.condition import condition_from_files, files_read
from wan_core.cache.read_ahead import AHEAD, ReadAhead, WriteBehind
from wan_core.dataset import Companion
from wan_core.dataset.bucket import Bucket
from wan_core.errors import CacheError
from wan_core.model import condition_named
from wan_core.video.sources import UnreadableError


class Videos:
    """Readers that say how many of them there are."""

    def __init__(self) -> None:
        self.made, self.closed = 1, 0

    def another(self) -> Videos:
        self.made += 1
        return self

    def close(self) -> None:
        self.closed += 1


def clip(name: str, side: int = 16) -> Any:
    return SimpleNamespace(path=Path(name), name=name, bucket=Bucket(5, side, side))


@pytest.fixture
def read(monkeypatch):
    """The names of the files read, in order; a file called bad cannot be read, one called slow takes a while."""
    names: list[str] = []

    def reading(_video: Any, sample: Any, _fps: float, companion: Any) -> np.ndarray:
        path: Path = (companion or sample).path
        names.append(path.name)
        if path.name.startswith("bad"):
            raise UnreadableError(f"{path.name} is damaged.")
        time.sleep(0.2 if path.name.startswith("slow") else 0.0)
        return np.full((5, sample.bucket.height, sample.bucket.width, 3), 51, np.uint8)

    monkeypatch.setattr(read_ahead, "read_sample", reading)
    return names


def settled(names: list[str], count: int) -> list[str]:
    """What was read once `count` files were, and no more for a moment."""
    deadline = time.monotonic() + 10
    while len(names) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    return sorted(names)


def test_two_clips_are_read_ahead_and_no_more(read):
    clips = [clip(f"{number}") for number in range(6)]
    with ReadAhead(Videos(), 16.0, [(one, None) for one in clips]) as reads:
        assert settled(read, AHEAD) == ["0", "1"]
        assert torch.equal(reads.pixels(clips[0]), torch.full((5, 16, 16, 3), 51.0) / 255)
        assert settled(read, 3) == ["0", "1", "2"]
        assert reads.pixels(clips[0]) is reads.pixels(clips[0]), "the frames of the last sample are kept"
        assert settled(read, 3) == ["0", "1", "2"]
        for one in clips[1:]:
            reads.pixels(one)
    assert sorted(read) == ["0", "1", "2", "3", "4", "5"], "each once"


def test_what_waits_stays_within_its_bytes_and_one_large_clip_still_goes(read, monkeypatch):
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", read_ahead.bytes_of(clip("0")) + 1)
    clips = [clip("0"), clip("1"), clip("large", 64), clip("3")]
    with ReadAhead(Videos(), 16.0, [(one, None) for one in clips]) as reads:
        assert settled(read, 1) == ["0"]
        reads.pixels(clips[0])
        assert settled(read, 2) == ["0", "1"]
        for one in clips[1:]:
            assert reads.pixels(one).shape[1] == one.bucket.height


def test_a_clip_that_cannot_be_read_says_so_when_its_turn_comes(read):
    clips = [clip("0"), clip("bad"), clip("2")]
    with ReadAhead(Videos(), 16.0, [(one, None) for one in clips]) as reads:
        assert settled(read, 2) == ["0", "bad"]
        reads.pixels(clips[0])
        with pytest.raises(UnreadableError, match="bad is damaged"):
            reads.pixels(clips[1])
        assert reads.pixels(clips[2]).shape == (5, 16, 16, 3)


def test_what_nobody_asks_for_is_passed_over_and_what_was_not_foreseen_is_read(read):
    clips = [clip(f"{number}") for number in range(5)]
    with ReadAhead(Videos(), 16.0, [(one, None) for one in clips]) as reads:
        assert reads.pixels(clips[3]).shape == (5, 16, 16, 3)
        assert reads.pixels(clip("another")).shape == (5, 16, 16, 3)
        assert reads.pixels(clips[4]).shape == (5, 16, 16, 3)
    assert read.count("4") == read.count("another") == 1


@pytest.mark.parametrize(("cores", "readers"), [(1, 1), (2, 2), (8, 2)])
def test_an_encoder_that_waits_gets_a_second_reader_where_there_are_cores(read, monkeypatch, cores, readers):
    monkeypatch.setattr(read_ahead, "usable_cores", lambda: cores)
    monkeypatch.setattr(read_ahead, "_WORTH_S", 0.1)
    videos, clips = Videos(), [clip("0"), clip("slow"), clip("2")]
    with ReadAhead(videos, 16.0, [(one, None) for one in clips]) as reads:
        reads.pixels(clips[0])
        assert videos.made == 1, "nobody waited yet"
        for one in clips[1:]:
            reads.pixels(one)
        assert videos.made == readers
    assert videos.closed == readers - 1, "the first one is the caller's"


@pytest.mark.parametrize("name", ["first", "first_last", "first_vision", "control", "control_mask", "vace", "inpaint"])
def test_what_a_condition_reads_is_foreseen(name):
    for kind in (condition_named(name), condition_named(condition_named(name).masked or name)):
        control, mask = (Companion(path=Path(said), mark=(0, 0, 0)) for said in ("control", "mask"))
        sample: Any = SimpleNamespace(bucket=Bucket(5, 32, 48), control=control, mask=mask, context=())
        asked: list[Any] = []

        def pixels_of(_sample: Any, companion: Any, asked: list[Any] = asked) -> torch.Tensor:
            asked.append(companion)
            return torch.zeros(5, 32, 48, 3)

        condition_from_files(sample, kind, pixels_of, PoolingCodec(), MeanVision(), 16.0)
        assert asked == files_read(sample, kind), kind


def test_a_write_goes_on_while_the_next_thing_is_made_and_one_only():
    running, most = 0, 0
    gate = threading.Event()

    def write() -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        gate.wait(10)
        running -= 1

    with WriteBehind() as writes:
        writes.put(write)  # returns although nothing is written yet
        gate.set()
        for _ in range(3):
            writes.put(write)
    assert (running, most) == (0, 1)


def test_leaving_waits_for_the_write_under_way_whatever_else_went_wrong():
    written: list[int] = []

    def write() -> None:
        time.sleep(0.1)
        written.append(1)

    writes = WriteBehind()
    writes.put(write)
    writes.__exit__(ValueError, ValueError("something else"), None)
    assert written == [1]


@pytest.mark.parametrize("fails_at", [1, 3])
def test_a_failed_write_is_told_before_anybody_hears_that_all_is_done(tmp_path, monkeypatch, fails_at):
    """Also that of the very last entry."""
    real, count = LatentCache.write_latent, 0

    def full(self: LatentCache, *given: Any) -> None:
        nonlocal count
        count += 1
        if count == fails_at:
            raise CacheError("The cache folder cannot be written: No space left on device.")
        real(self, *given)

    monkeypatch.setattr(LatentCache, "write_latent", full)
    told: list[int] = []
    with pytest.raises(CacheError, match="No space left"):
        cache_all(tmp_path, 3, progress=lambda done, total, _name: told.append(total - done))
    assert told
    assert 0 not in told
    assert not list(tmp_path.glob("sets/*"))
    monkeypatch.undo()
    encoded, damaged = cache_all(tmp_path, 3)
    assert damaged == 0
    assert fails_at - 1 in encoded
