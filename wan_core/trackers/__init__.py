"""Tells others of a run: TensorBoard, a tracker, a webhook, a mirror. Only the server's own settings decide."""

from __future__ import annotations

from .settings import ServerSettings
from .telling import told

__all__ = ["ServerSettings", "told"]
