"""Synthetic sets: random tensors in a model's sizes, drawn when they are read, to measure training without clips.

A key describes its entry: a fixed mark, whether the set is endless, the conditioning, four sizes of the latent (two of
a text), and a digest that is the seed. So all workers and machines draw the same tensors, and only the keys are stored.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..config import Config, setting
from ..dataset import DatasetConfig
from ..dataset.conditioning import with_mask
from ..flow import seeded_generator
from ..model import CONDITION_KINDS, FACE_SIDE, TEXT_LENGTH, WAN21_LATENTS, WHISPER_WINDOW, ConditionKind, LatentSpace
from .cache_set import CacheItem, CacheSet
from .keys import TEXT_WIDTH

_SYNTHETIC = "synthetic"
"""identity of the encoders in synthetic sets"""

_MARK = b"syntheti".hex()
_ENDLESS = 1
"""bit 0 of the hex digit after the mark; the upper bits and the next digit are the index of the conditioning"""
_KINDS = tuple(CONDITION_KINDS)
"""conditionings by their number in a key"""
_DIGEST_START = len(_MARK) + 2 + 16
_IMAGE_TOKENS, _IMAGE_WIDTH = 257, 1280
_CAMERA_CHANNELS, _CAMERA_STRIDE, _IDENTITY_CHANNELS, _WHISPER_CHANNELS = 24, 8, 28, 1280
_SOUND_DEPTH, _SOUND_CHANNELS = 25, 1024


def synthetic_key(
    kind: str, sizes: tuple[int, ...], *draw: int | str, conditioning: str = "none", endless: bool
) -> str:
    """Returns the key of an entry of `kind` "latent", "text" or "condition". The seed of the entry is a digest of
    `draw`."""
    padded = (*sizes, 0, 0)[:4]
    number = _KINDS.index(conditioning)
    high, low = divmod(number, 16)
    head = f"{_MARK}{_ENDLESS * endless + 2 * high:x}{low:x}" + "".join(f"{size:04x}" for size in padded)
    return head + _digest(kind, *draw)


def is_synthetic(key: str) -> bool:
    """True for synthetic keys; a real key matches by chance once in 2^64."""
    return key.startswith(_MARK)


def draw_entry(kind: str, key: str) -> dict[str, Tensor]:
    """Returns the bfloat16 tensors of a key: standard normal, as normalised latents are."""
    sizes = [int(key[place : place + 4], 16) for place in range(len(_MARK) + 2, _DIGEST_START, 4)]
    if kind == "latent":
        return {"latent": _normal(key, *sizes)}
    if kind == "text":
        return {"text": _normal(key, *sizes[:2])}
    high, low = (int(digit, 16) for digit in key[len(_MARK) : len(_MARK) + 2])
    number = 16 * (high // 2) + low
    return _draw_condition(key, CONDITION_KINDS[_KINDS[number]], *sizes)


def item_of_draw(item: CacheItem, number: int) -> CacheItem:
    """Returns the item to train in batch `number`: `item` itself; in an endless set a newly drawn item."""
    if not is_synthetic(item.latent_key) or not int(item.latent_key[len(_MARK)], 16) & _ENDLESS:
        return item
    return replace(
        item,
        latent_key=_of_draw(item.latent_key, number),
        text_key=_of_draw(item.text_key, number),
        condition_key=_of_draw(item.condition_key, number) if item.condition_key else "",
    )


def synthetic_note(cache_set: CacheSet) -> str:
    """Returns the warning about synthetic data; "" for real sets."""
    if cache_set.vae_identity != _SYNTHETIC:
        return ""
    return "These are random tensors, not data: a LoRA trained on them learns nothing. For benchmarks and tests."


def synthetic_mark(cache_set: CacheSet) -> dict[str, str]:
    """Returns the LoRA file metadata about synthetic data."""
    note = synthetic_note(cache_set)
    return {"wan_trainer.data": _SYNTHETIC, "modelspec.description": note} if note else {}


def _draw_condition(
    key: str, kind: ConditionKind, channels: int, frames: int, height: int, width: int
) -> dict[str, Tensor]:
    drawn: dict[str, Tensor] = {}
    if kind.leading_frames:  # Animate: the reference image is the first latent frame
        drawn["pose"] = _normal(f"{key} pose", channels - kind.mask, frames, height, width)
        drawn["face"] = _normal(f"{key} face", 3, 4 * frames - 3, FACE_SIDE, FACE_SIDE).clamp(-1, 1)
        drawn["image_tokens"] = _normal(f"{key} tokens", _IMAGE_TOKENS, _IMAGE_WIDTH)
        latent = _normal(f"{key} channels", channels - kind.mask, frames + 1, height, width)
        mask = latent.new_zeros(kind.mask, *latent.shape[1:])
        mask[:, 0] = 1
        return drawn | {"channels": torch.cat([mask, latent])}
    one, small = (1, height, width), (frames, height // 2, width // 2)
    own = {
        "camera": (_CAMERA_CHANNELS, frames, _CAMERA_STRIDE * height, _CAMERA_STRIDE * width),
        "references": (WAN21_LATENTS.channels, *one),
        "pose_stream": (WAN21_LATENTS.channels, *small),
        "reference_masks": (_IDENTITY_CHANNELS, *one),
        "pose_masks": (_IDENTITY_CHANNELS, *small),
        "whisper": (frames, *WHISPER_WINDOW, _WHISPER_CHANNELS),
        "sound": (_SOUND_DEPTH, _SOUND_CHANNELS, 4 * frames),
        "pose_video": (WAN21_LATENTS.channels, frames, height, width),
    }
    for name in kind.tensors:
        if name == "channels" and kind.frames and kind.files in ((), ("mask",)):
            latent = _normal(f"{key} channels", channels - 4, frames, height, width)
            drawn[name] = with_mask(latent, 4 * frames - 3, kind.frames)
        elif name == "image_tokens":
            drawn[name] = _normal(f"{key} tokens", max(len(kind.frames), 1) * _IMAGE_TOKENS, _IMAGE_WIDTH)
        elif name == "replaces":
            drawn[name] = torch.zeros(1, dtype=torch.bfloat16)
        else:
            drawn[name] = _normal(f"{key} {name}", *own.get(name, (channels, frames, height, width)))
    return drawn


def _normal(name: str, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=seeded_generator(_SYNTHETIC, name)).to(torch.bfloat16)


def _of_draw(key: str, number: int) -> str:
    return key[:_DIGEST_START] + _digest(key, number)


def _digest(*parts: int | str) -> str:
    text = "\x1f".join(str(part) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[: 64 - _DIGEST_START]


_ENDLESS_ITEMS = 64
"""items of an endless set; each batch replaces them with newly drawn ones"""


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig(Config):
    """Number and size of synthetic clips."""

    count: int = setting(
        16,
        "Number of clips in an epoch. 0 = endless: no clip is repeated. Raise it for a longer benchmark.",
        within=(0, 50_000),
        refusal="{name} is {value}. Set it between 1 and {high}, or to 0 for endless.",
    )
    width: int = setting(
        832,
        "Width in pixels. TI2V-5B needs multiples of 32. Change it to the size that you want to measure.",
        offered=(16, 4096),
        step=16,
    )
    height: int = setting(
        480, "Training height in pixels. Lower it together with the width.", offered=(16, 4096), step=16
    )
    num_frames: int = setting(
        33,
        "Frames of each clip, 4n+1. 1 makes stills. Change it to the length that you want to measure.",
        offered=(1, 1001),
        step=4,
    )
    text_length: int = setting(
        64,
        "Tokens per caption; the model pads them to 512. Raise it to measure long captions.",
        within=(1, TEXT_LENGTH),
        refusal="{name} is {value}. Set it between {low} and {high}.",
    )
    seed: int = setting(
        0,
        "Seed of the random clips. It never changes by itself. Change it for other random clips.",
        offered=(0, 2**63 - 1),
    )


def synthetic_set(
    config: SyntheticConfig,
    *,
    space: LatentSpace,
    size_multiple: int,
    kind: ConditionKind,
    condition_channels: int = 0,
    fps: float = 16.0,
) -> CacheSet:
    """Returns a synthetic set for a model. Draws and writes nothing.

    `condition_channels`: channels of Conditioning.channels or Conditioning.vace, if the model reads either.
    """
    # DatasetConfig refuses invalid sizes, as for real clips.
    DatasetConfig(
        width=config.width, height=config.height, num_frames=config.num_frames, fps=fps, size_multiple=size_multiple
    )
    frames = space.latent_frames(config.num_frames)
    size = (frames, config.height // space.spatial_stride, config.width // space.spatial_stride)
    endless = config.count == 0

    def item(number: int) -> CacheItem:
        text = (config.text_length, TEXT_WIDTH)
        given = synthetic_key(
            *("condition", (condition_channels, *size), config.seed, number), conditioning=kind.name, endless=endless
        )
        return CacheItem(
            latent_key=synthetic_key("latent", (space.channels, *size), config.seed, number, endless=endless),
            text_key=synthetic_key("text", text, config.seed, number, endless=endless),
            condition_key=given if kind.tensors else "",
            num_frames=config.num_frames,
            height=config.height,
            width=config.width,
            name=f"synthetic {number}",
            context=(size,) if kind.in_context else (),
        )

    return CacheSet(
        items=tuple(item(number) for number in range(config.count or _ENDLESS_ITEMS)),
        empty_text_key=synthetic_key("text", (1, TEXT_WIDTH), config.seed, "empty", endless=False),
        negative_text_key=synthetic_key(
            "text", (config.text_length, TEXT_WIDTH), config.seed, "negative", endless=False
        ),
        latent_space=space.name,
        fps=fps,
        vae_identity=_SYNTHETIC,
        text_identity=_SYNTHETIC,
        conditioning=kind.name,
        vision_identity=_SYNTHETIC if kind.vision else "",
    )
