"""nodes.engine"""

from __future__ import annotations

__all__ = []
