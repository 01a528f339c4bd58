"""Several cards work at one step together, inside one process: no torch.distributed, so on Windows too.

Either the order of their work on several micro-batches, and who hands what to whom; or the tokens of one clip.
"""

from __future__ import annotations

from .tokens import SplitTokens

__all__ = ["SplitTokens"]
