"""Trackers of a run: TensorBoard, hosted trackers, webhook, mirror. Only the server's settings enable them."""

from __future__ import annotations

from .settings import ServerSettings
from .tracked import with_trackers
