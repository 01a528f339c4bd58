"""Notices when files that a node handed on are taken away or changed, so that the node runs again.

ComfyUI hands on what a node gave as long as its fingerprint stays, and a fingerprint is taken before anything runs:
what lies on disk says nothing there, since a folder that was deleted looks as it did before the first queue. So a
fingerprint is a count that only grows: how often something that was handed on was found to be no longer as it was.
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
    """Files and folders by whom they belong to, and their marks when they were handed on."""

    def __init__(self) -> None:
        self._marks: dict[str, dict[Path, list[int]]] = {}
        self._losses, self._lock = 0, threading.Lock()

    def note(self, owner: str, paths: Iterable[Path]) -> None:
        """Remembers the paths of `owner` as they are now, in place of those before."""
        marks = {path: _mark(path) for path in paths}
        with self._lock:
            self._marks[owner] = marks

    def losses(self) -> int:
        """Returns how often something was found gone or changed; the same loss counts once."""
        with self._lock:
            lost = [owner for owner, marks in self._marks.items() if any(_mark(p) != m for p, m in marks.items())]
            for owner in lost:
                del self._marks[owner]
            self._losses += bool(lost)
            return self._losses


def _mark(path: Path) -> list[int]:
    """Returns the mark of a file; of a folder, whose files come and go, the inode alone; nothing of nothing."""
    try:
        return [path.stat().st_ino] if path.is_dir() else file_mark(path)
    except OSError:
        return []


CACHE, RUNS = Handed(), Handed()
"""sets, clips and pictures in the cache folder; runs with their saved steps, LoRAs and clips"""


def cache_folders() -> list[Path]:
    """Lists the folders that the cache has now."""
    return [part for part in (folders.cache().root / name for name in _FOLDERS) if part.is_dir()]


def hand_cache(report: EncodingReport, cache_set: CacheSet) -> CacheHandle:
    """Returns the handle of a set that this queue made or found, and remembers where it lies."""
    CACHE.note(report.fingerprint, [folders.cache().set_file(report.fingerprint), *cache_folders()])
    return CacheHandle(report.fingerprint, cache_set, report, current_prompt_id())


def cache_state() -> list[int]:
    """Returns a mark that changes when a set that was handed on, or a whole folder of the cache, is gone or changed,
    when entries are evicted, and when somebody could not read one: a node that made some then has to look again.
    """
    return [CACHE.losses(), removals_seen(folders.cache())]
