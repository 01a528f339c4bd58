"""The files of a dataset before they are opened: from a folder and its subfolders, or from a list.

Files of a subfolder `10_walk` have 10 repeats. Hidden folders are skipped. A folder that is reached twice, or through a
loop of links, is read once; a link out of the allowed folders is reported and not followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DatasetError
from ..files import file_mark, lies_under
from ..video import STILL_SUFFIXES, shown
from ..words import listed
from .captions import LINK_OUTSIDE

CLIP_SUFFIXES = frozenset({
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".wmv", ".flv",
    ".3gp",
})  # fmt: skip
OTHER_SUFFIXES = frozenset({
    ".ogv", ".vob", ".heic", ".heif",
    ".jxl", ".svg", ".m3u8", ".asf", ".f4v", ".mxf", ".y4m", ".jfif",
})  # fmt: skip
"""suffixes of media that cannot be read; such files are reported"""


COMPANION_FOLDERS = {"control": "control", "controls": "control", "mask": "mask", "masks": "mask"}
"""companion folder -> kind of companion"""


@dataclass(frozen=True, kw_only=True)
class MediaFile:
    """One media file of a dataset."""

    path: Path
    caption: str | None = None
    """the caption; None: in the caption file"""
    repeats: int = 1
    """how often an epoch has the file, to be multiplied by num_repeats"""
    weight: float = 1.0
    """factor of the dataset's weight"""
    control: Path | None = None
    """control video of VACE and Fun-Control models; None: found by name if needed"""
    mask: Path | None = None
    """mask video or picture; None: found by name if masks are used"""
    camera: Path | None = None
    """camera poses of Fun-Control-Camera models; None: found by name if needed"""
    context: tuple[tuple[str, Path], ...] = ()
    """(role, file) of the companions with ROLES, if the model reads them"""
    name: str = ""
    """name in messages; "" for the file name"""
    more_captions: tuple[str, ...] = ()
    """captions that take turns with `caption`, one per epoch"""

    @property
    def shown_name(self) -> str:
        """Short printable name for messages (S15)."""
        return "".join(c if c.isprintable() else "?" for c in self.name)[:120] or shown(self.path)


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file, or a row of a list, that is not trained on, with the reason."""

    name: str
    reason: str
    frames: int = 0
    """number of frames, if the clip is too short"""
    wants_caption: Path | None = None
    """the media file, if its only problem is a missing caption"""
    too_short: Path | None = None
    """the media file, if it, or its chosen piece, has too few frames"""
    is_piece: bool = False
    """whether a chosen piece is too short"""


class UnfitError(Exception):
    """A file that cannot be used; the message is the reason. `more`: other fields of its Rejected."""

    def __init__(self, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.more = more


def folder_files(folder: Path) -> list[MediaFile]:
    """Returns the media files directly in `folder`, by name; DatasetError if there are none."""
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DatasetError(
            "Dataset folder {name} {problem}. Choose a folder with clips.",
            name=f"{folder.name!r}",
            problem=problem,
        )
    names = media_names(folder)
    if not names:
        if below := _counted_below(folder):
            raise DatasetError(f"Dataset folder {folder.name!r} holds no clips or stills itself: {below}.")
        kinds = " ".join(sorted(suffix[1:] for suffix in CLIP_SUFFIXES | STILL_SUFFIXES))
        raise DatasetError(
            "Dataset folder {name} holds no clips or stills. Put files into it ({kinds}).",
            name=f"{folder.name!r}",
            kinds=kinds,
        )
    # The scan reports folders that are named like clips ("take.mp4").
    return [MediaFile(path=folder / name) for name in (*names, *media_names(folder, folders=True))]


def _counted_below(folder: Path) -> str:
    counts: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for name in _subfolders(folder)[:_MOST_SUBFOLDERS]:
            if not (folder / name).is_symlink() and (count := len(media_names(folder / name))):
                counts[shown(name)] = count
    if not counts:
        return ""
    where, which = ("folder", "that") if len(counts) == 1 else ("folders", "one of them")
    lie = "clip or still lies" if sum(counts.values()) == 1 else "clips or stills lie"
    setting = "set recursive in Wan Dataset Settings"
    return f"{sum(counts.values())} {lie} in its {where} {listed(counts)}: choose {which}, or {setting}"


def media_names(folder: Path, *, folders: bool = False) -> list[str]:
    """Returns the names of media files (or of `folders` that are named like clips) directly in `folder`, sorted,
    without hidden ones."""
    known = CLIP_SUFFIXES | STILL_SUFFIXES | (frozenset[str]() if folders else OTHER_SUFFIXES)
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in known
            and not entry.name.startswith(".")
            and os.path.isdir(entry.path) == folders
        )


_MOST_SUBFOLDERS = 1000

MAX_DEPTH = 32
"""nested subfolders"""

_REPEATS = re.compile(r"([1-9][0-9]{0,3})_\S")


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """A folder, or one dataset of a source file. Another trainer's settings may have several datasets."""

    name: str
    files: tuple[MediaFile, ...]
    rejected: tuple[Rejected, ...] = ()
    """rows and files that are unusable without opening a media file"""
    notes: Sequence[str] = ()
    """sentences for the report"""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """DatasetConfig fields set by the source"""
    caption_hint: str = ""
    """a clause that names files which may be unread captions"""

    watched: tuple[Path, ...] = ()
    """other files and folders that the dataset depends on"""


def repeats_of(name: str) -> int:
    """Returns 10 for a folder "10_walk", as in kohya's trainers; 1 for other names."""
    found = _REPEATS.match(name)
    return int(found.group(1)) if found else 1


def files_of_folder(
    folder: Path, *, recursive: bool = False, allowed: Sequence[Path] = (), named_repeats: bool = True
) -> SourcePart:
    """Returns the media files of `folder`, and with `recursive` of its subfolders; DatasetError if there are none.

    `named_repeats`: whether folder names set repeats.
    """
    if not recursive or not folder.is_dir():
        return SourcePart(name=folder.name, files=tuple(folder_files(folder)))
    files: list[MediaFile] = []
    rejected: list[Rejected] = []
    notes: list[str] = []
    for inside, place in _walk(folder, allowed):
        if isinstance(place, Rejected):
            rejected.append(place)
            continue
        names = media_names(place)
        repeats = repeats_of(place.name) if inside and named_repeats else 1
        paths = [place / name for name in names]
        files += [MediaFile(path=path, repeats=repeats, name=path.relative_to(folder).as_posix()) for path in paths]
        if names and repeats > 1:
            notes.append(f"{shown(place)}: {len(names)} files, each seen {repeats} times because of the folder's name")
    if not files:
        raise DatasetError(
            "Dataset folder {name} and its subfolders hold no clips or stills. Put files into them.",
            name=f"{folder.name!r}",
        )
    return SourcePart(name=folder.name, files=tuple(files), rejected=tuple(rejected), notes=tuple(notes))


def fingerprint_of_folder(folder: Path, *, allowed: Sequence[Path] = ()) -> str:
    """Returns a digest of the file names and marks in a folder and its subfolders; reads no file."""
    digest = hashlib.sha256()
    for inside, place in _walk(folder, allowed):
        if not isinstance(place, Rejected):
            digest.update(f"{inside}\0".encode("utf-8", "surrogatepass"))
            for entry in sorted(os.scandir(place), key=lambda e: e.name):
                if entry.is_file():
                    digest.update(repr((entry.path, file_mark(entry.path))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _walk(folder: Path, allowed: Sequence[Path]) -> Iterator[tuple[str, Path | Rejected]]:
    """Yields (relative path, folder) for `folder` (path "") and its subfolders by name, each real folder once."""
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
                yield label, Rejected(name=shown(path), reason=f"is more than {MAX_DEPTH} folders deep")
            elif real not in seen:
                seen.add(real)
                below.append((label, path, depth + 1))
        waiting += reversed(below)  # a stack, so the first subfolder is next


def _subfolders(place: Path) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and os.path.isdir(entry.path))
