"""The surroundings of a scan: who reads media, where files may lie, whom it tells, and who may stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from ..errors import Stopped
from ..video import VideoProcess

__all__ = ["Progress", "ScanContext"]

Progress = Callable[[int, int, str], None]
"""called with (done, total, name)"""


@dataclass(frozen=True)
class ScanContext:
    """Goes with a scan to every file; of a dataset only the links that are followed depend on it."""

    video: VideoProcess
    _: KW_ONLY
    allowed: Sequence[Path] = ()
    """files that are links must lead below their own folder or below one of these (rules S2, S16)"""
    progress: Progress | None = None
    should_stop: Callable[[], bool] | None = None

    def stop_if_asked(self, doing: str) -> None:
        """Raises Stopped when somebody asked for it; `doing` is what is interrupted, such as "scanning clips"."""
        if self.should_stop is not None and self.should_stop():
            raise Stopped(f"Stopped while {doing}.")

    def tell(self, done: int, total: int, name: str) -> None:
        """Tells how far the scan is, where somebody listens."""
        if self.progress is not None:
            self.progress(done, total, name)
