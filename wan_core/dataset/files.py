"""The files of a dataset, before any of them is opened: a folder's own, or those that a list names.

In a folder with its subfolders, those of `10_walk` are seen ten times as often. Hidden folders are left out. A folder
that is reached twice, through a link or a loop of links, counts once; what leads out of the allowed folders is named
and not entered.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
"""Media that is not read: named in the report instead of ignored."""


COMPANION_FOLDERS = {"control": "control", "controls": "control", "mask": "mask", "masks": "mask"}
"""folders beside clips whose files go with the clips of the same name, and as what"""


@dataclass(frozen=True, kw_only=True)
class MediaFile:
    """One file that a dataset names."""

    path: Path
    caption: str | None = None
    """None: it stands in the caption file beside the media file"""
    repeats: int = 1
    """how often it is seen in one epoch; multiplies num_repeats"""
    weight: float = 1.0
    """multiplies the weight of its dataset"""
    control: Path | None = None
    """control video of VACE and Fun-Control models; None: looked for beside the file where one is needed"""
    mask: Path | None = None
    """mask video or picture; None: looked for beside the file where masks are used"""
    name: str = ""
    """what messages call it; empty: the name of the file"""
    more_captions: tuple[str, ...] = ()
    """further captions that take turns with `caption`, one an epoch"""

    @property
    def shown_name(self) -> str:
        """The name for messages, short and without control characters (S15)."""
        return "".join(c if c.isprintable() else "?" for c in self.name)[:120] or shown(self.path)


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file, or a row of a list, that is not trained on, and why."""

    name: str
    reason: str
    frames: int = 0
    """frames it would give, where that is the reason"""
    wants_caption: Path | None = None
    """the media file, where a caption beside it would make it usable"""


def folder_fingerprint(folder: Path) -> str:
    """Changes when a file of the folder (or of its folders of control and mask videos) is added, removed, edited or
    replaced; reads no content.
    """
    digest = hashlib.sha256()
    beside = (folder / name for name in COMPANION_FOLDERS)
    for place in (folder, *(place for place in beside if place.is_dir())):
        for entry in sorted(os.scandir(place), key=lambda e: e.name):
            if entry.is_file():
                digest.update(repr((entry.path, file_mark(entry.path))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def folder_files(folder: Path) -> list[MediaFile]:
    """The media files directly in `folder`, sorted by name; DatasetError when there are none."""
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DatasetError(
            "Dataset folder {name} {problem}. Choose a folder that holds clips.",
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
    return [MediaFile(path=folder / name) for name in (*names, *_folders_like_media(folder))]


def _counted_below(folder: Path) -> str:
    """Returns a clause about the media files one folder down; "" where there are none."""
    counts: dict[str, int] = {}
    try:
        for name in itertools.islice(_subfolders(folder), _MOST_SUBFOLDERS):
            if not (folder / name).is_symlink() and (count := len(media_names(folder / name))):
                counts[shown(name)] = count
    except OSError:
        return ""
    if not counts:
        return ""
    where, which = ("folder", "that") if len(counts) == 1 else ("folders", "one of them")
    lie = "clip or still lies" if sum(counts.values()) == 1 else "clips or stills lie"
    setting = "set recursive in Wan Dataset Settings"
    return f"{sum(counts.values())} {lie} in its {where} {listed(counts)}: choose {which}, or {setting}"


def _folders_like_media(folder: Path) -> list[str]:
    """Folders called like clips, such as "take.mp4": named in the report, not passed over."""
    known = CLIP_SUFFIXES | STILL_SUFFIXES
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in known and not entry.name.startswith(".") and os.path.isdir(entry.path)
        )


def media_names(folder: Path) -> list[str]:
    """Names of the media files directly in `folder`, sorted; hidden ones are left out."""
    known = CLIP_SUFFIXES | STILL_SUFFIXES | OTHER_SUFFIXES
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in known
            and not entry.name.startswith(".")
            and not os.path.isdir(entry.path)
        )


_MOST_SUBFOLDERS = 1000

MAX_DEPTH = 32
"""subfolders below each other"""

_REPEATS = re.compile(r"([1-9][0-9]{0,3})_\S")


@dataclass(frozen=True, kw_only=True)
class FolderFiles:
    """The media files of a folder, and the places in it that cannot be entered."""

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
            "Dataset folder {name} and its subfolders hold no clips or stills. Put files into them.",
            name=f"{folder.name!r}",
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


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """One dataset of a source file: a list is one, settings of another trainer may be several."""

    name: str
    """what messages call it"""
    files: tuple[MediaFile, ...]
    rejected: tuple[Rejected, ...] = ()
    """rows and files that cannot be used, found before any media file was opened"""
    notes: Sequence[str] = ()
    """sentences for the report"""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of DatasetConfig that the source states"""
    caption_hint: str = ""
    """where captions may stand that are not read, as a clause"""
    watched: tuple[Path, ...] = ()
    """files and folders whose change is a change of the dataset, beside `files` themselves"""
