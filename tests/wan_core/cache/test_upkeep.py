"""Checking, trimming and counting a cache: only entries go, the oldest first, and never what is needed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch

from wan_core.cache import (
    CacheItem,
    CacheSet,
    LatentCache,
    check_entries,
    removals_seen,
    room_of,
    stats_of,
    trim,
    young_sets,
)
from wan_core.cache.upkeep import clean_leftovers, upkeep_lock
from wan_core.cli.commands import _parser
from wan_core.errors import CacheError, ConfigError
from wan_core.job.config import RunStatus, cache_names_in_use, write_status

EMPTY, NEGATIVE = "e" * 64, "f" * 64


def key(number: int) -> str:
    return f"{number:064x}"


def set_of(numbers: list[int]) -> CacheSet:
    items = tuple(CacheItem(latent_key=key(n), text_key=EMPTY, num_frames=1, height=16, width=16) for n in numbers)
    return CacheSet(
        items=items, empty_text_key=EMPTY, negative_text_key=NEGATIVE, latent_space="wan2.1", fps=16.0,
        vae_identity="vae", text_identity="t5",
    )  # fmt: skip


@pytest.fixture
def cache(tmp_path) -> LatentCache:
    """Ten latents and two texts, written long ago."""
    cache = LatentCache(tmp_path / "wan_trainer" / "_cache")
    for number in range(10):
        cache.write_latent(key(number), torch.full((16, 1, 2, 2), float(number)))
    for name in (EMPTY, NEGATIVE):
        cache.write_text(name, torch.zeros(1, 4096))
    for path in cache.root.glob("*/??/*"):
        os.utime(path, (1, 1))
    return cache


def write_set(cache: LatentCache, numbers: list[int], when: int) -> str:
    fingerprint = cache.write_set(set_of(numbers))
    os.utime(cache.root / "sets" / f"{fingerprint}.json", (when, when))
    return fingerprint


def cache_entry_bytes(cache: LatentCache) -> int:
    """Bytes of one latent."""
    return cache.entry_path("latent", key(0)).stat().st_size


def left(cache: LatentCache) -> list[int]:
    return [number for number in range(10) if LatentCache(cache.root).has("latent", key(number))]


def test_what_was_used_longest_ago_goes_first(cache):
    """0 to 3 are of the oldest set, 2 to 5 of a newer one, 6 to 9 of none and as old as their files."""
    write_set(cache, [0, 1, 2, 3], 100)
    newer = write_set(cache, [2, 3, 4, 5], 200)
    before = removals_seen(cache)
    size = cache_entry_bytes(cache)
    report = trim(cache, stats_of(cache).entry_bytes - 3 * size)
    assert left(cache) == [0, 1, 2, 3, 4, 5, 9]
    assert report.evicted == 3
    assert removals_seen(cache) != before
    trim(cache, 0, keep={newer})
    assert left(cache) == [2, 3, 4, 5]
    for number in left(cache):
        assert float(cache.read_latent(key(number)).flatten()[0]) == number
    assert cache.has("text", EMPTY)
    assert len(list((cache.root / "sets").iterdir())) == 2


def test_the_room_that_nothing_needs_is_what_trimming_frees(cache):
    """Entries of a set that is named, or was written within the hour, are needed."""
    wanted, now = write_set(cache, [0, 1, 2, 3], 100), int(time.time())
    fresh = write_set(cache, [3, 4, 5], now - 60)
    write_set(cache, [5, 6, 7], now - 4000)
    assert young_sets(cache) == {fresh}
    keep = {wanted, *young_sets(cache)}
    size, spare = room_of(cache, keep=keep)
    assert size == stats_of(cache).entry_bytes
    assert spare == 4 * cache_entry_bytes(cache)
    assert trim(cache, 0, keep=keep).freed_bytes == spare
    assert left(cache) == [0, 1, 2, 3, 4, 5]
    assert room_of(cache, keep=keep)[1] == 0


def test_within_the_limit_nothing_happens(cache):
    report = trim(cache, 1 << 30)
    assert (report.evicted, report.freed_bytes, report.sentence()) == (0, 0, "")
    assert removals_seen(cache) == 0


def test_a_limit_below_what_is_in_use_is_said_and_not_kept(cache):
    everything = write_set(cache, list(range(10)), 100)
    report = trim(cache, 1, keep={everything})
    assert report.evicted == 0
    assert "over the limit: all of it is in use" in report.sentence()
    assert left(cache) == list(range(10))


def test_an_entry_that_is_still_being_made_into_a_set_stays(cache):
    cache.write_latent(key(5), torch.zeros(16, 1, 2, 2))
    trim(cache, 0)
    assert left(cache) == [5]


def test_files_that_are_no_entries_are_never_touched(cache, tmp_path):
    mine = [
        cache.root / "latents" / "00" / "holiday.mp4",
        cache.root / "latents" / "notes.txt",
        cache.root / "latents" / "zz" / f"{'0' * 64}.safetensors",
        tmp_path / "wan_trainer" / "my_run" / "lora.safetensors",
    ]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    trim(cache, 0)
    assert left(cache) == []
    assert all(path.read_bytes() == b"mine" for path in mine)


def make_run(runs: Path, name: str, state: str, text: str) -> None:
    (runs / name).mkdir(parents=True)
    (runs / name / "run.json").write_text(text)
    write_status(runs / name, RunStatus(state=state))


def test_unfinished_runs_keep_their_set_and_their_prompts(cache):
    runs = cache.root.parent
    old = write_set(cache, [0, 1], 100)
    done = write_set(cache, [2, 3], 200)
    make_run(runs, "stopped", "stopped", json.dumps({"data": {"fingerprint": old}, "preview": {"keys": [key(7)]}}))
    make_run(runs, "done", "done", json.dumps({"data": {"fingerprint": done}}))
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_bytes(b"\xff{" + key(8).encode() + b"\n")
    assert cache_names_in_use(runs) == {old: "stopped", key(7): "stopped", key(8): "broken"}
    code, report = call("trim", str(cache.root), "--limit-gb", "0")
    assert (code, report["kept_over_limit"]) == (0, True)
    assert left(cache) == [0, 1, 7, 8]


def call(*words: str) -> tuple[int, dict]:
    """Exit code and JSON of `wan_core cache ...`, without a process of its own."""
    options, out = _parser().parse_args(["cache", *words]), BytesIO()
    code = options.run(options, lambda _event: None, out)
    return code, json.loads(out.getvalue())


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_every_entry_is_hashed_again_and_the_damaged_are_named(cache):
    damage(cache.entry_path("latent", key(3)), -1)
    damage(cache.entry_path("latent", key(7)), -1)
    report = check_entries(cache)
    assert report.checked == 12
    assert {(kind, name) for kind, name, _ in report.damaged} == {("latent", key(3)), ("latent", key(7))}
    assert all("checksum" in why for *_, why in report.damaged)
    assert report.removed == 0
    assert check_entries(cache, remove=True).removed == 2
    assert check_entries(cache).damaged == ()
    assert left(cache) == [0, 1, 2, 4, 5, 6, 8, 9]


def test_the_command_line_checks_counts_and_trims(cache):
    root = str(cache.root)
    assert call("stats", root)[1] | {"entry_bytes": 0} == {
        "version": 1,
        "entries": {"latent": 10, "text": 2, "condition": 0, "mask": 0, "evaluation": 0},
        "entry_bytes": 0,
        "sets": 0,
    }
    assert call("verify", root)[0] == 0
    damage(cache.entry_path("text", EMPTY), 500)
    code, report = call("verify", root)
    assert (code, len(report["damaged"])) == (5, 1)
    assert call("verify", root, "--remove")[0] == 0
    assert call("verify", root)[0] == 0
    with pytest.raises(ConfigError, match="--limit-gb"):
        call("trim", root)
    with pytest.raises(ConfigError, match="is not a folder"):
        call("stats", str(cache.root / "absent"))
    for limit in ("-1", "nan"):
        with pytest.raises(ConfigError, match=r"--limit-gb is .*\. Set it to the GiB to keep"):
            call("trim", root, "--limit-gb", limit)
    with pytest.raises(ConfigError, match="Name the folder of runs"):  # nothing would be protected
        call("trim", root, "--limit-gb", "0", "--runs", str(cache.root / "absent"))


def test_held_out_entries_and_conditions_belong_to_their_set(cache):
    base = set_of([0, 1])
    held = replace(base.items[0], latent_key=key(5), evaluation_key=key(6))
    kept = base.entry_keys()
    assert kept == {key(0), key(1), EMPTY, NEGATIVE}
    assert replace(base, held_out=(held,)).entry_keys() == kept | {key(5), key(6)}


def test_an_entry_that_windows_holds_open_stays_and_the_others_go(cache, monkeypatch):
    held, unlink = cache.entry_path("latent", key(4)), os.unlink

    def busy(path, **folder):
        if os.path.basename(path) == held.name:
            raise PermissionError(13, "The process cannot access the file")
        unlink(path, **folder)

    size = cache_entry_bytes(cache)
    text_bytes = cache.entry_path("text", EMPTY).stat().st_size
    monkeypatch.setattr(os, "unlink", busy)
    report = trim(cache, 0)
    assert left(cache) == [4]
    assert report.freed_bytes == 9 * size + 2 * text_bytes


def test_only_one_process_evicts(cache):
    with upkeep_lock(cache), pytest.raises(CacheError, match="trimmed by another process"):
        trim(cache, 0)


def test_leftovers_of_killed_writes_go_once_they_are_old(cache):
    shelf = cache.entry_path("latent", key(0)).parent
    left_behind, mine = shelf / ".x.safetensors.77.partial", shelf / "notes.partial"
    for path in (left_behind, mine):
        path.write_bytes(b"half")
    assert clean_leftovers(cache) == 0
    for path in (left_behind, mine):
        os.utime(path, (0, 0))
    assert clean_leftovers(cache) == 1
    assert [path.exists() for path in (left_behind, mine)] == [False, True]
    assert left(cache) == list(range(10))
