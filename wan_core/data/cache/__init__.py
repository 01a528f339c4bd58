"""What encoders made, on disk, under names that say what made it; and the list of it that one job trains on."""

from __future__ import annotations

from .cache_set import CacheItem, CacheSet
from .keys import CODE_VERSION, condition_key, latent_key, mask_key, text_key
from .latent_cache import TEXT_LENGTH, TEXT_WIDTH, LatentCache
from .pictures import read_picture, write_picture
from .speed import EncodingSpeed

__all__ = [
    "CODE_VERSION",
    "TEXT_LENGTH",
    "TEXT_WIDTH",
    "CacheItem",
    "CacheSet",
    "EncodingSpeed",
    "LatentCache",
    "condition_key",
    "latent_key",
    "mask_key",
    "read_picture",
    "text_key",
    "write_picture",
]
