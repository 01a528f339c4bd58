"""The kinds of cache entries: where each lies, which tensors it may hold, and in which dtypes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from ...errors import CacheError, ConfigError
from ..conditioning import CONDITION_TENSORS

__all__ = ["COMPRESSIONS", "KEY", "KINDS", "STORED_DTYPES", "Kind", "Stored", "require_key"]

KEY = re.compile(r"^[0-9a-f]{64}$")
"""the name of an entry or of a set"""

STORED_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
COMPRESSIONS = ("none", "zstd")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of entry."""

    folder: str
    """below the cache folder; packs of this kind begin with it"""
    tensors: tuple[str, ...]
    """what an entry may hold"""
    dtypes: tuple[str, ...]
    """of STORED_DTYPES; all tensors of an entry have the same"""


KINDS = {
    "latent": Kind(folder="latents", tensors=("latent",), dtypes=("bf16", "fp16")),
    "text": Kind(folder="texts", tensors=("text",), dtypes=("bf16",)),
    "condition": Kind(folder="conditions", tensors=CONDITION_TENSORS, dtypes=("bf16", "fp16")),
    "mask": Kind(folder="masks", tensors=("mask",), dtypes=("bf16",)),
    "evaluation": Kind(folder="evaluations", tensors=("noise", "timesteps"), dtypes=("fp32",)),
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How an entry is written. Readers need not know: the entry itself says it."""

    dtype: str = "bf16"
    """of STORED_DTYPES"""
    compression: str = "none"
    """of COMPRESSIONS"""

    def __post_init__(self) -> None:
        if self.dtype not in STORED_DTYPES:
            raise ConfigError(f'Cache dtype "{self.dtype}" is unknown. Known: {", ".join(STORED_DTYPES)}.')
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f'Cache compression "{self.compression}" is unknown. Known: {", ".join(COMPRESSIONS)}.')


def require_key(key: str) -> None:
    """CacheError unless `key` is a SHA-256 in lower hex, so that no path can hide in it."""
    if not KEY.match(key):
        raise CacheError(
            f"{key[:100]!r} is not a cache key. Queue CacheLatents again; it re-encodes only what is missing."
        )
