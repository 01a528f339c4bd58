"""A caching process killed at a random moment costs the clip it was at, and never leaves a bad entry."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.caching import cache_all, key, latent, set_of, unsound
from wan_core.cache import Batches, LatentCache, check_entries
from wan_core.cache.upkeep import clean_leftovers

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")
CLIPS = 8


def _told(real: Callable[..., Any], before: Callable[[], None], *given: Any, **more: Any) -> Any:
    before()
    return real(*given, **more)


def work(root: Path, before_each_write: Callable[[], None]) -> None:
    """Cache every clip, with a call before everything that reaches the disk for good."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "rename", "link", "unlink"):
            patch.setattr(os, name, functools.partial(_told, getattr(os, name), before_each_write))
        cache_all(root, CLIPS)


def writes_of_a_whole_run(root: Path) -> int:
    writes = 0

    def count() -> None:
        nonlocal writes
        writes += 1

    work(root, count)
    return writes


def killed_at(write: int, patience_s: float, root: Path) -> bool:
    """Fork a process that does the work and kill it about `patience_s` after it began that write; whether it was still
    at it. The child waits for an answer before each write, so a slow machine kills at the same place as a fast one."""
    asks, heard = os.pipe()
    told, answers = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)

            def ask() -> None:
                os.write(heard, b".")
                os.read(told, 1)

            work(root, ask)
        finally:
            os._exit(0)
    os.close(heard)
    for number in range(write):
        os.read(asks, 1)
        if number + 1 < write or patience_s:
            os.write(answers, b".")
    time.sleep(patience_s)
    os.kill(pid, signal.SIGKILL)
    for end in (asks, told, answers):
        os.close(end)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def kill_and_check(tmp_path: Path, kills: int) -> None:
    chance = random.Random(5)
    writes = writes_of_a_whole_run(tmp_path / "whole")
    assert writes > CLIPS
    hit = 0
    for number in range(kills):
        root = tmp_path / str(number)
        # Before a write, or while it and what follows it are done, up to the next one.
        hit += killed_at(chance.randrange(1, writes), chance.choice((0.0, 0.001)), root)
        cache = LatentCache(root)
        present = [n for n in range(CLIPS) if cache.has("latent", key(n))]
        assert check_entries(cache).damaged == (), f"kill {number}"
        for n in present:
            assert torch.equal(cache.read_latent(key(n)), latent(n).bfloat16()), f"kill {number}, clip {n}"
        encoded, damaged = cache_all(root, CLIPS)
        assert damaged == 0
        assert encoded == [n for n in range(CLIPS) if n not in present], f"kill {number}"
        assert unsound(cache, set_of(CLIPS)) == []
        clean_leftovers(cache, older_than_s=0)
        assert list(root.rglob("*.partial")) == []
        batch = Batches(set_of(CLIPS), LatentCache(root), seed=number, batch_size=4).at(number)
        expected = torch.stack([latent(int(name)) for name in batch.names]).bfloat16().float()
        assert torch.equal(batch.latents, expected)
    assert hit == kills


def test_five_kills_while_caching_lose_nothing(tmp_path):
    kill_and_check(tmp_path, 5)


@pytest.mark.soak
def test_fifty_kills_while_caching_lose_nothing(tmp_path):
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
