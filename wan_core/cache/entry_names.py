"""The names of a sample's entries: they cover its bytes, all that decides what an encoder sees, and which encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dataset import Companion, DatasetConfig, KnownFiles, Sample
from ..errors import DatasetError, Stopped
from ..files import FileError, file_mark, is_touched
from ..model import ConditionKind, LatentSpace
from ..video import shown
from .cache_set import CacheItem
from .keys import CLIP_READER, Stored, condition_key, latent_key, mask_key, text_key

_READER = {"reader": CLIP_READER}


@dataclass(frozen=True, kw_only=True)
class EntryNames:
    """Names the entries of the samples of one dataset; encoders are known by the names of their weights."""

    files: KnownFiles
    kind: ConditionKind
    fps: float
    """of the dataset"""
    space: LatentSpace
    vae_identity: str
    text_identity: str
    vision_identity: str
    """empty where the model reads no CLIP vision tokens"""
    should_stop: Callable[[], bool] | None = None

    def item_of(self, sample: Sample, config: DatasetConfig, digest: str) -> CacheItem:
        """Returns the item of `sample`, whose bytes have `digest`, with the names of all its entries."""
        transform = self._transform(sample, config)
        given = mask = ""
        if self.kind.tensors:
            given = condition_key(
                content_digest=digest,
                transform=transform | self._files_given(sample),
                encoder_identity=self.vae_identity,
                conditioning=self.kind.name,
                vision_identity=self.vision_identity,
            )
        if sample.mask is not None and config.masks_loss:
            mask = mask_key(content_digest=self._content_of(sample.mask), transform=transform)
        return CacheItem(
            latent_key=latent_key(content_digest=digest, transform=transform, encoder_identity=self.vae_identity),
            condition_key=given,
            mask_key=mask,
            text_key=text_key(sample.caption, self.text_identity),
            num_frames=sample.bucket.num_frames,
            height=sample.bucket.height,
            width=sample.bucket.width,
            repeats=sample.repeats,
            turn=sample.turn,
            turns=sample.turns,
            weight=sample.weight,
            name=sample.name,
            caption=sample.caption,
            prior=config.prior_preservation,
        )

    def digest_of(self, file: Sample | Companion) -> str:
        """Returns the SHA-256 of a file; DatasetError when it is not the one that was scanned."""
        try:
            require_unchanged(file, self.files.has_same_bytes)
            return self.files.digest(file.path, self.should_stop)
        except FileError as error:
            stop_if(self.should_stop)
            raise DatasetError(str(error)) from error

    def _content_of(self, file: Companion) -> str:
        """Returns what its pixels follow from: its digest, and where they were read otherwise once, a word more."""
        return self.digest_of(file) + (" in 8 of its bits" if file.deep_still else "")

    def _transform(self, sample: Sample, config: DatasetConfig) -> dict[str, Any]:
        # The dtype is part of a name only where it is not what it always was.
        dtype = {} if config.latent_dtype == "bf16" else {"dtype": config.latent_dtype}
        return {**transform_of(sample, self.fps), "space": self.space.name, **dtype}

    def _files_given(self, sample: Sample) -> dict[str, str]:
        """Returns the digests of the control and mask files that are part of what a sample is conditioned on."""
        companions = {"control": sample.control, "mask": sample.mask}
        return {
            name: self._content_of(file)
            for name, file in companions.items()
            if file is not None and self.kind.reads(name)
        }


def transform_of(sample: Sample, fps: float) -> dict[str, Any]:
    """Returns all that decides which pixels the encoder sees, as JSON data; stills have no frame rate."""
    bucket = sample.bucket
    framing = sample.cut.framing
    size: dict[str, Any] = {
        "width": bucket.width,
        "height": bucket.height,
        "fit": "native" if framing.native else "cover",
        **({"offset": list(framing.offset)} if framing.offset is not None else {}),
        **({"flip": True} if framing.flip else {}),
        **({"pixel_ratio": sample.info.pixel_ratio} if sample.info.pixel_ratio != 1.0 else {}),
        **({"bits": sample.info.bits} if sample.info.bits > 8 else {}),
    }
    if sample.kind == "still":
        return {"kind": "still", **size}
    time = {"num_frames": bucket.num_frames, "fps": sample.cut.fps or fps, "start_s": sample.cut.start_s}
    return {"kind": "clip", **_READER, **size, **time}


def stored_of(item: CacheItem, config: DatasetConfig) -> dict[str, Stored]:
    """Returns how the entries of an item are written, by name; nothing where that is as ever."""
    if (config.latent_dtype, config.cache_compression) == ("bf16", "none"):
        return {}
    latent = Stored(dtype=config.latent_dtype, compression=config.cache_compression)
    text = Stored(compression=config.cache_compression)
    return {item.latent_key: latent, item.condition_key: latent, item.text_key: text}


def require_unchanged(file: Sample | Companion, same_bytes: Callable[[Path, Sequence[int]], bool]) -> None:
    """Raises DatasetError when a file is gone, or is not the one that was scanned. `same_bytes` is asked of one whose
    rights or names changed: whether it holds what it did when it had that mark.
    """
    name = shown(file.path)
    try:
        now = file_mark(file.path)
        same = now == list(file.mark) or (is_touched(file.mark, now) and same_bytes(file.path, file.mark))
    except OSError as error:
        raise DatasetError("{name} is gone since it was scanned. Press Run again.", name=name) from error
    if not same:
        raise DatasetError("{name} changed since it was scanned. Press Run again.", name=name)


def stop_if(should_stop: Callable[[], bool] | None) -> None:
    """Raises Stopped when somebody asked for it."""
    if should_stop is not None and should_stop():
        raise Stopped("Stopped while caching.")
