"""Several devices train one step together.

In one process: split blocks with a pipeline schedule, and split tokens. Over processes: context parallel, and base
weights sharded over ranks (FSDP2).
"""

from __future__ import annotations

from .ranks import ClipRanks, RankTokens, check_clip, exchange_of, sent_bytes
from .sharded import ShardedBlocks, Sharding
from .tokens import SplitTokens
