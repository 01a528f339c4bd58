"""Edits the captions of a scan, of one clip or by find and replace in all, and the choices about clips, with undo.

A request names a file by its number in the scan, never by a path.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..choices import PLAIN, Choice
from ..errors import DatasetError
from ..files import open_inside, open_regular
from ..video import shown
from .allowed import OUTSIDE
from .bucket import Bucket
from .caption_files import CAPTION_SUFFIXES, CaptionFolders, current_bytes, put_caption_file, put_choice, with_caption
from .caption_names import CaptionNames
from .captions import LINK_OUTSIDE, caption_in, one_line
from .contact_sheet import Thumbnails
from .sample import Dataset, one_per_clip

_UNDO_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ScannedFile:
    """A media file of a scan and the place of its caption."""

    path: Path
    name: str
    shot_s: float | None = None
    """start of the shot that the caption file is for, in seconds; None: for the complete file"""
    caption_file: Path
    """path of the caption file, which need not exist"""
    listed_in: str = ""
    """name of the list that contains the caption; "" for captions in caption files"""

    said: str = ""
    """the caption in the list"""
    bucket: Bucket | None = None
    """the size and length at which it is trained; None if it is not trained"""
    usable: bool = True
    """False for a clip that is too short"""
    duration_s: float = 0.0
    thumbnail: Path | None = None
    """file of the first frame as JPEG, which need not exist"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A media file and its caption on disk."""

    clip: int
    name: str
    ending: str
    """lower-case suffix of the media file, such as ".mp4", with the dot"""
    caption: str
    refusal: str = ""
    """why the caption cannot be written; empty if it can"""
    unreadable: str = ""
    """why the caption file cannot be read; writing replaces its content"""
    choice: Choice = PLAIN
    choice_refusal: str = ""
    """why the choice cannot be read"""
    bucket: Bucket | None = None
    duration_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Search:
    """The captions that contain a text."""

    count: int
    first: tuple[Found, ...]
    can_change: int = 0
    """number of found captions that can be written"""
    places: int = 0
    """occurrences of the text in writable captions"""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of one change."""

    change: int
    """number of the change, for `undo`; 0 if no file changed"""
    clips: int
    """number of clips with a changed caption or choice"""
    refused: tuple[str, ...] = ()
    """reasons, one sentence per file that was not written"""


def scanned_files(dataset: Dataset, thumbnails: Thumbnails | None = None) -> list[ScannedFile]:
    """Returns each file of a dataset, or each shot with a caption file of its own, once; the number of a file is its
    index. Files without captions come last."""
    found: dict[tuple[Path, float | None], ScannedFile] = {}
    names = [CaptionNames(part.config.caption_extension) for part in dataset.parts]
    for part, captions in zip(dataset.parts, names, strict=True):
        for sample in one_per_clip((*part.samples, *part.excluded, *part.skipped)):
            path, shot_s = key = sample.path, sample.captioned_shot_s
            file = ScannedFile(
                path=path,
                name=sample.clip_name,
                shot_s=shot_s,
                caption_file=captions.file_of(path) if shot_s is None else captions.of_shot(path, shot_s),
                listed_in=part.config.folder if sample.listed else "",
                said=sample.caption if sample.listed else "",
                bucket=sample.bucket,
                duration_s=sample.info.duration_s,
                thumbnail=thumbnails.place_of(sample) if thumbnails is not None else None,
            )
            found.setdefault(key, file)
    known = {path for path, _ in found}
    for part, captions in zip(dataset.parts, names, strict=True):
        for item in part.rejected:
            if (path := item.wants_caption or item.too_short) is not None and path not in known:
                caption_file, usable = captions.file_of(path), item.too_short is None
                file = ScannedFile(path=path, name=item.name, caption_file=caption_file, usable=usable)
                found.setdefault((path, None), file)
    return list(found.values())


class CaptionEdits:
    """Finds, writes and undoes captions of one scan, and opens its media files. Thread-safe."""

    def __init__(
        self,
        files: Sequence[ScannedFile],
        allowed: Callable[[], Sequence[Path]],
        unpacked: Sequence[Path] = (),
        groups: Mapping[str, frozenset[int]] | None = None,
    ) -> None:
        """`allowed` returns the allowed folders, and is called for each request; clips may also be below `unpacked`.

        `groups`: name of a group, such as "still", -> its clips.
        """
        self._files, self._groups = tuple(files), groups or {}
        self._allowed, self._unpacked = allowed, tuple(unpacked)
        self._changes: dict[int, _Change | _Chosen] = {}
        self._numbers = itertools.count(1)
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def find(self, text: str, most: int, group: str = "") -> Search:
        """Returns the captions that contain `text` (case-sensitive; "" matches all), with the first `most` of them.

        `group`: only clips of this group; also "excluded" and "captionless", as they are on disk now. Captions of
        excluded clips are not counted as changeable.
        """
        places = CaptionFolders(self._allowed())
        own = self._groups.get(group, range(len(self._files)))
        looked = (self._look(number, places) for number in sorted(own))
        found = [one for one in looked if text in one.caption and _is_in(group, one)]
        able = [one.caption.count(text) for one in found if text and _is_changeable(one)]
        return Search(count=len(found), first=tuple(found[:most]), can_change=len(able), places=sum(able))

    def caption(self, clip: int) -> Found:
        """Returns a clip with its current caption."""
        return self._look(self._number(clip), CaptionFolders(self._allowed()))

    def write(self, clip: int, before: str, caption: str) -> Written:
        """Write a clip's caption; DatasetError if the caption on disk is no longer `before`."""
        file = self._files[self._number(clip)]
        with self._turn:
            places = CaptionFolders(self._allowed())
            data = _bytes_of_caption(file, one_line(before), places)
            if one_line(caption) == one_line(before):
                return Written(change=0, clips=0)
            made = with_caption(file.caption_file, data, caption)
            put_caption_file(file.caption_file, made, places)
            return Written(change=self._keep({file.caption_file: (data, made)}), clips=1)

    def choose(self, clip: int, before: Choice, choice: Choice) -> Written:
        """Write the choice about a clip; DatasetError if the choice on disk is no longer `before`."""
        path = self._files[self._number(clip)].path
        with self._turn:
            if choice == before:
                return Written(change=0, clips=0)
            put_choice(path, before, choice, CaptionFolders(self._allowed()))
            return Written(change=self._keep(_Chosen(clip, before, choice)), clips=1)

    def replace(self, text: str, by: str, counted: tuple[int, int]) -> Written:
        """Replace `text` by `by` in every writable caption.

        `counted`: `can_change` and `places` of the search. DatasetError, and nothing is written, if they have changed.
        """
        with self._turn:
            search = self.find(text, len(self._files))
            if (search.can_change, search.places) != counted:
                raise DatasetError("The captions have changed since they were counted. Count them again, then replace.")
            able = (one for one in search.first if _is_changeable(one))
            return self._write_each((one.clip, one.caption, one.caption.replace(text, by)) for one in able)

    def path_of(self, clip: int) -> Path:
        """Returns the media file of a clip."""
        return self._files[self._number(clip)].path

    def shot_of(self, clip: int) -> tuple[Path, float | None]:
        """Returns the media file of a clip and the start of its shot in seconds; None for the complete file."""
        return self.path_of(clip), self._files[clip].shot_s

    def to_write(self) -> list[Found]:
        """Returns one clip of every caption file that can be written and read, or does not exist yet; no excluded clips
        and none that are too short."""
        places, found = CaptionFolders(self._allowed()), dict[Path, Found]()
        for number, file in enumerate(self._files):
            if file.usable and file.caption_file not in found:
                found[file.caption_file] = self._look(number, places)
        return [one for one in found.values() if _is_changeable(one) and not one.unreadable]

    def write_all(self, captions: Iterable[tuple[int, str, str]]) -> Written:
        """Write captions as one change: (clip, caption before, new caption). A file changed meanwhile is refused."""
        with self._turn:
            return self._write_each(captions)

    def _write_each(self, captions: Iterable[tuple[int, str, str]]) -> Written:
        done: dict[Path, tuple[bytes | None, bytes | None]] = {}
        refused: list[str] = []
        places, clips = CaptionFolders(self._allowed()), 0
        for clip, before, caption in captions:
            file = self._files[clip]
            try:
                if file.caption_file not in done:  # clip.mp4 and clip.png have the same caption file, clip.txt
                    data = _bytes_of_caption(file, before, places)
                    made = with_caption(file.caption_file, data, caption)
                    put_caption_file(file.caption_file, made, places)
                    done[file.caption_file] = (data, made)
                clips += 1
            except DatasetError as error:
                refused.append(str(error))
        return Written(change=self._keep(done) if done else 0, clips=clips, refused=tuple(refused))

    def undo(self, change: int) -> Written:
        """Restores the files of a change, except those edited since. Raises DatasetError for an unknown change."""
        with self._turn:
            files = self._changes.get(change)
            if files is None:
                raise DatasetError("This change is no longer known. Write the captions again.")
            if isinstance(files, _Chosen):
                path = self._files[files.clip].path
                put_choice(path, files.after, files.before, CaptionFolders(self._allowed()))
                del self._changes[change]
                return Written(change=0, clips=1)
            back: dict[Path, tuple[bytes | None, bytes | None]] = {}
            refused: list[str] = []
            places = CaptionFolders(self._allowed())
            for path, (before, after) in files.items():
                try:
                    if current_bytes(path, places) != after:
                        raise DatasetError(
                            f"{shown(path)} was changed since, so it is not restored. Scan again to see it."
                        )
                    put_caption_file(path, before, places)
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
        """Returns the suffix and the open file of a clip. DatasetError if it may not be read."""
        path = self._files[self._number(clip)].path
        places = CaptionFolders((*self._allowed(), *self._unpacked))
        # A clip may be a link into an allowed folder, but `open_inside` refuses links.
        real = Path(os.path.realpath(path))
        within = places.around(real)
        if within is None:
            raise DatasetError(f"{shown(path)} {LINK_OUTSIDE if path.is_symlink() else OUTSIDE}.")
        try:
            return path.suffix.lower(), open_inside(real, within)
        except OSError as error:
            raise DatasetError(f"{shown(path)} cannot be opened: {error.strerror}. Scan again.") from error

    def open_thumbnail(self, clip: int) -> BinaryIO:
        """Returns the open JPEG of a clip's first frame. DatasetError if there is none."""
        thumbnail = self._files[self._number(clip)].thumbnail
        if thumbnail is None or not thumbnail.is_file():
            raise DatasetError("This clip has no picture yet. Run the node again.")
        return open_regular(thumbnail)

    def _number(self, clip: int) -> int:
        if not 0 <= clip < len(self._files):
            raise DatasetError(f"Clip {clip} is none of the {len(self._files)} of this scan. Scan again.")
        return clip

    def _look(self, number: int, places: CaptionFolders) -> Found:
        file = self._files[number]
        caption, refusal, unreadable = file.said, "", ""
        try:
            data = _bytes_to_change(file, places)
            caption, unreadable = _read(file, data)
        except DatasetError as error:
            refusal = str(error)
        try:
            choice, choice_refusal = places.choice_of(file.path), ""
        except DatasetError as error:
            choice, choice_refusal = PLAIN, str(error)
        return Found(
            clip=number,
            name=file.name,
            ending=file.path.suffix.lower(),
            caption=caption,
            refusal=refusal,
            unreadable=unreadable,
            choice=choice,
            choice_refusal=choice_refusal,
            bucket=file.bucket,
            duration_s=file.duration_s,
        )

    def _keep(self, files: _Change | _Chosen) -> int:
        """Stores a change for undo, and drops the oldest changes beyond _UNDO_BYTES."""
        number = next(self._numbers)
        self._changes[number] = files
        # The newest change is stored even if it is larger.
        while len(self._changes) > 1 and sum(map(_size, self._changes.values())) > _UNDO_BYTES:
            del self._changes[next(iter(self._changes))]
        return number


_Change = Mapping[Path, tuple[bytes | None, bytes | None]]
"""caption file -> (bytes before, bytes after); None if there is no file"""


@dataclass(frozen=True)
class _Chosen:
    clip: int
    before: Choice
    after: Choice


def _is_in(group: str, one: Found) -> bool:
    """Returns whether a clip is in a group that depends on files of now."""
    return one.choice.excluded if group == "excluded" else not one.caption if group == "captionless" else True


def _is_changeable(one: Found) -> bool:
    return not one.refusal and not one.choice.excluded


def _bytes_of_caption(file: ScannedFile, caption: str, places: CaptionFolders) -> bytes | None:
    """Returns the bytes of a writable caption file; DatasetError if its caption is no longer `caption`."""
    data = _bytes_to_change(file, places)
    if _read(file, data)[0] != caption:
        raise DatasetError(
            f"{shown(file.caption_file)} was changed by another program meanwhile. Open it again, then save."
        )
    return data


def _bytes_to_change(file: ScannedFile, places: CaptionFolders) -> bytes | None:
    """Returns the bytes of a writable caption file; None if it does not exist."""
    if file.listed_in:
        raise DatasetError(
            f"The caption of {file.name} is in {file.listed_in}. Edit it there, then run the node again."
        )
    if file.caption_file.suffix.lower() not in CAPTION_SUFFIXES:
        known = ", ".join(CAPTION_SUFFIXES)
        raise DatasetError(f"{shown(file.caption_file)} cannot be written: caption files end in one of {known}.")
    return current_bytes(file.caption_file, places)


def _read(file: ScannedFile, data: bytes | None) -> tuple[str, str]:
    try:
        return caption_in(file.caption_file, data or b""), ""
    except DatasetError as error:
        return "", str(error)


def _size(files: _Change | _Chosen) -> int:
    return 0 if isinstance(files, _Chosen) else sum(len(data or b"") for both in files.values() for data in both)
