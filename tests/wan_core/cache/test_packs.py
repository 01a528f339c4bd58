"""Loose entries become packs; nobody notices, and no crash loses one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

import wan_core.cache.latent_cache as latent_cache
import wan_core.cache.packing as packing
from tests.support.dying import Dying, forked, steps_of
from wan_core.cache import CacheItem, CacheSet, LatentCache, clean_leftovers, pack_entries
from wan_core.cache.packing import drop_from_packs, upkeep_lock
from wan_core.cache.packs import PackIndex, read_place, write_pack
from wan_core.errors import CacheError, Stopped
from wan_core.files import FileError

posix = pytest.mark.skipif(os.name == "nt", reason="needs fork")


def key(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}" + f"{number:048x}"


def latent(number: int) -> torch.Tensor:
    return torch.full((16, 1, 2, 2), float(number))


def filled(root: Path, count: int = 8, texts: int = 2) -> LatentCache:
    """`count` latents and two texts, all loose."""
    cache = LatentCache(root)
    for number in range(count):
        cache.write_latent(key(number), latent(number))
    for number in range(texts):
        cache.write_text(key(number), torch.full((2, 4096), float(number)))
    return cache


def loose(cache: LatentCache) -> list[Path]:
    return sorted(cache.root.glob("*/??/*.safetensors"))


def packs(cache: LatentCache) -> list[str]:
    return sorted(path.name for path in cache.root.glob("packs/*.pack"))


def all_there(cache: LatentCache, count: int = 8) -> bool:
    return all(
        cache.has("latent", key(number)) and torch.equal(cache.read_latent(key(number)).float(), latent(number))
        for number in range(count)
    )


def test_packed_entries_are_read_as_loose_ones_were(tmp_path):
    cache = filled(tmp_path)
    texts = [cache.read_text(key(number)) for number in range(2)]
    bytes_before = {path.stem: path.read_bytes() for path in loose(cache) if path.parts[-3] == "latents"}
    assert pack_entries(cache) == {"latent": 8, "text": 2}
    assert loose(cache) == []
    assert [name.split("-")[0] for name in packs(cache)] == ["latents", "texts"]
    for other in (cache, LatentCache(tmp_path)):
        assert all_there(other)
        assert all(torch.equal(other.read_text(key(number)), text) for number, text in enumerate(texts))
        assert not other.has("latent", key(99))
        assert not other.has("text", key(5))
        with pytest.raises(CacheError, match="holds no latent"):
            other.read_latent(key(99))
    [index] = cache.packs.indexes("latent")
    assert [name for name, _ in index.places()] == sorted(bytes_before)
    for name, place in index.places():
        assert place.offset % 64 == 0
        assert index.path.read_bytes()[place.offset : place.offset + place.length] == bytes_before[name]


def test_packs_have_a_size_limit_and_small_caches_stay_loose(tmp_path):
    cache = filled(tmp_path)
    assert pack_entries(cache, at_least=9) == {}
    assert len(loose(cache)) == 10
    size = loose(cache)[0].stat().st_size
    pack_entries(cache, limit_bytes=3 * size)
    assert [index.count for index in cache.packs.indexes("latent")] == [2, 3, 3]
    assert all_there(cache)


def test_a_newer_loose_entry_counts_before_a_packed_one_and_a_newer_pack_before_an_older(tmp_path):
    cache = filled(tmp_path)
    pack_entries(cache)
    for value in (50, 60):
        cache.write_latent(key(3), latent(value))
        assert float(cache.read_latent(key(3)).flatten()[0]) == value
        pack_entries(cache)
        assert loose(cache) == []
        for reader in (cache, LatentCache(tmp_path)):
            assert float(reader.read_latent(key(3)).flatten()[0]) == value
    with upkeep_lock(cache):
        drop_from_packs(cache, "latent", {key(3)})
    assert not LatentCache(tmp_path).has("latent", key(3))
    assert all_there(cache, 3)


def test_a_damaged_loose_entry_is_not_packed(tmp_path):
    cache = filled(tmp_path)
    path = cache.loose_path("latent", key(2))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert pack_entries(cache)["latent"] == 7
    assert loose(cache) == [path]
    assert not cache.is_sound("latent", key(2))


@pytest.mark.parametrize("place", [0, 70, -1, -12, -20, -40, -100])
def test_a_flipped_bit_of_a_pack_is_refused_wherever_it_is(tmp_path, place):
    """An entry, the index or the footer: nothing wrong is ever handed out."""
    cache = filled(tmp_path, 1)
    pack_entries(cache)
    path = cache.packs.indexes("latent")[0].path
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    other = LatentCache(tmp_path)
    if other.packs.indexes("latent") and place != -12:
        assert place == 70
        assert other.has("latent", key(0))
    elif place != -12:  # padding of the footer is read by nobody
        assert other.packs.unreadable() == [path.name]
        assert not other.has("latent", key(0))
        assert not other.is_sound("latent", key(0))
    assert other.is_sound("latent", key(0)) == (place == -12)
    cache.write_latent(key(0), latent(0))
    assert all_there(LatentCache(tmp_path), 1)


@pytest.mark.parametrize("kept", [0, 8, 100, -1])
def test_a_truncated_pack_is_as_good_as_absent(tmp_path, kept):
    cache = filled(tmp_path)
    pack_entries(cache)
    path = cache.packs.indexes("latent")[0].path
    path.write_bytes(path.read_bytes()[:kept])
    other = LatentCache(tmp_path)
    assert not other.has("latent", key(0))
    with pytest.raises(ValueError, match="pack"):
        PackIndex(path)


def test_a_stop_between_entries_keeps_everything(tmp_path):
    cache = filled(tmp_path)
    calls = iter(range(100))
    with pytest.raises(Stopped):
        pack_entries(cache, should_stop=lambda: next(calls) == 4)
    assert packs(cache) == []
    assert len(loose(cache)) == 10
    assert all_there(cache)


def test_only_one_process_moves_entries(tmp_path):
    cache = filled(tmp_path)
    with upkeep_lock(cache), pytest.raises(CacheError, match="packed or trimmed by another process"):
        pack_entries(cache)


def test_leftovers_of_killed_writes_go_once_they_are_old(tmp_path):
    cache = filled(tmp_path)
    shelf = cache.loose_path("latent", key(0)).parent
    (tmp_path / "packs").mkdir()
    left = [shelf / ".x.safetensors.77.partial", tmp_path / "packs" / ".latents-000001-0.pack.7.partial"]
    mine = shelf / "notes.partial"
    for path in (*left, mine):
        path.write_bytes(b"half")
    assert clean_leftovers(cache) == 0
    for path in (*left, mine):
        os.utime(path, (0, 0))
    assert clean_leftovers(cache) == 2
    assert [path.exists() for path in (*left, mine)] == [False, False, True]
    assert all_there(cache)


@pytest.mark.lasts(1)
def test_readers_never_miss_an_entry_while_it_moves(tmp_path):
    """Two readers, one of them with what it knows of long ago, while entries go back and forth."""
    cache = filled(tmp_path)
    stop, wrong = threading.Event(), []

    def read() -> None:
        reader = LatentCache(tmp_path)
        while not stop.is_set():
            for number in range(8):
                try:
                    if not torch.equal(reader.read_latent(key(number)).float(), latent(number)):
                        wrong.append(number)
                except CacheError as error:
                    wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        deadline = time.monotonic() + 0.8
        while time.monotonic() < deadline:
            pack_entries(cache, limit_bytes=1000)
            cache.write_latent(key(20), latent(20))
            pack_entries(cache)
            with upkeep_lock(cache):
                drop_from_packs(cache, "latent", {key(20)})
            for number in range(8):
                cache.write_latent(key(number), latent(number))
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []


# ---- crashes ------------------------------------------------------------------------------------


class DyingPacking(Dying):
    def install(self) -> None:
        """In the child only. Reading an entry is a step too: by then others stand half written in the new pack."""
        packing._sound_bytes = self.wrap(packing._sound_bytes)
        for name in ("mkdir", "replace", "unlink", "fsync"):
            setattr(os, name, self.wrap(getattr(os, name)))


@pytest.mark.lasts(1)
@posix
@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_a_crash_at_any_step_of_packing_loses_nothing(tmp_path, moment):
    def work(cache: LatentCache) -> None:
        pack_entries(cache, limit_bytes=1000)

    counted = filled(tmp_path / "count", 3, 0)
    total = steps_of(lambda: work(counted), DyingPacking(-1, ""))
    assert total >= 10
    for number in range(1, total + 1):
        cache = filled(tmp_path / f"{number}", 3, 0)

        def pack_and_die(cache: LatentCache = cache, number: int = number) -> None:
            DyingPacking(number, moment).install()
            work(cache)

        assert forked(pack_and_die) == 137
        assert all_there(LatentCache(cache.root), 3), f"step {number}"
        work(cache)
        clean_leftovers(cache, older_than_s=0)
        assert all_there(cache, 3), f"step {number}"
        assert loose(cache) == []
        assert list(cache.root.rglob("*.partial")) == []


# ---- size ---------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_packed_cache_of_a_hundred_thousand_clips_opens_within_a_second(tmp_path):
    """Index and set, in CPU seconds; benchmarks/loader.py measures the rest of the way to the first batch."""
    count = 100_000
    cache = LatentCache(tmp_path)
    cache.packs.folder.mkdir()
    pack = cache.packs.folder / "latents-000001-00000000.pack"
    write_pack(pack, ((key(number), b"%d" % number) for number in range(count)))
    items = tuple(
        CacheItem(
            latent_key=key(n), text_key=key(n), num_frames=1, height=16, width=16, name=f"{n}", caption="a cat" * 9
        )
        for n in range(count)
    )
    large = CacheSet(
        items=items, empty_text_key="e" * 64, negative_text_key="f" * 64, latent_space="wan2.1", fps=16.0,
        vae_identity="vae", text_identity="t5",
    )  # fmt: skip
    fingerprint = cache.write_set(large)
    started = time.process_time()
    other = LatentCache(tmp_path)
    found = other.read_set(fingerprint)
    place = other.packs.find("latent", key(77_777))
    seconds = time.process_time() - started
    assert place is not None
    assert read_place(place) == b"77777"
    assert found == large
    print(f"{seconds:.2f} s")  # noqa: T201
    assert seconds < 1.0


@pytest.mark.parametrize("failures", [1, 5, 1000])
def test_an_entry_packed_and_written_again_while_it_is_opened_is_found(tmp_path, monkeypatch, failures):
    """Its file is there before and after; what stays unreadable is said."""
    cache, real, left = filled(tmp_path), latent_cache.read_whole, failures

    def gone_for_a_moment(path: Path) -> bytearray:
        nonlocal left
        left -= 1
        if left >= 0:
            raise FileError("it is gone")
        return real(path)

    monkeypatch.setattr(latent_cache, "read_whole", gone_for_a_moment)
    if failures < 1000:
        assert torch.equal(cache.read_latent(key(0)).float(), latent(0))
    else:
        with pytest.raises(CacheError, match="it is gone"):
            cache.read_latent(key(0))
