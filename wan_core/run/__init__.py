"""wan_core.run"""

from __future__ import annotations

__all__ = []
