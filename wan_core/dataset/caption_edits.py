"""Captions written by a person who looks at a scan: one clip's, or a text in all of them, and back as they were.

Only files that the scan named can be read or written here, by their number: no path comes from outside.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import DatasetError
from ..files import FileError, atomic_write_bytes, is_held, open_inside, remove_file
from ..video import shown
from .allowed import OUTSIDE
from .caption_files import CAPTION_SUFFIXES, with_caption
from .caption_names import CaptionNames
from .captions import LINK_OUTSIDE, bytes_in, caption_in, one_line
from .sample import Dataset, one_per_file

_UNDO_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ScannedFile:
    """A media file of a scan, and where its caption stands."""

    path: Path
    name: str
    caption_file: Path
    """beside it, whether it exists or not"""
    listed_in: str = ""
    """the list that says its caption; empty: its caption file does"""
    said: str = ""
    """the caption that a list says"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file and its caption as it stands on the disk now."""

    clip: int
    name: str
    ending: str
    """of the media file, in lower case: ".mp4" """
    caption: str
    refusal: str = ""
    """why the caption cannot be written here; empty: it can"""
    unreadable: str = ""
    """why what stands in its caption file is no caption, so that writing one writes over it"""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The captions that hold a text."""

    count: int
    first: tuple[Found, ...]
    can_change: int = 0
    """how many of them can be written here"""
    places: int = 0
    """how often the text stands in those"""


@dataclass(frozen=True, kw_only=True)
class Written:
    """One change of captions."""

    change: int
    """its number, to undo it; 0 where nothing was changed"""
    clips: int
    """clips whose caption it changed"""
    refused: tuple[str, ...] = ()
    """sentences about files that stayed as they were"""


def scanned_files(dataset: Dataset) -> list[ScannedFile]:
    """Returns the files of a dataset in order, each once; a clip's number is its place in this list.

    Behind them stand those that were left out for want of a caption.
    """
    found: dict[Path, ScannedFile] = {}
    names = [CaptionNames(part.config.caption_extension) for part in dataset.parts]
    for part, captions in zip(dataset.parts, names, strict=True):
        for sample in one_per_file(part.samples):
            file = ScannedFile(
                path=sample.path,
                name=sample.name,
                caption_file=captions.file_of(sample.path),
                listed_in=part.config.folder if sample.listed else "",
                said=sample.caption if sample.listed else "",
            )
            found.setdefault(sample.path, file)
    for part, captions in zip(dataset.parts, names, strict=True):
        for item in part.rejected:
            if (path := item.wants_caption) is not None:
                found.setdefault(path, ScannedFile(path=path, name=item.name, caption_file=captions.file_of(path)))
    return list(found.values())


class CaptionEdits:
    """The files of one scan: what their captions say now, changing them, and their media. Safe to use from threads."""

    def __init__(
        self, files: Sequence[ScannedFile], allowed: Callable[[], Sequence[Path]], unpacked: Sequence[Path] = ()
    ) -> None:
        """`allowed`: folders a dataset may lie in, asked each time; clips are read below `unpacked` too."""
        self._files = tuple(files)
        self._allowed, self._unpacked = allowed, tuple(unpacked)
        self._changes: dict[int, _Change] = {}
        self._numbers = itertools.count(1)
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def find(self, text: str, most: int) -> Search:
        """Looks for a text in every caption, its case counted; the empty one is in all. Names the first ones."""
        places = self._places()
        looked = (self._look(number, places) for number in range(len(self._files)))
        found = [one for one in looked if text in one.caption]
        able = [one.caption.count(text) for one in found if text and not one.refusal]
        return Search(count=len(found), first=tuple(found[:most]), can_change=len(able), places=sum(able))

    def caption(self, clip: int) -> Found:
        """Returns a clip with its caption as it stands now."""
        return self._look(self._number(clip), self._places())

    def write(self, clip: int, before: str, caption: str) -> Written:
        """Write a clip's caption, which was `before` when the writer saw it; DatasetError where it is another now."""
        file = self._files[self._number(clip)]
        with self._turn:
            places = self._places()
            data = _bytes_to_change(file, places)
            if _read(file, data)[0] != one_line(before):
                raise DatasetError(
                    f"{shown(file.caption_file)} was changed by somebody else meanwhile. Look at it again, then write."
                )
            if one_line(caption) == one_line(before):
                return Written(change=0, clips=0)
            made = with_caption(file.caption_file, data, caption)
            _put(file.caption_file, made, places)
            return Written(change=self._keep({file.caption_file: (data, made)}), clips=1)

    def replace(self, text: str, by: str, counted: tuple[int, int]) -> Written:
        """Write `by` for `text` in every caption that can be written.

        `counted`: `can_change` and `places` of the search for it. DatasetError where they have changed: then nothing is
        written.
        """
        with self._turn:
            search = self.find(text, len(self._files))
            if (search.can_change, search.places) != counted:
                raise DatasetError("The captions have changed since they were counted. Count them again, then replace.")
            done: dict[Path, tuple[bytes | None, bytes | None]] = {}
            refused: list[str] = []
            places, clips = self._places(), 0
            for one in (one for one in search.first if not one.refusal):
                file = self._files[one.clip]
                try:
                    if file.caption_file not in done:  # clip.mp4 and clip.png share clip.txt
                        data = _bytes_to_change(file, places)
                        made = with_caption(file.caption_file, data, one.caption.replace(text, by))
                        _put(file.caption_file, made, places)
                        done[file.caption_file] = (data, made)
                    clips += 1
                except DatasetError as error:
                    refused.append(str(error))
            return Written(change=self._keep(done) if done else 0, clips=clips, refused=tuple(refused))

    def undo(self, change: int) -> Written:
        """Put the files of a change back as they were, those that hold what it wrote. DatasetError: not known."""
        with self._turn:
            files = self._changes.get(change)
            if files is None:
                raise DatasetError("This change is no longer known. Write the captions again.")
            back: dict[Path, tuple[bytes | None, bytes | None]] = {}
            refused: list[str] = []
            places = self._places()
            for path, (before, after) in files.items():
                try:
                    if _now(path, places) != after:
                        raise DatasetError(
                            f"{shown(path)} was changed since, and stays as it is. Scan again to see it."
                        )
                    _put(path, before, places)
                    back[path] = (after, before)
                except DatasetError as error:
                    refused.append(str(error))
            left = {path: kept for path, kept in files.items() if path not in back}
            if left:
                self._changes[change] = left
            else:
                del self._changes[change]
            return Written(change=change if left else 0, clips=len(back), refused=tuple(refused))

    def open_media(self, clip: int) -> tuple[str, BinaryIO]:
        """Returns the ending of a clip's file and the file, open to be read. DatasetError where it may not be read."""
        path = self._files[self._number(clip)].path
        places = _Places((*self._allowed(), *self._unpacked))
        real = Path(os.path.realpath(path))
        within = places.around(real)
        if within is None:
            raise DatasetError(f"{shown(path)} {LINK_OUTSIDE if path.is_symlink() else OUTSIDE}.")
        try:
            return path.suffix.lower(), open_inside(real, within)
        except OSError as error:
            raise DatasetError(f"{shown(path)} cannot be opened: {error.strerror}. Scan again.") from error

    def _number(self, clip: int) -> int:
        if not 0 <= clip < len(self._files):
            raise DatasetError(f"Clip {clip} is none of the {len(self._files)} of this scan. Scan again.")
        return clip

    def _places(self) -> _Places:
        return _Places(self._allowed())

    def _look(self, number: int, places: _Places) -> Found:
        file = self._files[number]
        caption, refusal, unreadable = file.said, "", ""
        try:
            data = _bytes_to_change(file, places)
            caption, unreadable = _read(file, data)
        except DatasetError as error:
            refusal = str(error)
        ending = file.path.suffix.lower()
        return Found(
            clip=number, name=file.name, ending=ending, caption=caption, refusal=refusal, unreadable=unreadable
        )

    def _keep(self, files: _Change) -> int:
        """Remember a change to undo it; the oldest are forgotten where they are too many."""
        number = next(self._numbers)
        self._changes[number] = files
        while len(self._changes) > 1 and sum(map(_size, self._changes.values())) > _UNDO_BYTES:
            del self._changes[next(iter(self._changes))]
        return number


class _Places:
    """The folders in which captions may be written, asked once for each folder of one task."""

    def __init__(self, allowed: Sequence[Path]) -> None:
        self._allowed = tuple(Path(os.path.realpath(folder)) for folder in allowed)
        self._known: dict[Path, tuple[Path, Path] | None] = {}

    def of(self, path: Path) -> tuple[Path, Path]:
        """Returns the file without the links above it, and the allowed folder it lies in: from there on nobody follows
        one that is made later. DatasetError for a file that lies in none.
        """
        folder = path.parent
        if folder not in self._known:
            real = Path(os.path.realpath(folder))
            within = self.around(real)
            self._known[folder] = None if within is None else (real, within)
        known = self._known[folder]
        if known is None:
            raise DatasetError(f"{shown(path)} {OUTSIDE}.")
        return known[0] / path.name, known[1]

    def around(self, real: Path) -> Path | None:
        """Returns the folder that a path without links lies in; None where it lies in none."""
        return next((place for place in self._allowed if real == place or place in real.parents), None)


_Change = Mapping[Path, tuple[bytes | None, bytes | None]]
"""caption file -> its bytes before and after; None where there is none"""


def _bytes_to_change(file: ScannedFile, places: _Places) -> bytes | None:
    """Returns the bytes of a caption file that may be written, None where it is new."""
    if file.listed_in:
        raise DatasetError(
            f"The caption of {file.name} stands in {file.listed_in}. Edit it there, then run the node again."
        )
    if file.caption_file.suffix.lower() not in CAPTION_SUFFIXES:
        known = ", ".join(CAPTION_SUFFIXES)
        raise DatasetError(f"{shown(file.caption_file)} is not written here: captions have one of {known}.")
    return _now(file.caption_file, places)


def _now(path: Path, places: _Places) -> bytes | None:
    if path.is_symlink():
        raise DatasetError(f"{shown(path)} is a link. Edit the file it leads to.")
    real, within = places.of(path)
    try:
        with open_inside(real, within) as file:
            return bytes_in(path, file)
    except FileNotFoundError:
        return None
    except FileError as error:
        raise DatasetError(str(error)) from error
    except OSError as error:
        raise DatasetError(f"{shown(path)} cannot be read: {error.strerror}. Look at it again.") from error


def _read(file: ScannedFile, data: bytes | None) -> tuple[str, str]:
    """Returns the caption in the bytes of a caption file; "" and why, where they are none."""
    try:
        return caption_in(file.caption_file, data or b""), ""
    except DatasetError as error:
        return "", str(error)


def _size(files: _Change) -> int:
    return sum(len(data or b"") for both in files.values() for data in both)


def _put(path: Path, data: bytes | None, places: _Places) -> None:
    """The file `path` with these bytes, whole or as it was; None: no file."""
    real, within = places.of(path)
    try:
        if data is not None:
            atomic_write_bytes(real, data, within, make=False)
        elif not remove_file(real, within):
            raise DatasetError(
                f"{shown(path)} cannot be removed. Make its folder writable, or close it in the program that holds it."
            )
    except FileError as error:
        raise DatasetError(str(error)) from error
    except OSError as error:
        if is_held(error, real):
            raise DatasetError(
                f"{shown(path)} is held open by another program, such as an editor or one that syncs folders. Close it "
                "there, then write the caption again."
            ) from error
        raise DatasetError(
            f"{shown(path)} cannot be written: {error.strerror}. Make room, or make its folder writable."
        ) from error
