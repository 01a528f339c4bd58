"""The cells of lists by role (path, caption, ...), cached while the files are unchanged.

A plan, a fingerprint and a run read the same list one after the other. Paths in a list are not cached: each reader
checks them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sys import getsizeof
from threading import Lock
from typing import Any, cast

from ..errors import DatasetError
from ..files import file_mark
from ..parsers import Tables
from ..video import shown
from .rows import Row, opened_list
from .source import Columns, SourceFile, columns_of

_KEPT_BYTES = 256 << 20
"""largest total size of cached lists in bytes; the least recently used lists are dropped first"""
_ROW_BYTES = 190
"""approximate bytes of a row without its texts"""


@dataclass(frozen=True)
class ListedCells:
    """All rows of tables with equal columns."""

    columns: Sequence[str]
    """all columns of the first table"""
    roles: Mapping[str, str]
    """role -> column"""
    rows: Iterable[Row]
    """cells in the order of `roles`"""


_Key = tuple[tuple[tuple[str, tuple[int, ...]], ...], Columns]
_kept: OrderedDict[_Key, tuple[int, ListedCells]] = OrderedDict()
"""(bytes, cells) of the cached lists, least recently used first"""
_keeping = Lock()


def cells_of(tables: Sequence[Path], source: SourceFile) -> ListedCells:
    """Returns the cells of `tables`. Raises DatasetError; iterating over the rows may raise Stopped."""
    key = _key(tables, source.columns)
    with _keeping:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key][1]
    walk = _walked(tables, source)
    there, roles = next(walk)
    return ListedCells(there, roles, _remembered(key, tables, ListedCells(there, roles, walk)))


def holds_media(table: Path, source: SourceFile) -> bool:
    """Returns whether the first row contains its media file instead of a path. Raises Stopped, DatasetError."""
    with _keeping:
        if _key([table], source.columns) in _kept:
            return False
    with Tables(source.should_stop) as tables, opened_list(table, tables) as (there, rows):
        path = columns_of(there, source.columns, table.name)["path"]
        first = next((cells for _place, cells in rows([path]) if not isinstance(cells, str)), [None])
    return bytes_of(first[0]) is not None


def bytes_of(cell: Any) -> bytes | None:
    """Returns the bytes of a media cell: bytes, or {"bytes": ..., "path": ...} of the library `datasets`."""
    if isinstance(cell, dict):
        cell = cast("dict[str, Any]", cell).get("bytes")
    return cell if isinstance(cell, bytes) and cell else None


def _key(tables: Sequence[Path], columns: Columns) -> _Key:
    """Returns the cache key of a list: names, marks and columns. Raises DatasetError for a missing table."""
    return tuple((str(table), _mark(table)) for table in tables), columns


def _mark(table: Path) -> tuple[int, ...]:
    try:
        return tuple(file_mark(table))
    except OSError as error:
        raise DatasetError(
            f"{table.name} cannot be opened: {error.strerror}. Put the file itself there, or choose another."
        ) from error


def _walked(tables: Sequence[Path], source: SourceFile) -> Iterator[Any]:
    """Yields (columns of the first table, roles), then each row."""
    roles: dict[str, str] = {}
    with Tables(source.should_stop) as reader:
        for table in tables:
            with opened_list(table, reader) as (columns, rows):
                if not roles:
                    roles = columns_of(columns, source.columns, source.path.name)
                    yield tuple(columns), roles
                here = [column for column in roles.values() if column in columns]
                here = here or list(columns[:1])  # A table may lack these columns; its rows are then reported.
                for place, cells in rows(here):
                    source.stop_if_asked()
                    known = cells if isinstance(cells, str) else dict(zip(here, cells, strict=True))
                    row = known if isinstance(known, str) else [known.get(column) for column in roles.values()]
                    yield place if len(tables) == 1 else f"{shown(table)} {place}", row


def _remembered(key: _Key, tables: Sequence[Path], read: ListedCells) -> Iterator[Row]:
    """Yields the rows, and caches them at the end if they are small enough and no file has changed meanwhile."""
    seen: list[Row] = []
    size = sum(map(_bytes_of, read.columns))
    for row in read.rows:
        yield row
        cells = [row[1]] if isinstance(row[1], str) else row[1]
        holds_media = any(bytes_of(cell) is not None for cell in cells)
        size += _KEPT_BYTES + 1 if holds_media else _ROW_BYTES + sum(map(_bytes_of, cells))
        if size <= _KEPT_BYTES:
            seen.append(row)
        else:
            seen.clear()
    try:
        same = _key(tables, key[1]) == key
    except DatasetError:  # a file was deleted meanwhile
        return
    if size <= _KEPT_BYTES and same:
        with _keeping:
            _kept[key] = size, replace(read, rows=tuple(seen))
            while sum(one for one, _ in _kept.values()) > _KEPT_BYTES:
                _kept.popitem(last=False)


def _bytes_of(cell: Any) -> int:
    inner: Iterable[Any] = cast("list[Any]", cell) if isinstance(cell, list) else ()
    inner = cast("dict[str, Any]", cell).values() if isinstance(cell, dict) else inner
    return getsizeof(cell) + sum(map(_bytes_of, inner))
