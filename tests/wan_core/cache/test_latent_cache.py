"""Entries are trusted only after every check; keys cover all that made an entry."""

from __future__ import annotations

import errno
import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from wan_core.cache import CacheItem, CacheSet, LatentCache, condition_key, latent_key, text_key
from wan_core.cache.keys import Stored
from wan_core.errors import CacheError, ConfigError, DependencyError

KEY = latent_key(content_digest="ab" * 32, transform={"width": 32}, encoder_identity="vae")


@pytest.fixture
def cache(tmp_path):
    return LatentCache(tmp_path / "cache")


@pytest.fixture
def entry(cache):
    """The file of one stored latent."""
    cache.write_latent(KEY, torch.randn(16, 1, 4, 4))
    return cache.root / "latents" / KEY[:2] / f"{KEY}.safetensors"


def test_an_entry_comes_back_as_bfloat16(cache):
    latent = torch.randn(16, 3, 4, 6)
    cache.write_latent(KEY, latent)
    assert cache.has("latent", KEY)
    torch.testing.assert_close(cache.read_latent(KEY), latent.bfloat16(), rtol=0, atol=0)


def test_an_entry_of_another_shape_is_refused(cache, entry):
    assert cache.read_latent(KEY, (16, 1, 4, 4)).shape == (16, 1, 4, 4)
    with pytest.raises(CacheError, match="shape"):
        cache.read_latent(KEY, (16, 2, 4, 4))


@pytest.mark.parametrize("place", [0, 3, 9, 60, -1, -200])
def test_a_flipped_bit_is_refused_wherever_it_is(cache, entry, place):
    data = bytearray(entry.read_bytes())
    data[place] ^= 4
    entry.write_bytes(data)
    with pytest.raises(CacheError, match=r"Queue Cache Latents \+ Captions again"):
        cache.read_latent(KEY)


@pytest.mark.parametrize("kept", [0, 1, 8, 40, 300, -1])
def test_a_truncated_entry_is_refused(cache, entry, kept):
    entry.write_bytes(entry.read_bytes()[:kept])
    with pytest.raises(CacheError, match=r"Queue Cache Latents \+ Captions again"):
        cache.read_latent(KEY)


def test_a_longer_entry_is_refused(cache, entry):
    entry.write_bytes(entry.read_bytes() + b"\0\0")
    with pytest.raises(CacheError, match="length"):
        cache.read_latent(KEY)


def test_the_entry_of_another_key_is_refused(cache, entry):
    other = "0" * 64
    target = cache.root / "latents" / "00" / f"{other}.safetensors"
    target.parent.mkdir()
    target.write_bytes(entry.read_bytes())
    with pytest.raises(CacheError, match="another key"):
        cache.read_latent(other)


@pytest.mark.parametrize(
    "content",
    [
        save({"latent": torch.zeros(16, 1, 2, 2)}, {"key": KEY, "sha256": "0" * 64}),
        save({"latent": torch.zeros(16, 1, 2, 2).bfloat16()}, {"key": KEY}),
        save({"latent": torch.zeros(16, 1, 2, 2).bfloat16()}),
        save({"other": torch.zeros(16, 1, 2, 2).bfloat16()}, {"key": KEY}),
        b"<!DOCTYPE html>" * 10,
        b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07os.name\x94.",
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
    ],
    ids=["float32", "no sum", "no metadata", "name", "html", "pickle", "header size", "list"],
)
def test_foreign_content_is_refused(cache, entry, content):
    entry.write_bytes(content)
    with pytest.raises(CacheError, match=r"Queue Cache Latents \+ Captions again"):
        cache.read_latent(KEY)


def test_not_a_number_is_neither_written_nor_read(cache, entry, monkeypatch):
    bad = torch.zeros(16, 1, 4, 4)
    bad[3] = float("nan")
    with pytest.raises(CacheError, match=r"clip\.mp4 gave NaN"):
        cache.write_latent("1" * 64, bad, name="clip.mp4")
    monkeypatch.setattr("wan_core.cache.latent_cache.torch.isfinite", lambda t: torch.ones(()))
    cache.write_latent(KEY, bad)
    monkeypatch.undo()
    with pytest.raises(CacheError, match="NaN"):
        cache.read_latent(KEY)


@pytest.mark.parametrize("shape", [(0, 4096), (513, 4096), (7, 768), (4096,)])
def test_text_of_another_encoder_is_refused(cache, shape):
    with pytest.raises(CacheError, match="umt5"):
        cache.write_text("2" * 64, torch.zeros(shape))


def test_keys_with_a_path_inside_are_refused(cache):
    for key in ("../../etc/passwd", "A" * 64, "", "0" * 63):
        with pytest.raises(CacheError, match="not a cache key"):
            cache.has("latent", key)
        with pytest.raises(CacheError, match="not a cache fingerprint"):
            cache.read_set(key)


def test_every_part_of_a_key_changes_it():
    base = {"content_digest": "a", "transform": {"fps": 16.0}, "encoder_identity": "vae"}
    keys = {
        latent_key(**base),
        latent_key(**{**base, "content_digest": "b"}),
        latent_key(**{**base, "transform": {"fps": 24.0}}),
        latent_key(**{**base, "encoder_identity": "other"}),
        text_key("a cat", "t5"),
        text_key("a dog", "t5"),
        text_key("a cat", "other"),
    }
    assert len(keys) == 7
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


def make_set(**changes) -> CacheSet:
    item = CacheItem(latent_key=KEY, text_key="3" * 64, num_frames=1, height=32, width=32, name="a")
    values = {
        "items": (item,),
        "empty_text_key": "4" * 64,
        "negative_text_key": "5" * 64,
        "latent_space": "wan2.1",
        "fps": 16.0,
        "vae_identity": "vae",
        "text_identity": "t5",
    }
    return CacheSet(**{**values, **changes})


def test_a_set_comes_back_under_its_fingerprint(cache):
    cache_set = make_set()
    assert cache.read_set(cache.write_set(cache_set)) == cache_set
    assert make_set(fps=24.0).fingerprint() != cache_set.fingerprint()


def test_an_edited_set_is_refused(cache):
    fingerprint = cache.write_set(make_set())
    path = cache.root / "sets" / f"{fingerprint}.json"
    data = json.loads(path.read_text())
    data["items"][0]["repeats"] = 5
    path.write_text(json.dumps(data))
    with pytest.raises(CacheError, match="was changed"):
        cache.read_set(fingerprint)
    path.write_text("{")
    with pytest.raises(CacheError, match="damaged"):
        cache.read_set(fingerprint)


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(cache, entry, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("wan_core.files.writing.os.fsync", full)
    with pytest.raises(CacheError, match="cannot be written: No space left on device"):
        cache.write_latent("6" * 64, torch.zeros(16, 1, 4, 4))
    monkeypatch.undo()
    assert [path for path in cache.root.rglob("*") if path.is_file()] == [entry]
    assert cache.read_latent(KEY).shape == (16, 1, 4, 4)


def test_a_file_where_the_cache_folder_should_be_is_named(tmp_path):
    (tmp_path / "cache").write_text("x")
    cache = LatentCache(tmp_path / "cache")
    with pytest.raises(CacheError, match="cannot be written"):
        cache.write_latent(KEY, torch.zeros(16, 1, 4, 4))
    assert cache.files.digest(tmp_path / "cache")
    cache.save_known()


CONDITION = {"channels": torch.randn(20, 2, 4, 6), "image_tokens": torch.randn(257, 1280)}


def test_a_condition_comes_back_by_name(cache):
    cache.write_condition(KEY, CONDITION, "a.mp4")
    assert cache.has("condition", KEY)
    found = cache.read_condition(KEY, (16, 2, 4, 6))
    assert set(found) == set(CONDITION)
    for name, tensor in CONDITION.items():
        torch.testing.assert_close(found[name], tensor.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("place", [3, 60, -1, -2 * 257 * 1280, -2 * 257 * 1280 - 1])
def test_a_flipped_bit_of_any_tensor_is_refused(cache, place):
    cache.write_condition(KEY, CONDITION)
    path = cache.root / "conditions" / KEY[:2] / f"{KEY}.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    with pytest.raises(CacheError, match=r"Queue Cache Latents \+ Captions again"):
        cache.read_condition(KEY)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "nothing"),
        ({"sound": torch.zeros(2, 2)}, "sound"),
        ({"channels": torch.zeros(20, 4, 6)}, "not 4 axes"),
        ({"channels": torch.full((20, 2, 4, 6), float("nan"))}, "NaN"),
    ],
)
def test_what_is_no_condition_is_not_written(cache, tensors, words):
    with pytest.raises(CacheError, match=words):
        cache.write_condition(KEY, tensors, "a.mp4")
    assert not cache.has("condition", KEY)


def test_a_condition_of_another_size_is_refused(cache):
    cache.write_condition(KEY, {"vace": torch.zeros(96, 2, 4, 6), "camera": torch.zeros(24, 2, 32, 48)})
    assert cache.is_sound("condition", KEY, (16, 2, 4, 6))
    with pytest.raises(CacheError, match=r"its \w+ have shape .*, the clip needs"):
        cache.read_condition(KEY, (16, 3, 4, 6))


def test_a_latent_is_no_condition(cache, entry):
    path = cache.root / "conditions" / KEY[:2] / entry.name
    path.parent.mkdir(parents=True)
    path.write_bytes(entry.read_bytes())
    with pytest.raises(CacheError, match="some of the tensors channels, image_tokens"):
        cache.read_condition(KEY)


def test_every_part_of_a_condition_key_changes_it():
    parts = {
        "content_digest": "ab",
        "transform": {"width": 32},
        "encoder_identity": "vae",
        "conditioning": "first",
        "vision_identity": "",
    }
    known = {condition_key(**parts), latent_key(content_digest="ab", transform={"width": 32}, encoder_identity="vae")}
    for name in parts:
        known.add(condition_key(**{**parts, name: "other" if name != "transform" else {"width": 48}}))
    assert len(known) == 2 + len(parts)


def test_a_set_without_conditioning_keeps_the_name_it_had_before_there_was_any():
    item = CacheItem(latent_key="c" * 64, text_key="1" * 64, num_frames=5, height=32, width=32, name="a")
    written_before = "ca37a3b849e2885955e1e4229a988e4d"
    found = make_set(items=(item,), empty_text_key="e" * 64, negative_text_key="f" * 64).fingerprint()
    assert found.startswith(written_before)


def test_conditioning_is_part_of_what_is_trained(cache):
    plain = make_set()
    given = make_set(items=tuple(replace(item, condition_key=KEY) for item in plain.items), conditioning="first")
    assert cache.read_set(cache.write_set(given)) == given
    other = replace(given, items=tuple(replace(item, condition_key="d" * 64) for item in plain.items))
    assert len({plain.fingerprint(), given.fingerprint(), other.fingerprint()}) == 3
    with pytest.raises(ConfigError, match='does not match conditioning "first"'):
        make_set(conditioning="first")


# ---- large sets, other ways of storing --------------------------------------------------------------


LATENT = torch.randn(16, 3, 4, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_entry_says_how_it_is_stored_and_every_reader_reads_it(cache, dtype, compression):
    wide = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    stored = Stored(dtype=dtype, compression=compression)
    cache.write_latent(KEY, LATENT, stored=stored)
    cache.write_condition(KEY, CONDITION, stored=stored)
    cache.write_text("7" * 64, CONDITION["image_tokens"].repeat(1, 4)[:, :4096].contiguous(), stored=Stored(
        compression=compression
    ))  # fmt: skip
    reader = LatentCache(cache.root)
    found = reader.read_latent(KEY, (16, 3, 4, 6))
    assert found.dtype == wide
    assert torch.equal(found, LATENT.to(wide))
    given = reader.read_condition(KEY)
    assert all(torch.equal(given[name], CONDITION[name].to(wide)) for name in CONDITION)
    assert reader.read_text("7" * 64).dtype == torch.bfloat16


def test_compression_saves_a_quarter_of_a_latent_of_noise(cache):
    latent = torch.randn(16, 5, 30, 52, generator=torch.Generator().manual_seed(1))
    cache.write_latent(KEY, latent)
    plain = cache.entry_path("latent", KEY).stat().st_size
    cache.write_latent(KEY, latent, stored=Stored(compression="zstd"))
    packed = cache.entry_path("latent", KEY).stat().st_size
    assert 0.6 < packed / plain < 0.75
    assert torch.equal(cache.read_latent(KEY), latent.bfloat16())


@pytest.mark.parametrize("place", [3, 60, 300, 420, 600, -1, -100])
def test_a_flipped_bit_of_a_compressed_entry_is_refused(cache, place):
    cache.write_latent(KEY, LATENT, stored=Stored(compression="zstd"))
    path = cache.entry_path("latent", KEY)
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    assert not cache.is_sound("latent", KEY)


def test_a_compressed_entry_that_promises_another_size_is_refused_before_it_is_unpacked(cache):
    """A frame of 8 MB of zeros is a few hundred bytes; the header says what may come out of it."""
    zstandard = pytest.importorskip("zstandard")
    frame = zstandard.ZstdCompressor().compress(bytes(8 << 20))
    inner = json.dumps({"latent": {"dtype": "BF16", "shape": [16, 1, 2, 2], "data_offsets": [0, 128]}})
    data = save(
        {"zstd": torch.frombuffer(bytearray(frame), dtype=torch.uint8)},
        {"key": KEY, "sha256": "0" * 64, "tensors": inner},
    )
    path = cache.entry_path("latent", KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(CacheError, match="another size"):
        cache.read_latent(KEY)


def test_fp16_refuses_what_it_cannot_hold(cache):
    with pytest.raises(CacheError, match=r"clip\.mp4 gave NaN or infinity.*bf16, whose range is wider"):
        cache.write_latent(KEY, torch.full((16, 1, 2, 2), 1e6), "clip.mp4", Stored(dtype="fp16"))
    cache.write_latent(KEY, torch.full((16, 1, 2, 2), 1e6))


def test_a_text_is_always_bfloat16(cache):
    cache.write_tensors("text", KEY, {"text": torch.zeros(2, 4096)}, stored=Stored(dtype="fp16"))
    assert not cache.is_sound("text", KEY)


def test_without_the_package_a_compressed_entry_says_what_to_install(cache, monkeypatch):
    cache.write_latent(KEY, LATENT, stored=Stored(compression="zstd"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DependencyError, match='-m pip install "zstandard"'):
        cache.read_latent(KEY)
    with pytest.raises(DependencyError, match='-m pip install "zstandard"'):
        cache.is_sound("latent", KEY)  # not damaged: it must not be encoded again
