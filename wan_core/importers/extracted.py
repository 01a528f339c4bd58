"""Media files that come inside other files (a tar, a table), laid down once under the name of their content.

The video child opens files by path, so members get one; where a member of a table has no name, its first bytes say
what it is. Two members with the same bytes are one file; a container that did not change is not read again.
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
    """A folder `ab/abcdef....mp4` and what each container put there."""

    def __init__(self, root: Path, containers: Iterable[Path]) -> None:
        """`root` is a folder of the cache. `containers` are the files whose members are laid down; an edit of one makes
        all of them anew.
        """
        self._root, self._cache = root, root.parent
        parts = [(str(path), file_mark(path)) for path in containers]
        name = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
        self._members = Memo(root / "members" / f"{name}.json", 1, _MOST, self._cache)

    def find(self, member: str) -> Path | None:
        """Returns the path of a member that was laid down before, or None."""
        name = self._members.get(member)
        path = self._root / name[:2] / name if _is_name(name) else None
        return path if path is not None and path.is_file() else None

    def add(self, member: str, chunks: Iterable[bytes], suffix: str) -> Path:
        """Lay down a member; `suffix` is one of the known media suffixes."""
        assert suffix.startswith(".")
        folder = self._root / "incoming"
        clean_partials(folder, below=self._cache)
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
            raise DatasetError(
                f"{member[:120]!r} cannot be unpacked ({error.strerror}). Make room on the disk."
            ) from error
        finally:
            remove_file(staged, self._cache)
        self._members.put(member, name)
        return target

    def save(self) -> None:
        """Keep what was laid down for the next time."""
        self._members.save()


def _is_name(value: object) -> TypeGuard[str]:
    """True for the name that `add` gives a member: whoever can write the memo cannot name another file by it."""
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
    """The suffix of a format that is read, or None. 16 bytes are enough; WebM counts as Matroska, which it is."""
    if head[4:8] == b"ftyp":
        return ".avif" if head[8:12] in (b"avif", b"avis") else ".mp4"
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12])
    return next((suffix for magic, suffix in _AT_START.items() if head.startswith(magic)), None)
