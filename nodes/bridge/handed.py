"""Detects that files in a node's output were deleted or changed, so that the node runs again.

ComfyUI reuses an output while the node's fingerprint stays the same, and takes fingerprints before anything runs. The
state of the disk cannot be the fingerprint, because a deleted folder looks as before the first queue. The fingerprint
is therefore a count of losses, which only grows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from ...wan_core.cache import CacheSet, EncodingReport, removals_seen
from ...wan_core.files import file_mark
from . import folders
from .progress import current_prompt_id
from .types import CacheHandle

_FOLDERS = ("latents", "texts", "conditions", "masks", "evaluations", "sets", "pictures", "clips")


class Handed:
    """The files and folders of outputs by owner, with their marks when they were noted."""

    def __init__(self) -> None:
        self._marks: dict[str, dict[Path, list[int]]] = {}
        self._losses, self._lock = 0, threading.Lock()

    def note(self, owner: str, paths: Iterable[Path]) -> None:
        """Replace the paths of `owner`, with their current marks."""
        marks = {path: _mark(path) for path in paths}
        with self._lock:
            self._marks[owner] = marks

    def losses(self) -> int:
        """Returns the number of losses: files found deleted or changed."""
        with self._lock:
            lost = [owner for owner, marks in self._marks.items() if any(_mark(p) != m for p, m in marks.items())]
            for owner in lost:
                del self._marks[owner]
            self._losses += bool(lost)
            return self._losses


def _mark(path: Path) -> list[int]:
    """Returns the mark of a file, the inode of a folder, [] for a missing path."""
    try:  # A folder is marked by its inode alone, because its times change with every file in it.
        return [path.stat().st_ino] if path.is_dir() else file_mark(path)
    except OSError:
        return []


CACHE, RUNS = Handed(), Handed()
"""cache sets, clips and pictures of the cache folder; runs with their saved steps, LoRAs and clips"""


def cache_folders() -> list[Path]:
    return [part for part in (folders.cache().root / name for name in _FOLDERS) if part.is_dir()]


def hand_cache(report: EncodingReport, cache_set: CacheSet) -> CacheHandle:
    """Notes the files of a cache set, and returns its handle."""
    CACHE.note(report.fingerprint, [folders.cache().set_file(report.fingerprint), *cache_folders()])
    return CacheHandle(report.fingerprint, cache_set, report, current_prompt_id())


def cache_state() -> list[int]:
    """Returns a fingerprint for nodes that encode.

    It changes when a noted set or a cache folder is deleted, and when entries are evicted or found damaged.
    """
    return [CACHE.losses(), removals_seen(folders.cache())]
