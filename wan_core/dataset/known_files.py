"""The memo of media files, and the context of a scan. With the memo, a scan opens only new and changed clips.

A value is valid while the file's mark (`file_mark`) is unchanged. Captions are not stored; each scan reads them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from ..errors import DatasetError, stop_if
from ..files import FileError, Memo, digest_file, file_mark, is_touched, mark_of
from ..packages import version_of
from ..video import ClipInfo, UnreadableError, VideoProcess, shown
from .sample import Companion, Sample

SCAN_VERSION = 2
"""Increase this when a change alters the results of probing: all files are then probed again."""
_MOST = 400_000
"""largest number of values: digest, probe result, scene cuts and perceptual hash of 100,000 files"""
_DIGEST = "digest"


class KnownFiles:
    """Digests, probes, scene cuts and near copies of media files, in a cache folder."""

    def __init__(self, cache_root: Path) -> None:
        made_by = [SCAN_VERSION, *map(version_of, ("av", "pillow")), *_FIELDS]
        self._memo = Memo(cache_root / "files.json", made_by, _MOST)

    def probe(self, path: Path, video: VideoProcess) -> ClipInfo:
        """Returns `VideoProcess.probe`, cached; a refusal is cached too."""

        def ask() -> list[Any]:
            try:
                return [*dataclasses.astuple(video.probe(path))]
            except UnreadableError as error:
                if not error.lasting:  # not cached: after a time limit, the next scan may succeed
                    raise
                return [str(error)]

        found = self.recall(path, "probe", ask)
        if len(found) != len(_FIELDS):
            raise UnreadableError(found[0])
        return ClipInfo(**dict(zip(_FIELDS, found, strict=True)))

    def recall(self, path: Path, what: str, ask: Callable[[], Any]) -> Any:
        """Returns `ask()` (JSON data derived from the bytes of the file), cached."""
        return self._memo.recall(path, what, ask)

    def digest(self, path: Path, should_stop: Callable[[], bool] | None = None) -> str:
        """Returns a file's SHA-256, cached. FileError if it is unreadable or changes meanwhile, or on a stop
        request."""

        def ask() -> str:
            mark = file_mark(path)
            found = digest_file(path, should_stop)
            if file_mark(path) != mark:
                raise FileError(f"{path.name} changed while it was read. Wait until it is written, then try again.")
            return found

        return self.recall(path, _DIGEST, ask)

    def _has_same_bytes(self, path: Path, mark: Sequence[int]) -> bool:
        """Returns whether the file has the digest recorded for `mark`; False without a record. Reads the file."""
        known = self._memo.recalled(path, _DIGEST)
        if known is None or (list(mark) != known[0] and not is_touched(mark, known[0])):
            return False
        return self.digest(path) == known[1]

    def require_unchanged(self, file: Sample | Companion) -> None:
        """Raises DatasetError if a file is missing or has changed since the scan. If only ctime differs, the digest
        decides."""
        name = shown(file.path)
        try:
            now = file_mark(file.path)
            same = now == list(file.mark) or (is_touched(file.mark, now) and self._has_same_bytes(file.path, file.mark))
        except OSError as error:
            raise DatasetError("{name} was deleted after it was scanned. Press Run again.", name=name) from error
        if not same:
            raise DatasetError("{name} changed since it was scanned. Press Run again.", name=name)

    def search(self, paths: Iterable[Path], how: str, find: Callable[[], Any]) -> Any:
        """Returns `find()` (JSON data), cached while these files, in this order, and `how` are unchanged."""
        digest = hashlib.sha256(how.encode())
        for path in paths:
            digest.update(repr((str(path), mark_of(path))).encode("utf-8", "surrogatepass"))
        key = f"search {digest.hexdigest()}"
        found = self._memo.get(key)
        if found is None:
            found = find()
            self._memo.put(key, found)
        return found

    def save(self) -> None:
        """Write the memo."""
        self._memo.save()


_FIELDS = [field.name for field in dataclasses.fields(ClipInfo)]


Progress = Callable[[int, int, str], None]
"""called with (done, total, name)"""


@dataclass(frozen=True)
class ScanContext:
    """The child process, memo and callbacks of a scan."""

    video: VideoProcess
    _: KW_ONLY
    allowed: Sequence[Path] = ()
    """folders into which links may lead, besides the folder of the link (rules S2, S16)"""
    progress: Progress | None = None
    should_stop: Callable[[], bool] | None = None
    known: KnownFiles | None = None
    """results of earlier scans; None: every file is opened"""

    def probe(self, path: Path) -> ClipInfo:
        """Returns the facts of a media file; DatasetError if it cannot be used."""
        return self.video.probe(path) if self.known is None else self.known.probe(path, self.video)

    def recall(self, path: Path, what: str, ask: Callable[[], Any]) -> Any:
        """Returns `ask()` (JSON data derived from the bytes of the file), cached."""
        return ask() if self.known is None else self.known.recall(path, what, ask)

    def stop_if_asked(self, doing: str) -> None:
        """Raises Stopped if a stop was requested; `doing` completes "Stopped while"."""
        stop_if(self.should_stop, doing)

    def tell(self, done: int, total: int, name: str) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(done, total, name)
