"""Entries that no disk holds: random tensors, drawn when they are read, whose keys say all there is to know of them.

For benchmarks and smoke tests. A key is a fixed mark, whether every batch draws anew, the conditioning, the four sizes
of the latent (or the two of a text), and a digest that seeds the draw. So a worker, a resume and another machine draw
the same numbers, and nothing but the list of keys is written.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from ...flow import seeded_generator
from ..conditioning import ConditionKind, condition_named, with_mask
from .cache_set import CacheItem, CacheSet

__all__ = [
    "SYNTHETIC",
    "draw_entry",
    "is_synthetic",
    "item_of_draw",
    "synthetic_key",
    "synthetic_mark",
    "synthetic_note",
]

SYNTHETIC = "synthetic"
"""stands where a set names the encoders of its entries"""

_MARK = b"syntheti".hex()
_ENDLESS = "1"
_KINDS = (
    *("none", "first", "first_vision", "first_last", "first_last_vision", "vace", "control", "camera"),
    *("inpaint", "inpaint_vision", "control_mask", "control_vision"),
)
"""by their digit in a key: new ones go to the end"""
_DIGEST_START = len(_MARK) + 2 + 16
_IMAGE_TOKENS, _IMAGE_WIDTH = 257, 1280
_CAMERA_CHANNELS, _CAMERA_STRIDE = 24, 8


def synthetic_key(
    kind: str, sizes: tuple[int, ...], *draw: int | str, conditioning: str = "none", endless: bool
) -> str:
    """Name of an entry ("latent", "text" or "condition") of these sizes; `draw` tells it from others of the same."""
    padded = (*sizes, 0, 0)[:4]
    head = f"{_MARK}{int(endless)}{_KINDS.index(conditioning):x}" + "".join(f"{size:04x}" for size in padded)
    return head + _digest(kind, *draw)


def is_synthetic(key: str) -> bool:
    """True for the keys made here; one in 2^64 others would be taken for one."""
    return key.startswith(_MARK)


def draw_entry(kind: str, key: str) -> dict[str, Tensor]:
    """The tensors an entry of that key holds, bfloat16: standard normal, as normalised latents are."""
    sizes = [int(key[place : place + 4], 16) for place in range(len(_MARK) + 2, _DIGEST_START, 4)]
    if kind == "latent":
        return {"latent": _normal(key, *sizes)}
    if kind == "text":
        return {"text": _normal(key, *sizes[:2])}
    return _draw_condition(key, condition_named(_KINDS[int(key[len(_MARK) + 1], 16)]), *sizes)


def item_of_draw(item: CacheItem, number: int) -> CacheItem:
    """What stands in the place of `item` in batch `number` of a run: itself, unless it is of an endless set."""
    if item.latent_key[len(_MARK) :][:1] != _ENDLESS or not is_synthetic(item.latent_key):
        return item
    return replace(
        item,
        latent_key=_of_draw(item.latent_key, number),
        text_key=_of_draw(item.text_key, number),
        condition_key=_of_draw(item.condition_key, number) if item.condition_key else "",
    )


def synthetic_note(cache_set: CacheSet) -> str:
    """What has to be said wherever such a set is used; "" for sets of real entries."""
    if cache_set.vae_identity != SYNTHETIC:
        return ""
    return "These are random tensors, not data: a LoRA trained on them has learned nothing. For benchmarks and tests."


def synthetic_mark(cache_set: CacheSet) -> dict[str, str]:
    """What the metadata of a LoRA file says of its data."""
    note = synthetic_note(cache_set)
    return {"wan_trainer.data": SYNTHETIC, "modelspec.description": note} if note else {}


def _draw_condition(
    key: str, kind: ConditionKind, channels: int, frames: int, height: int, width: int
) -> dict[str, Tensor]:
    drawn: dict[str, Tensor] = {}
    for name in kind.tensors:
        if name == "channels" and kind.frames and "control" not in kind.files:
            latent = _normal(f"{key} channels", channels - 4, frames, height, width)
            drawn[name] = with_mask(latent, 4 * frames - 3, kind.frames)
        elif name == "image_tokens":
            drawn[name] = _normal(f"{key} tokens", len(kind.frames) * _IMAGE_TOKENS, _IMAGE_WIDTH)
        elif name == "camera":
            rays = (_CAMERA_STRIDE * height, _CAMERA_STRIDE * width)
            drawn[name] = _normal(f"{key} camera", _CAMERA_CHANNELS, frames, *rays)
        else:
            drawn[name] = _normal(f"{key} {name}", channels, frames, height, width)
    return drawn


def _normal(name: str, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=seeded_generator(SYNTHETIC, name)).to(torch.bfloat16)


def _of_draw(key: str, number: int) -> str:
    return key[:_DIGEST_START] + _digest(key, number)


def _digest(*parts: int | str) -> str:
    text = "\x1f".join(str(part) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[: 64 - _DIGEST_START]
