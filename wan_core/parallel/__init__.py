"""Several devices work at one step together.

Inside one process, so on Windows too: the order of their work on several micro-batches, and who hands what to whom; or
the tokens of one clip. Over processes: the tokens of one clip, and base weights shared out over ranks (FSDP2).
"""

from __future__ import annotations

from .ranks import ClipRanks, RankTokens, check_clip, exchange_of, sent_bytes
from .sharded import ShardedBlocks, Sharding
from .tokens import SplitTokens

__all__ = [
    "ClipRanks",
    "RankTokens",
    "ShardedBlocks",
    "Sharding",
    "SplitTokens",
    "check_clip",
    "exchange_of",
    "sent_bytes",
]
