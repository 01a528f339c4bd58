"""Stores latents and text features of a graph as a cache set, with keys by content."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..cache import TEXT_WIDTH, CacheItem, CacheSet, EncodingReport, LatentCache, report_of, tensor_key
from ..dataset.conditioning import condition_misfits, stream_sizes
from ..errors import DatasetError, stop_if
from ..model import LATENT_SPACES, TEXT_LENGTH, ConditionKind, LatentSpace

GIVEN = "tensors"
"""identity of the encoders in sets of a graph's tensors"""
_LARGEST_SIDE, _MOST_LATENT_FRAMES = 8192, 1001


@dataclass(frozen=True, kw_only=True)
class TensorClip:
    """One clip or still."""

    latent: Tensor
    """(C, F, h, w), normalised"""
    text: Tensor
    """(L, 4096) umT5 features without padding"""
    name: str
    caption: str = ""
    """the caption that `text` encodes, if known"""
    repeats: int = 1
    """how often an epoch has the clip"""
    turn: int = 0
    turns: int = 1
    """number of clips that take turns; this one is trained in epochs with epoch % turns == turn"""
    weight: float = 1.0
    """factor of how often the clip is trained"""
    condition: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Conditioning fields without batch axis; latents normalised"""


@dataclass(frozen=True)
class PromptKeys:
    """The cache keys of the empty and the negative prompt of a set."""

    empty: str
    negative: str


def store_clips(
    clips: Iterable[TensorClip],
    cache: LatentCache,
    *,
    prompts: PromptKeys,
    space: LatentSpace,
    kind: ConditionKind,
    fps: float,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[CacheSet, EncodingReport]:
    """Write missing entries clip by clip, then the set. Raises DatasetError, which names an invalid clip; entries of
    the clips before it stay."""
    start = time.monotonic()
    writer = _Writer(cache)
    items: list[CacheItem] = []
    for clip in clips:
        stop_if(should_stop, "storing latents")
        items.append(_store(clip, writer, space, kind))
    if not items:
        raise DatasetError("There are no latents. Connect at least one clip.")
    cache_set = CacheSet(
        items=tuple(items),
        empty_text_key=prompts.empty,
        negative_text_key=prompts.negative,
        latent_space=space.name,
        fps=fps,
        vae_identity=GIVEN,
        text_identity=GIVEN,
        conditioning=kind.name,
        vision_identity=GIVEN if kind.vision else "",
    )
    fingerprint, seconds = cache.write_set(cache_set), time.monotonic() - start
    return cache_set, report_of(cache_set, fingerprint, seconds, writer.written, writer.reused)


def store_text(cache: LatentCache, features: Tensor, name: str) -> str:
    """Write the features of a prompt if missing; returns their key."""
    return _Writer(cache).write("text", {"text": checked_text(features, name)}, name)


def space_of(channels: int, name: str) -> LatentSpace:
    """Returns the latent space with `channels` channels; raises DatasetError if there is none."""
    for space in LATENT_SPACES:
        if channels == space.channels:
            return space
    raise DatasetError(f"{name} has {channels} channels; Wan latents have 16, those of TI2V-5B 48. Use a Wan VAE.")


def _checked_latent(latent: Tensor, space: LatentSpace, name: str) -> Tensor:
    """Returns `latent` (C, F, h, w) if a model can read it; DatasetError otherwise."""
    shape = list(latent.shape)
    if len(shape) != 4 or 0 in shape:
        raise DatasetError(f"{name} has shape {shape}; a Wan clip is (channels, frames, height, width). Use a Wan VAE.")
    if shape[0] != space.channels:
        raise DatasetError(
            f"{name} has {shape[0]} channels, the model needs {space.channels} ({space.name}). Use the VAE that "
            "belongs to the model."
        )
    # The patch size of Wan transformers is 2.
    if shape[2] % 2 or shape[3] % 2:
        stride = 2 * space.spatial_stride
        raise DatasetError(
            f"{name} is {shape[3]}x{shape[2]} latents; both must be even. Make clips whose sides are multiples of "
            f"{stride} pixels."
        )
    width, height = shape[3] * space.spatial_stride, shape[2] * space.spatial_stride
    if max(width, height) > _LARGEST_SIDE or shape[1] > _MOST_LATENT_FRAMES:
        raise DatasetError(
            f"{name} is a clip of {width}x{height} pixels and {shape[1]} latent frames. Make clips of at most "
            f"{_LARGEST_SIDE} pixels a side and {_MOST_LATENT_FRAMES} latent frames."
        )
    if not bool(torch.isfinite(latent).all()):
        raise DatasetError(f"{name} holds NaN or infinity. Encode it again with the VAE in a wider dtype.")
    return latent


def checked_text(features: Tensor, name: str) -> Tensor:
    """Returns the features (L, 4096) without zero padding; DatasetError for features of another encoder."""
    plain = features[0] if features.ndim == 3 and len(features) == 1 else features
    if plain.ndim != 2 or plain.shape[1] != TEXT_WIDTH:
        raise DatasetError(
            f"The text of {name} has shape {list(features.shape)}; umT5 gives {TEXT_WIDTH} values per token. Encode it "
            "with Load CLIP, umt5_xxl, type wan."
        )
    if not bool(torch.isfinite(plain).all()):
        raise DatasetError(f"The text of {name} holds NaN or infinity. Encode it again.")
    real = plain.ne(0).any(1).nonzero()
    if not len(real):
        raise DatasetError(
            f"The text of {name} is all zeros; even the empty prompt has its end token. Use CLIPTextEncode with an "
            "empty text instead of ConditioningZeroOut."
        )
    length = int(real[-1]) + 1
    if length > TEXT_LENGTH:
        raise DatasetError(f"The text of {name} has {length} tokens; Wan reads {TEXT_LENGTH}. Shorten the caption.")
    return plain[:length]


class _Writer:
    def __init__(self, cache: LatentCache) -> None:
        self._cache = cache
        self.written = {"latent": 0, "text": 0, "condition": 0}
        self.reused = dict(self.written)

    def write(self, kind: str, tensors: Mapping[str, Tensor], name: str) -> str:
        """Write an entry (latent, text or condition) if missing; returns its key."""
        key, cache = _key(kind, tensors), self._cache
        if cache.has(kind, key) and cache.is_sound(kind, key):
            self.reused[kind] += 1
            return key
        self.written[kind] += 1
        if kind == "condition":
            cache.write_condition(key, tensors, name)
        else:
            (cache.write_latent if kind == "latent" else cache.write_text)(key, tensors[kind], name)
        return key


def _store(clip: TensorClip, writer: _Writer, space: LatentSpace, kind: ConditionKind) -> CacheItem:
    latent = _checked_latent(clip.latent, space, clip.name)
    if missing := [name for name in kind.tensors if name not in clip.condition]:
        raise DatasetError(
            f"{clip.name} lacks {' and '.join(missing)}, which a model of conditioning {kind.name} reads. Give them "
            "with it, or choose a text-to-video model."
        )
    given = {name: clip.condition[name] for name in (*kind.tensors, *kind.optional) if name in clip.condition}
    if misfits := condition_misfits(given, tuple(latent.shape)):
        raise DatasetError(f"The conditioning of {clip.name} does not fit it: {misfits}. Make both at one size.")
    _, frames, height, width = latent.shape
    return CacheItem(
        latent_key=writer.write("latent", {"latent": latent}, clip.name),
        text_key=writer.write("text", {"text": checked_text(clip.text, clip.name)}, clip.name),
        condition_key=writer.write("condition", given, clip.name) if given else "",
        num_frames=(frames - 1) * space.temporal_stride + 1,
        height=height * space.spatial_stride,
        width=width * space.spatial_stride,
        repeats=clip.repeats,
        turn=clip.turn,
        turns=clip.turns,
        weight=clip.weight,
        name=clip.name,
        caption=clip.caption,
        context=stream_sizes(given),
        references=given["references"].shape[1] if "references" in given else 0,
    )


def _key(kind: str, tensors: Mapping[str, Tensor]) -> str:
    """Returns a digest of names, shapes and bfloat16 values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        # The digest is of values in the cache's dtype, so that equal latents in float32 and bfloat16 share an entry.
        stored = tensors[name].detach().to("cpu", torch.bfloat16).contiguous()
        digest.update(f"{name} {tuple(stored.shape)} ".encode())
        digest.update(stored.view(torch.uint8).numpy().data)
    return tensor_key(kind, digest.hexdigest())
