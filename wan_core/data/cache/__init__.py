"""What encoders made, on disk, under names that say what made it; and the list of it that one job trains on."""

from __future__ import annotations

from .cache_set import CacheItem, CacheSet
from .keys import CLIP_READER, CODE_VERSION, condition_key, latent_key, mask_key, tensor_key, text_key
from .kinds import Stored
from .latent_cache import TEXT_LENGTH, TEXT_WIDTH, LatentCache
from .packing import clean_leftovers, pack_entries
from .pictures import picture_path, read_picture, write_picture
from .speed import EncodingSpeed
from .synthetic import SYNTHETIC, item_of_draw, synthetic_key, synthetic_mark, synthetic_note
from .upkeep import CacheStats, CheckReport, TrimReport, check_entries, removals_seen, stats_of, trim

__all__ = [
    "CLIP_READER",
    "CODE_VERSION",
    "SYNTHETIC",
    "TEXT_LENGTH",
    "TEXT_WIDTH",
    "CacheItem",
    "CacheSet",
    "CacheStats",
    "CheckReport",
    "EncodingSpeed",
    "LatentCache",
    "Stored",
    "TrimReport",
    "check_entries",
    "clean_leftovers",
    "condition_key",
    "item_of_draw",
    "latent_key",
    "mask_key",
    "pack_entries",
    "picture_path",
    "read_picture",
    "removals_seen",
    "stats_of",
    "synthetic_key",
    "synthetic_mark",
    "synthetic_note",
    "tensor_key",
    "text_key",
    "trim",
    "write_picture",
]
