"""Tells others of a run: TensorBoard, a tracker, a webhook, a mirror. Only the server's own settings decide."""

from __future__ import annotations

from .settings import ServerSettings
from .telling import Telling, trackers_of

__all__ = ["ServerSettings", "Telling", "trackers_of"]
