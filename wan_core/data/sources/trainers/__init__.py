"""Dataset settings of other trainers, read into parts of ours with an account of what became of every key."""

from __future__ import annotations

from .context import Context
from .detect import SETTINGS_SUFFIXES, is_backend_list, read_settings

__all__ = ["SETTINGS_SUFFIXES", "Context", "is_backend_list", "read_settings"]
