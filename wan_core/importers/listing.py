"""A list of files with captions: each row becomes a file, or is reported with the reason."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..dataset.allowed import PlaceError, Places
from ..dataset.captions import MAX_CAPTION_BYTES, one_line
from ..dataset.files import CLIP_SUFFIXES, OTHER_SUFFIXES, STILL_SUFFIXES, MediaFile, Rejected, SourcePart
from ..errors import DatasetError
from ..video import shown
from .cells import bytes_of, cells_of
from .extracted import ExtractedFiles, suffix_of_bytes
from .source import SourceFile

_MOST_CAPTIONS = 1000
"""largest number of captions of a file"""
_LIKE_CAPTIONS = re.compile("cap|text|prompt|desc|label|tag|sentence|instruct|title|annotation", re.IGNORECASE)
_MEDIA = CLIP_SUFFIXES | STILL_SUFFIXES | OTHER_SUFFIXES


def read_listing(source: SourceFile) -> SourcePart:
    """Returns the files of a jsonl, json, csv, tsv, parquet or arrow list; paths are relative to its folder."""
    return read_rows([source.path], source, folder=source.path.parent)


def read_rows(tables: Sequence[Path], source: SourceFile, *, folder: Path) -> SourcePart:
    """Reads several tables with equal columns as one list; paths are relative to `folder`."""
    name, listed = source.path.name, cells_of(tables, source)
    store = ExtractedFiles(source.unpacked, tables) if source.unpacked is not None else None
    reader = _RowReader(listed.roles, folder, source.allowed, store)
    files: list[MediaFile] = []
    rejected: list[Rejected] = []
    for place, cells in listed.rows:
        source.stop_if_asked()
        try:
            files.append(reader.file(place, cells))
        except PlaceError as error:
            rejected.append(Rejected(name=reader.label(place, cells), reason=str(error)))
    if store is not None:
        store.save()
    if not files and not rejected:
        raise DatasetError(f"{name} has no rows. Write one row for each file.")
    used = set(listed.roles.values())
    unused = [column for column in listed.columns if column not in used]
    notes = [f"{name}: columns not used: {', '.join(column[:40] for column in unused[:20])}"] if unused else []
    return SourcePart(
        name=name,
        files=tuple(files),
        rejected=tuple(rejected),
        notes=notes,
        caption_hint="" if "caption" in listed.roles else _caption_hint(name, unused),
        watched=(*tables, *reader.companions),
    )


def _caption_hint(name: str, unused: Sequence[str]) -> str:
    """Returns a clause that names columns which may contain captions; "" if there are none."""
    likely = [column for column in unused if _LIKE_CAPTIONS.search(column)][:1] or list(unused[:5])
    if not likely:
        return ""
    which = "column" if len(likely) == 1 else "one of the columns"
    columns = ", ".join(f'"{column[:40]}"' for column in likely)
    return f"Captions may be in {which} {columns} of {name}: name it in caption_column"


class _RowReader:
    """Converts rows to MediaFiles; PlaceError says why a row cannot be used."""

    def __init__(
        self, roles: Mapping[str, str], folder: Path, allowed: Sequence[Path], store: ExtractedFiles | None
    ) -> None:
        self._roles, self._store = roles, store
        self._places = Places(folder, allowed)
        self.companions: list[Path] = []
        """roles of control videos and masks"""

    def label(self, place: str, row: list[Any] | str) -> str:
        path = None if isinstance(row, str) else self._path_text(self._cells(row)["path"])
        return f"{place} ({shown(path)})" if path else place

    def file(self, place: str, row: list[Any] | str) -> MediaFile:
        if isinstance(row, str):
            raise PlaceError(row)
        cells = self._cells(row)
        if cells["path"] in (None, ""):
            raise PlaceError(f'has nothing in column "{self._roles["path"]}"')
        captions = _captions(cells.get("caption"))
        text = self._path_text(cells["path"])
        return MediaFile(
            path=self._media(place, "path", cells["path"]),
            name=text or place,
            caption=captions[0] if captions else None,
            more_captions=tuple(captions[1:]),
            repeats=_repeats(cells.get("repeats")),
            weight=_weight(cells.get("weight")),
            control=self._companion(place, "control", cells.get("control")),
            mask=self._companion(place, "mask", cells.get("mask")),
        )

    def _cells(self, row: list[Any]) -> dict[str, Any]:
        return dict(zip(self._roles, row, strict=True))

    def _companion(self, place: str, role: str, cell: Any) -> Path | None:
        if cell in (None, ""):
            return None
        path = self._media(place, role, cell)
        self.companions.append(path)
        return path

    def _media(self, place: str, role: str, cell: Any) -> Path:
        data = bytes_of(cell)
        if data is not None:
            return self._unpacked(place, role, data)
        text = self._path_text(cell)
        what = "" if role == "path" else f"{role} {shown(text)} " if text else f"{role} "
        if text is None:
            raise PlaceError(f'{what}has no path in column "{self._roles[role]}"')
        try:
            path, is_folder = self._places.existing(text)
        except PlaceError as error:
            raise PlaceError(what + str(error)) from error
        if is_folder:
            raise PlaceError(what + "is a folder; name a clip or a still")
        if path.suffix.lower() not in _MEDIA:
            raise PlaceError(f"{what}is no clip and no still by its suffix {path.suffix[:12]!r}")
        return path

    def _unpacked(self, place: str, role: str, data: bytes) -> Path:
        if self._store is None:
            raise PlaceError("contains a media file, which cannot be unpacked here")
        if found := self._store.find(f"{place}/{role}"):
            return found
        suffix = suffix_of_bytes(data[:16])
        if suffix is None:
            raise PlaceError("contains data that is no clip and no still of a known format")
        chunks = (data[start : start + (1 << 20)] for start in range(0, len(data), 1 << 20))
        return self._store.add(f"{place}/{role}", chunks, suffix)

    @staticmethod
    def _path_text(cell: Any) -> str | None:
        if isinstance(cell, dict):
            cell = cast("dict[str, Any]", cell).get("path")
        return cell if isinstance(cell, str) and cell else None


def _captions(cell: Any) -> list[str]:
    """Returns the captions of a cell, which take turns; () if the caption is in a caption file."""
    every = cast("list[Any]", cell) if isinstance(cell, list) else [cell]
    if cell is None or cell == [] or cell == "":
        return []
    if len(every) > _MOST_CAPTIONS:
        raise PlaceError(f"has {len(every)} captions; write at most {_MOST_CAPTIONS}")
    if not all(isinstance(text, str) for text in every):
        raise PlaceError("has a caption that is no text")
    captions = [one_line(text) for text in cast("list[str]", every)]
    for text in captions:
        _check_caption(text)
    return list(dict.fromkeys(text for text in captions if text))


def _check_caption(text: str) -> None:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise PlaceError("has a caption with half a character (a lone surrogate)") from error
    if "\0" in text:
        raise PlaceError("has a caption with a zero character")
    if size > MAX_CAPTION_BYTES:
        raise PlaceError("has a caption longer than 64 KiB; a caption is one paragraph")


def _number(cell: Any) -> float:
    try:
        # In Python a bool is an int, but `true` in a list is no number.
        return float(cell) if isinstance(cell, (int, float, str)) and not isinstance(cell, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _repeats(cell: Any) -> int:
    number = 1.0 if cell is None else _number(cell)
    if not (1 <= number <= 10_000 and number == int(number)):
        raise PlaceError(f"has repeats {str(cell)[:40]!r}; write a whole number from 1 to 10000")
    return int(number)


def _weight(cell: Any) -> float:
    number = 1.0 if cell is None else _number(cell)
    if not 1e-4 <= number <= 1e4:
        raise PlaceError(f"has weight {str(cell)[:40]!r}; write a number from 0.0001 to 10000")
    return number
