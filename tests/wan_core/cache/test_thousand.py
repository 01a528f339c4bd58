"""Sixty clips with captions, a thousand on demand: exactly what changed is encoded again, and nothing else.

The clips are files of a few bytes behind a reader that makes pixels of them, so that only the bookkeeping is real: the
scan, the keys, the cache on disk. What real clips give is in test_encode.py.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests.support.encoding_rank import BytesAsVideo
from wan_core.cache import Encoders, LatentCache, encode_missing, plan_encoding
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.model.latents import WAN21_LATENTS


class CountingEncoders:
    """A VAE and a text encoder that count."""

    def __init__(self, vae: str) -> None:
        self.identity, self.space = vae, WAN21_LATENTS
        self.latents = 0
        self.texts: list[str] = []

    def encode(self, what):
        if isinstance(what, str):
            self.texts.append(what)
            return torch.full((1, 4096), float(len(what)))
        self.latents += 1
        return what.mean().expand(16, 1, 2, 2)


class Text:
    identity = "text"

    def __init__(self, encoders: CountingEncoders) -> None:
        self.encode = encoders.encode


def folder_of(tmp_path, count):
    """Files of 16 bytes, no two alike, each with a caption of its own."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:04}.png").write_bytes(f"{number:016}".encode())
        (folder / f"{number:04}.txt").write_text(f"caption {number}")
    return folder


def queue(folder, vae="one"):
    """One queue of the data side; returns (latents encoded, captions encoded) as the encoders counted them."""
    encoders, cache, video = CountingEncoders(vae), LatentCache(folder.parent / "cache"), BytesAsVideo()
    dataset = Dataset((scan_folder(DatasetConfig(width=16, height=16, num_frames=1), folder, ScanContext(video)),))
    plan = plan_encoding(dataset, cache, vae_identity=vae, text_identity="text", space=WAN21_LATENTS)
    report = encode_missing(plan, cache, Encoders(codec=encoders, text_encoder=Text(encoders), video=video))
    assert (report.latents_encoded, report.texts_encoded) == (encoders.latents, len(encoders.texts))
    assert report.latents_encoded + report.latents_reused == len(list(folder.glob("*.png")))
    return report.fingerprint, encoders.latents, encoders.texts


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_of_hundreds_exactly_what_changed_is_encoded_again(tmp_path, count):
    folder = folder_of(tmp_path, count)
    first, latents, texts = queue(folder)
    assert (latents, len(texts)) == (count, count + 2)  # and the empty and the default negative prompt
    assert queue(folder) == (first, 0, [])

    (folder / "0050.txt").write_text("another caption")
    edited, latents, texts = queue(folder)
    assert (latents, texts) == (0, ["another caption"])

    (folder / "0050.txt").write_text("caption 50")  # back: it costs nothing
    clip, before = folder / "0041.png", os.stat(folder / "0041.png")
    original = clip.read_bytes()
    clip.write_bytes(original[::-1])
    if os.name == "posix":  # there the time of the last change gives it away even so
        os.utime(clip, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert clip.stat().st_size == before.st_size
    replaced, latents, texts = queue(folder)
    assert (latents, texts) == (1, [])
    clip.write_bytes(original)
    assert queue(folder) == (first, 0, [])
    assert len({first, edited, replaced}) == 3

    for number in reversed(range(count)):  # every name changes, and the order with it
        for suffix in ("png", "txt"):
            (folder / f"{number:04}.{suffix}").rename(folder / f"take {count - number}.{suffix}")
    assert queue(folder) == (first, 0, [])

    other, latents, texts = queue(folder, vae="two")
    assert (latents, texts) == (count, [])
    assert other != first
