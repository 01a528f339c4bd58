"""What was written and checked here is not read to plan the next encoding, until its file changes or cannot be read."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.caching import cache_all, key, latent, shape_of
from wan_core.cache import LatentCache, removals_seen
from wan_core.cache.known_entries import KnownEntries
from wan_core.errors import CacheError
from wan_core.files import mark_of

CLIPS = 3
TICK_S = 0.02
"""Systems count the time of a file in steps of up to ten milliseconds."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache of three clips, written by a process that has ended."""
    cache_all(tmp_path / "cache", CLIPS)
    time.sleep(TICK_S)
    return tmp_path / "cache"


def held(root: Path) -> list[bool | None]:
    """What a new process says of the three latents."""
    cache = LatentCache(root)
    found = [cache.holds("latent", key(number), shape_of()) for number in range(CLIPS)]
    cache.save_known()
    return found


def held_unread(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool | None]:
    with monkeypatch.context() as blind:
        blind.setattr(LatentCache, "read_tensors", lambda *_: pytest.fail("an entry was read"))
        return held(root)


def test_what_was_written_here_is_not_read_again(root, monkeypatch):
    assert held_unread(root, monkeypatch) == [True] * 3
    assert LatentCache(root).holds("latent", key(77)) is None


def test_a_cache_without_its_memo_is_read_once(root, monkeypatch):
    (root / "entries.json").unlink()
    assert held(root) == [True] * 3
    assert held_unread(root, monkeypatch) == [True] * 3
    (root / "entries.json").write_text("[not ours")
    assert held(root) == [True] * 3


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def edited(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes()))


def edited_with_its_time_put_back(path: Path) -> None:
    before = path.stat()
    edited(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def replaced(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    edited_with_its_time_put_back(copy)
    os.replace(copy, path)


CHANGES = [edited, cut_off, replaced, pytest.param(
    edited_with_its_time_put_back, marks=pytest.mark.skipif(os.name == "nt", reason="no time of the last change")
)]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_is_read_and_found_out(root, change: Callable[[Path], None]):
    change(LatentCache(root).entry_path("latent", key(1)))
    assert held(root) == [True, False, True]
    encoded, damaged = cache_all(root, CLIPS)
    assert (encoded, damaged) == ([1], 1)
    assert held(root) == [True] * 3


def rot(root: Path, number: int) -> None:
    """Other bytes in a file nobody touched, as a failing disk gives them."""
    path = LatentCache(root).entry_path("latent", key(number))
    edited(path)
    known = KnownEntries(root)
    known.note_sound(f"latent-{key(number)}", mark_of(path))
    known.save()


def test_who_cannot_read_an_entry_leaves_a_doubt_and_the_next_plan_encodes_it_again(root, monkeypatch):
    rot(root, 0)
    assert held_unread(root, monkeypatch) == [True] * 3, "nobody can know yet"
    before = removals_seen(LatentCache(root))
    with pytest.raises(CacheError, match=r"its checksum does not match\. Queue Cache Latents \+ Captions again"):
        LatentCache(root).read_latent(key(0))
    assert removals_seen(LatentCache(root)) != before, "whoever remembers a complete cache looks again"
    assert held(root) == [False, True, True]
    cache = LatentCache(root)
    cache.write_latent(key(0), latent(0))
    cache.save_known()
    assert held_unread(root, monkeypatch) == [True] * 3
    assert os.listdir(root / "doubts") == []


def test_a_doubt_about_a_sound_entry_goes_when_it_is_read(root, monkeypatch):
    KnownEntries(root).doubt(f"latent-{key(1)}")
    assert held(root) == [True] * 3
    assert held_unread(root, monkeypatch) == [True] * 3
    with pytest.raises(CacheError):
        LatentCache(root).read_latent(key(88))
    assert os.listdir(root / "doubts") == [f"latent-{key(88)}"], "whoever handed on one that is not there looks again"
    assert not LatentCache(root).is_sound("latent", key(89))
    assert os.listdir(root / "doubts") == [f"latent-{key(88)}"], "who only asks whether it is there leaves none"
    LatentCache(root).write_latent(key(88), torch.zeros(16, 2, 4, 4))
    assert os.listdir(root / "doubts") == []


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "doubts").write_text("a file")
    cache = LatentCache(tmp_path / "cache")
    cache.write_latent(key(0), torch.zeros(shape_of()))
    edited(cache.entry_path("latent", key(0)))
    with pytest.raises(CacheError, match="checksum"):
        cache.read_latent(key(0))
    assert cache.holds("latent", key(0), shape_of()) is False
