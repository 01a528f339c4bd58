"""The latent cache: encodes samples into entries, checks and evicts entries, and reads batches in training order.

An entry's name is a digest of all its inputs, so an edited caption is a cache miss.
"""

from __future__ import annotations

from .batch_reader import BatchReader
from .batches import Batch, Batches, Weights, pad_text, stack_texts
from .cache_set import CacheItem, CacheSet, context_note
from .encode import Encoders, encode_missing
from .encoding_plan import EncodingPlan, plan_encoding, plan_prompts
from .encoding_report import EncodingReport, report_of
from .keys import TEXT_WIDTH, condition_key, latent_key, tensor_key, text_key
from .latent_cache import LatentCache
from .order import BUCKET_SAMPLINGS, Order
from .pictures import picture_path, read_picture, write_picture
from .shares import ENCODING, SHARE, ShareDone, encode_over_ranks, encode_share, finish_shares, part_of, shares_of
from .shows_nothing import nothing_shown_reason
from .slider import SliderConfig, slider_set
from .synthetic import SyntheticConfig, synthetic_mark, synthetic_note, synthetic_set
from .unpack import unpack
from .upkeep import check_entries, removals_seen, room_of, stats_of, trim, young_sets
