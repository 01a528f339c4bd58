"""Extracts media files of a container (a tar, a table) into the cache, named by content.

The video child process opens files by path. Equal members share one file, and an unchanged container is not extracted
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

from ..errors import DatasetError
from ..files import (
    Memo,
    atomic_write,
    clean_partials,
    file_mark,
    fsync_folder,
    new_partial,
    own_folder,
    remove_file,
    replace_patiently,
)

_MOST = 1_000_000


class ExtractedFiles:
    """A folder of files `ab/abcdef....mp4` named by content, and a memo: container member -> file name."""

    def __init__(self, root: Path, containers: Iterable[Path]) -> None:
        """`root`: a folder in the cache. If one of the `containers` has changed, all members are extracted again."""
        self._root, self._cache = root, root.parent
        parts = [(str(path), file_mark(path)) for path in containers]
        name = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
        self._members = Memo(root / "members" / f"{name}.json", 1, _MOST, self._cache)

    def find(self, member: str) -> Path | None:
        """Returns the path of an extracted member, or None."""
        name = self._members.get(member)
        path = self._root / name[:2] / name if _is_name(name) else None
        return path if path is not None and path.is_file() else None

    def add(self, member: str, chunks: Iterable[bytes], suffix: str) -> Path:
        """Extract a member; `suffix` is a known media suffix."""
        assert suffix.startswith(".")
        folder = self._root / "incoming"
        clean_partials(folder, below=self._cache)
        # The file is staged, because the digest in its name is known only at the end.
        digest, staged = hashlib.sha256(), new_partial(folder / "member")
        try:
            with atomic_write(staged, self._cache) as file:
                for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)
            name = digest.hexdigest() + suffix
            target = self._root / name[:2] / name
            own_folder(self._cache, f"{self._root.name}/{name[:2]}")
            if not target.is_file():
                replace_patiently(staged, target, self._cache)
                fsync_folder(target.parent)
        except OSError as error:
            raise DatasetError(f"{member[:120]!r} cannot be unpacked ({error.strerror}). Free disk space.") from error
        finally:
            remove_file(staged, self._cache)
        self._members.put(member, name)
        return target

    def save(self) -> None:
        """Write the memo."""
        self._members.save()


def _is_name(value: object) -> TypeGuard[str]:
    """Returns whether `value` is a name as `add` creates them. This check keeps an edited memo from naming other
    files."""
    digest, _, suffix = value.partition(".") if isinstance(value, str) else ("", "", "")
    return len(digest) == 64 and digest.isalnum() and suffix.isalnum()


_AT_START = {
    b"\x89PNG\r\n\x1a\n": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"\x1aE\xdf\xa3": ".mkv",
    b"\0\0\1\xba": ".mpg",
    b"FLV\1": ".flv",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": ".wmv",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
}
_RIFF = {b"WEBP": ".webp", b"AVI ": ".avi"}


def suffix_of_bytes(head: bytes) -> str | None:
    """Returns the suffix of a format by the first 16 bytes of a file; None for an unknown format. WebM counts as
    ".mkv"."""
    if head[4:8] == b"ftyp":
        return ".avif" if head[8:12] in (b"avif", b"avis") else ".mp4"
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    return next((suffix for magic, suffix in _AT_START.items() if head.startswith(magic)), None)
