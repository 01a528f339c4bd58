"""A cache that an earlier layout packed names the command that unpacks it, and hits again afterwards."""

from __future__ import annotations

import hashlib
import json
import struct
from io import BytesIO
from pathlib import Path

import pytest
import torch

from wan_core.cache import CacheItem, CacheSet, LatentCache, unpack
from wan_core.cache.entry import pack_entry
from wan_core.cli.commands import _parser
from wan_core.errors import CacheError, Stopped

EMPTY = "e" * 64


def key(number: int) -> str:
    return f"{number:064x}"


def latent(number: int) -> torch.Tensor:
    return torch.full((16, 1, 2, 2), float(number))


def write_pack(root: Path, number: int, values: dict[int, int]) -> Path:
    """A pack of latents as the earlier layout wrote it: key number -> what the latent is full of."""
    body, records = b"WANPACK1", b""
    for name, value in sorted(values.items()):
        data = pack_entry({"latent": latent(value)}, key=key(name))
        body += bytes(-len(body) % 64)
        records += struct.pack("<32sQQ", bytes.fromhex(key(name)), len(body), len(data))
        body += data
    body += bytes(-len(body) % 64)
    footer = struct.pack("<QQ32s8x8s", len(body), len(values), hashlib.sha256(records).digest(), b"WANPACK1")
    path = root / "packs" / f"latents-{number:06d}-00000000.pack"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body + records + footer)
    return path


def write_columns(root: Path) -> CacheSet:
    """A set of three items as the earlier layout wrote large ones."""
    items = tuple(
        CacheItem(
            latent_key=key(n), text_key=EMPTY, num_frames=1, height=16, width=16, name=f"{n} ü.mp4", repeats=n + 1
        )
        for n in range(3)
    )
    cache_set = CacheSet(
        items=items, empty_text_key=EMPTY, negative_text_key=EMPTY, latent_space="wan2.1", fps=16.0,
        vae_identity="vae", text_identity="t5", trigger_words=("cat",),
    )  # fmt: skip
    fields = cache_set.to_dict()
    for group in ("items", "held_out"):
        rows = fields[group]
        columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        same = {name: len({str(value) for value in column}) == 1 for name, column in columns.items()}
        fields[group] = {"count": len(rows)} | {
            name: {"all": column[0]} if same[name] else {"each": column} for name, column in columns.items()
        }
    body = json.dumps({"fingerprint": cache_set.fingerprint(), "set": fields}).encode()
    path = root / "sets" / f"{cache_set.fingerprint()}.columns"
    path.parent.mkdir(parents=True)
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    return cache_set


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Latent 0 lies in two packs, latent 2 in a pack and, newer, as a file."""
    root = tmp_path / "wan_trainer" / "_cache"
    write_pack(root, 1, {0: 50, 1: 1, 2: 50})
    write_pack(root, 2, {0: 0})
    LatentCache(root).write_latent(key(2), latent(2))
    return root


def test_what_is_packed_is_no_hit_and_names_the_command(packed: Path) -> None:
    cache, given = LatentCache(packed), write_columns(packed)
    assert [cache.has("latent", key(n)) for n in range(3)] == [False, False, True]
    command = r"python wan_core/launch\.py cache unpack \.\./\.\./.*wan_trainer/_cache$"
    for ask in (lambda: cache.read_latent(key(0)), lambda: cache.read_set(given.fingerprint())):
        with pytest.raises(CacheError, match=command):
            ask()


def test_the_command_makes_a_file_of_each_entry_and_set_and_the_newest_counts(packed: Path) -> None:
    given, out = write_columns(packed), BytesIO()
    options = _parser().parse_args(["cache", "unpack", str(packed)])
    assert options.run(options, lambda _event: None, out) == 0
    assert json.loads(out.getvalue()) == {"version": 1, "entries": 2, "sets": 1, "unreadable": []}
    assert [*packed.glob("packs/*"), *packed.glob("sets/*.columns")] == []
    cache = LatentCache(packed)
    for number in range(3):
        assert torch.equal(cache.read_latent(key(number)).float(), latent(number))
    assert cache.read_set(given.fingerprint()) == given


@pytest.mark.parametrize("place", [0, -12, -30, -60])
def test_a_damaged_pack_stays_and_is_named(packed: Path, place: int) -> None:
    """In the index or the footer; of an entry the checksum says so when it is read."""
    path = packed / "packs" / "latents-000002-00000000.pack"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    report = unpack(packed)
    unread = place in (-30, -60)
    assert (report.unreadable, path.exists()) == ((path.name,) if unread else (), unread)
    assert LatentCache(packed).has("latent", key(1))


def test_a_stop_keeps_every_pack_that_is_not_unpacked(packed: Path) -> None:
    calls = iter(range(9))
    with pytest.raises(Stopped):
        unpack(packed, should_stop=lambda: next(calls) == 2)
    assert [path.name for path in packed.glob("packs/*.pack")] == ["latents-000001-00000000.pack"]
    assert unpack(packed).entries == 1
    assert torch.equal(LatentCache(packed).read_latent(key(1)).float(), latent(1))
