"""Encodes and caches made-up clips, to be killed at any moment.

The plan is a real one; only the decoder and the encoders are stand-ins, so that a clip takes milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import torch

from wan_core.cache import CacheItem, CacheSet, Encoders, LatentCache, encode_missing
from wan_core.cache.encoding_plan import ClipTask, EncodingPlan, TextTask
from wan_core.dataset.bucket import Bucket
from wan_core.model import WAN21_LATENTS

SIDE = 96


def shape_of(side: int = SIDE) -> tuple[int, int, int, int]:
    """Of the latent of a clip of 5 frames of that size."""
    return (16, 2, side // 8, side // 8)


def key(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}" + f"{number:048x}"


def latent(number: int, side: int = SIDE) -> torch.Tensor:
    """What the stand-in VAE makes of clip `number`."""
    return torch.randn(shape_of(side), generator=torch.Generator().manual_seed(number))


def unsound(cache: LatentCache, cache_set: CacheSet) -> list[str]:
    """Kinds of the entries of a set that cannot be read."""
    return [entry.kind for entry in cache_set.entries() if not cache.is_sound(entry.kind, entry.key, entry.shape)]


def set_of(clips: int, side: int = SIDE) -> CacheSet:
    items = tuple(
        CacheItem(
            latent_key=key(n),
            text_key=key(10_000 + n),
            num_frames=5,
            height=side,
            width=side,
            name=f"{n}",
            caption=f"{n}",
        )
        for n in range(clips)
    )
    return CacheSet(
        items=items, empty_text_key=key(20_000), negative_text_key=key(20_001), latent_space="wan2.1", fps=16.0,
        vae_identity="fake", text_identity="fake",
    )  # fmt: skip


class _Clip:
    """A sample whose pixels are its number."""

    def __init__(self, number: int) -> None:
        self.number, self.path, self.name, self.bucket = number, Path(str(number)), str(number), Bucket(5, SIDE, SIDE)


class Codec:
    identity, space = "fake", WAN21_LATENTS

    def __init__(self, side: int) -> None:
        self.seen: list[int] = []
        self._side = side

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        number = int(pixels[0, 0, 0, 0])
        self.seen.append(number)
        return latent(number, self._side)


class Text:
    identity = "fake"

    def encode(self, text: str) -> torch.Tensor:
        return torch.full((1, 4096), float(len(text)))


def cache_all(root: Path, clips: int, side: int = SIDE, **options: object) -> tuple[list[int], int]:
    """One queue: encode what is missing; which clips were encoded, and how many damaged entries there were."""
    import wan_core.cache.encode as module

    class Clips:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Clips:
            return self

        def __exit__(self, *_: object) -> None: ...

        def pixels(self, sample: _Clip) -> torch.Tensor:
            return torch.full((1, 2, 2, 3), float(sample.number))

    cache, cache_set, codec = LatentCache(root), set_of(clips, side), Codec(side)
    missing = [n for n in range(clips) if not cache.is_sound("latent", key(n), shape_of(side))]
    damaged = sum(cache.has("latent", key(n)) for n in missing)
    texts = {item.text_key: item.caption for item in cache_set.items} | {key(20_000): "", key(20_001): "no"}
    plan = EncodingPlan(
        tuple(ClipTask("latent", key(n), _Clip(n), shape_of(side)) for n in missing),  # type: ignore[arg-type]
        tuple(TextTask(name, text) for name, text in texts.items() if not cache.is_sound("text", name)),
        cache_set,
        {"latent": clips - len(missing)},
    )
    with patch.object(module, "ReadAhead", Clips):
        encode_missing(plan, cache, Encoders(codec=codec, text_encoder=Text(), video=None, **options))  # type: ignore[arg-type]
    return codec.seen, damaged
