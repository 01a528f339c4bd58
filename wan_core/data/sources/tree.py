"""A folder with its subfolders: which files, and how often those of `10_walk` are seen.

Hidden folders are left out. A folder that is reached twice, through a link or a loop of links, counts once; what leads
out of the allowed folders is named and not entered.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import DatasetError
from ...files import lies_under
from ...video import shown
from .captions import LINK_OUTSIDE
from .media_file import MediaFile, Rejected, folder_files, folder_fingerprint, media_names

__all__ = ["MAX_DEPTH", "FolderFiles", "files_of_folder", "fingerprint_of_folder", "repeats_of"]

MAX_DEPTH = 32
"""subfolders below each other"""

_REPEATS = re.compile(r"([1-9][0-9]{0,3})_\S")


@dataclass(frozen=True, kw_only=True)
class FolderFiles:
    """What a folder gives."""

    files: tuple[MediaFile, ...]
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()


def repeats_of(name: str) -> int:
    """10 for a folder called "10_walk", as in kohya's trainers; 1 for every other name."""
    found = _REPEATS.match(name)
    return int(found.group(1)) if found else 1


def files_of_folder(
    folder: Path, *, recursive: bool = False, allowed: Sequence[Path] = (), named_repeats: bool = True
) -> FolderFiles:
    """The media files of `folder` by path, with those of its subfolders if asked; DatasetError when there are none.

    `named_repeats` False takes the numbers in front of folder names for nothing but names.
    """
    if not recursive or not folder.is_dir():
        return FolderFiles(files=tuple(folder_files(folder)))
    files: list[MediaFile] = []
    rejected: list[Rejected] = []
    notes: list[str] = []
    for inside, place in _walk(folder, allowed):
        if isinstance(place, Rejected):
            rejected.append(place)
            continue
        names = media_names(place)
        repeats = repeats_of(place.name) if inside and named_repeats else 1
        files += [_named(folder, MediaFile(path=place / name, repeats=repeats)) for name in names]
        if names and repeats > 1:
            notes.append(f"{shown(place)}: {len(names)} files, each seen {repeats} times because of the folder's name")
    if not files:
        raise DatasetError(
            f"Dataset folder {folder.name!r} and its subfolders hold no clips or stills. Put files into them."
        )
    return FolderFiles(files=tuple(files), rejected=tuple(rejected), notes=tuple(notes))


def fingerprint_of_folder(folder: Path, *, recursive: bool = False, allowed: Sequence[Path] = ()) -> str:
    """Changes when a file of the folder (and its subfolders, if asked) is added, removed, edited or replaced."""
    if not recursive:
        return folder_fingerprint(folder)
    digest = hashlib.sha256()
    for inside, place in _walk(folder, allowed):
        if not isinstance(place, Rejected):
            digest.update(f"{inside}\0{folder_fingerprint(place)}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _named(folder: Path, file: MediaFile) -> MediaFile:
    return replace(file, name=file.path.relative_to(folder).as_posix())


def _walk(folder: Path, allowed: Sequence[Path]) -> Iterator[tuple[str, Path | Rejected]]:
    """("a/b", folder) of `folder` ("") and everything below it by name, each real folder once."""
    seen = {os.path.realpath(folder)}
    waiting: list[tuple[str, Path, int]] = [("", folder, 0)]
    while waiting:
        inside, place, depth = waiting.pop()
        try:
            names = _subfolders(place)
        except OSError as error:
            yield inside, Rejected(name=shown(place), reason=f"cannot be opened: {error.strerror}")
            continue
        yield inside, place
        below: list[tuple[str, Path, int]] = []
        for name in names:
            path, real = place / name, os.path.realpath(place / name)
            label = f"{inside}/{name}" if inside else name
            if not lies_under(real, (folder, *allowed)):
                yield label, Rejected(name=shown(path), reason=LINK_OUTSIDE)
            elif depth >= MAX_DEPTH:
                yield label, Rejected(name=shown(path), reason=f"lies more than {MAX_DEPTH} folders deep")
            elif real not in seen:
                seen.add(real)
                below.append((label, path, depth + 1))
        waiting += reversed(below)


def _subfolders(place: Path) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and os.path.isdir(entry.path))
