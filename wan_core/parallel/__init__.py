"""Several cards work at one step together, inside one process: no torch.distributed, so on Windows too."""

from __future__ import annotations

from .tokens import SplitTokens

__all__ = ["SplitTokens"]
