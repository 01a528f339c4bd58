"""What encoders made, on disk, under names that say what made it; and the list of it that one job trains on."""

from __future__ import annotations

from .cache_set import CacheItem, CacheSet
from .keys import CODE_VERSION, condition_key, latent_key, tensor_key, text_key
from .latent_cache import TEXT_LENGTH, TEXT_WIDTH, LatentCache
from .pictures import picture_path, read_picture, write_picture
from .synthetic import SYNTHETIC, item_of_draw, synthetic_key, synthetic_mark, synthetic_note

__all__ = [
    "CODE_VERSION",
    "SYNTHETIC",
    "TEXT_LENGTH",
    "TEXT_WIDTH",
    "CacheItem",
    "CacheSet",
    "LatentCache",
    "condition_key",
    "item_of_draw",
    "latent_key",
    "picture_path",
    "read_picture",
    "synthetic_key",
    "synthetic_mark",
    "synthetic_note",
    "tensor_key",
    "text_key",
    "write_picture",
]
