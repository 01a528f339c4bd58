"""Keys and kinds of cache entries. A key is a digest of all inputs of an entry.

A kind defines the folder, tensor names and dtypes of its entries.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..dataset import Companion, DatasetConfig, Sample
from ..dataset.conditioning import CONDITION_TENSORS
from ..errors import CacheError
from ..flow import EVALUATION_TIMESTEPS
from ..model import ConditionKind, LatentSpace

TEXT_WIDTH = 4096
"""feature width of umT5-XXL (text_dim in Wan's configs)"""


CODE_VERSION = 1
"""Increase this when a change of decoding, resizing or encoding alters results: all entries become cache misses."""

_CLIP_READER = 2
"""Increase this when only the reading of clips changes."""


def latent_key(*, content_digest: str, transform: dict[str, Any], encoder_identity: str) -> str:
    """Returns the key of a latent; `transform`: cut and size, as JSON data."""
    return _digest({"kind": "latent", "file": content_digest, "how": transform, "encoder": encoder_identity})


def text_key(text: str, encoder_identity: str) -> str:
    """Returns the key of a prompt's features."""
    return _digest({"kind": "text", "text": text, "encoder": encoder_identity})


def condition_key(
    *, content_digest: str, transform: dict[str, Any], encoder_identity: str, conditioning: str, vision_identity: str
) -> str:
    """Returns the key of a conditioning (ConditionKind.name); `vision_identity` is "" without CLIP vision."""
    made_by = {"encoder": encoder_identity, "vision": vision_identity}
    return _digest({"kind": "condition", "of": conditioning, "file": content_digest, "how": transform, **made_by})


def mask_key(*, content_digest: str, transform: dict[str, Any]) -> str:
    """Returns the key of loss weights, which do not depend on an encoder."""
    return _digest({"kind": "mask", "file": content_digest, "how": transform})


def tensor_key(kind: str, content_digest: str) -> str:
    """Returns the key of tensors that a graph provides, by the digest of their content."""
    return _digest({"kind": f"given {kind}", "tensors": content_digest})


def evaluation_key(latent_key: str) -> str:
    """Returns the key of a held-out clip's noise and timesteps."""
    parts = {"kind": "evaluation", "latent": latent_key, "timesteps": EVALUATION_TIMESTEPS, "version": 1}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest(parts: dict[str, Any]) -> str:
    text = json.dumps({"version": CODE_VERSION, **parts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SampleKeys:
    """Computes the keys of a dataset's samples."""

    digest_of: Callable[[Sample | Companion], str]
    """function: path -> SHA-256 of the file; raises DatasetError if the file changed since the scan"""
    kind: ConditionKind
    fps: float
    space: LatentSpace
    vae_identity: str
    text_identity: str
    vision_identity: str
    """identity of the CLIP vision encoder; "" if the model reads no CLIP tokens"""

    def of(self, sample: Sample, config: DatasetConfig) -> dict[str, Any]:
        """Returns CacheItem field -> key of a sample; "" if it has no such entry."""
        # Keys omit bf16, so that entries from before this setting are hits.
        dtype = {} if config.latent_dtype == "bf16" else {"dtype": config.latent_dtype}
        transform = {**transform_of(sample, self.fps), "space": self.space.name, **dtype}
        digest, given, mask = self.digest_of(sample), "", ""
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
        return {
            "latent_key": latent_key(content_digest=digest, transform=transform, encoder_identity=self.vae_identity),
            "condition_key": given,
            "mask_key": mask,
            "text_key": text_key(sample.caption, self.text_identity),
        }

    def _content_of(self, file: Companion) -> str:
        """Returns the digest of a companion; a suffix marks stills of more than 8 bits, whose reading has changed."""
        return self.digest_of(file) + (" in 8 of its bits" if file.deep_still else "")

    def _files_given(self, sample: Sample) -> dict[str, str]:
        """Returns kind -> digest of the companions that the conditioning reads."""
        companions = {"control": sample.control, "mask": sample.mask, "camera": sample.camera}
        of_roles = {file.role: f"{self._content_of(file)} {file.of_sample(sample)}" for file in sample.context}
        return of_roles | {
            name: self._content_of(file)
            for name, file in companions.items()
            if file is not None and self.kind.reads(name)
        }


def transform_of(sample: Sample, fps: float) -> dict[str, Any]:
    """Returns the cut, size and frame rate that determine the encoder's input, as JSON data."""
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
    return {"kind": "clip", "reader": _CLIP_READER, **size, **time}


KEY = re.compile(r"^[0-9a-f]{64}$")
"""regular expression of the key of an entry, or fingerprint of a set"""
AGAIN = "Queue Cache Latents + Captions again; it re-encodes only what is missing."

STORED_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of entry."""

    folder: str
    tensors: tuple[str, ...]
    """allowed tensor names"""
    dtypes: tuple[str, ...]
    """allowed names of STORED_DTYPES; all tensors of an entry have the same"""


KINDS = {
    "latent": Kind(folder="latents", tensors=("latent",), dtypes=("bf16", "fp16")),
    "text": Kind(folder="texts", tensors=("text",), dtypes=("bf16",)),
    "condition": Kind(folder="conditions", tensors=CONDITION_TENSORS, dtypes=("bf16", "fp16")),
    "mask": Kind(folder="masks", tensors=("mask",), dtypes=("bf16",)),
    "evaluation": Kind(folder="evaluations", tensors=("noise", "timesteps"), dtypes=("fp32",)),
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The storage format of a new entry. Readers find the format in the entry itself."""

    dtype: str = "bf16"
    """of STORED_DTYPES"""
    compression: str = "none"


def entry_name(root: Path, kind: str, key: str) -> str:
    """Returns the file of an entry as text, because building 20,000 Path objects takes longer than stat of the files;
    CacheError if `key` is not one."""
    if not KEY.match(key):  # a key may come from a file or a request, and becomes part of a path
        raise CacheError(f"{key[:100]!r} is not a cache key. {AGAIN}")
    return os.path.join(root, KINDS[kind].folder, key[:2], f"{key}.safetensors")
