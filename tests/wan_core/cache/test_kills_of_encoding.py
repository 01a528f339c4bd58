"""A caching process killed at a random moment costs the clip it was at, and never leaves a bad entry."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch

from tests.support.caching import cache_all, key, latent, set_of
from wan_core.cache import Batches, LatentCache, check_entries, clean_leftovers, pack_entries

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")
CLIPS = 14


def killed_after(seconds: float, root: Path) -> bool:
    """Fork a process that caches and packs, kill it after so long; whether it was still at it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the child is a worker of its own
        pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            cache_all(root, CLIPS)
            pack_entries(LatentCache(root), limit_bytes=30_000)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def whole_run_s(root: Path) -> float:
    started = time.monotonic()
    cache_all(root, CLIPS)
    pack_entries(LatentCache(root), limit_bytes=30_000)
    return time.monotonic() - started


def kill_and_check(tmp_path: Path, kills: int) -> None:
    chance = random.Random(5)
    longest = min(whole_run_s(tmp_path / f"clock{n}") for n in range(2))
    hit = packing = 0
    for number in range(kills):
        root = tmp_path / str(number)
        hit += killed_after(chance.uniform(0.1, 1.0) * longest, root)
        cache = LatentCache(root)
        present = [n for n in range(CLIPS) if cache.has("latent", key(n))]
        packing += bool(list(root.glob("packs/*.pack")))
        assert check_entries(cache).damaged == (), f"kill {number}"
        for n in present:
            assert torch.equal(cache.read_latent(key(n)), latent(n).bfloat16()), f"kill {number}, clip {n}"
        encoded, damaged = cache_all(root, CLIPS)
        assert damaged == 0
        assert encoded == [n for n in range(CLIPS) if n not in present], f"kill {number}"
        cache.verify(set_of(CLIPS))
        pack_entries(cache)
        clean_leftovers(cache, older_than_s=0)
        assert list(root.rglob("*.partial")) == []
        batch = Batches(set_of(CLIPS), LatentCache(root), seed=number, batch_size=4).at(number)
        expected = torch.stack([latent(int(name)) for name in batch.names]).bfloat16().float()
        assert torch.equal(batch.latents, expected)
    print(f"{hit} of {kills} were killed at work, {packing} of them had begun to pack")  # noqa: T201
    assert hit >= kills // 5


def test_five_kills_while_caching_or_packing_lose_nothing(tmp_path):
    kill_and_check(tmp_path, 5)


@pytest.mark.soak
def test_fifty_kills_while_caching_or_packing_lose_nothing(tmp_path):
    kill_and_check(tmp_path, 50)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_stays_flat_however_many_clips_are_encoded(tmp_path):
    """60 latents of 524 KB (float32, as the VAE gives them): the second half, kept, would be 16 MB."""
    resident: list[int] = []

    def watch(done: int, total: int, _name: str) -> None:
        if done in (total - 30, total):
            resident.append(resident_bytes())

    cache_all(tmp_path, 60, 512, progress=watch)
    assert resident[1] - resident[0] < 4 << 20
