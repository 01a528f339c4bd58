"""Several devices work at one step together.

Inside one process, so on Windows too: the order of their work on several micro-batches, and who hands what to whom; or
the tokens of one clip. Over processes: base weights shared out over ranks (FSDP2).
"""

from __future__ import annotations

from .sharded import ShardedBlocks, Sharding
from .tokens import SplitTokens

__all__ = ["ShardedBlocks", "Sharding", "SplitTokens"]
