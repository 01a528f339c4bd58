"""The surroundings of a scan: who reads media, where files may lie, whom it tells, and who may stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from ..errors import Stopped
from ..video import ClipInfo, VideoProcess
from .known_files import KnownFiles

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
    known: KnownFiles | None = None
    """what former scans learned of files; none: every file is opened"""

    def probe(self, path: Path) -> ClipInfo:
        """Returns what a media file holds; DatasetError names the file when it cannot be used."""
        return self.video.probe(path) if self.known is None else self.known.probe(path, self.video)

    def recall(self, path: Path, what: str, ask: Callable[[], Any]) -> Any:
        """Returns `ask()` (JSON data that follows from the bytes of the file), or what it was in a former scan."""
        return ask() if self.known is None else self.known.recall(path, what, ask)

    def stop_if_asked(self, doing: str) -> None:
        """Raises Stopped when somebody asked for it; `doing` is what is interrupted, such as "scanning clips"."""
        if self.should_stop is not None and self.should_stop():
            raise Stopped(f"Stopped while {doing}.")

    def tell(self, done: int, total: int, name: str) -> None:
        """Tells how far the scan is, where somebody listens."""
        if self.progress is not None:
            self.progress(done, total, name)
