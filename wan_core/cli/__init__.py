"""wan_core.cli"""

from __future__ import annotations

__all__ = []
