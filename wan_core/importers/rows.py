"""Lists as rows of cells: jsonl, json, csv, parquet and arrow files.

A child process parses parquet and long JSON, a few rows at a time, so memory use is constant. This process parses
single lines, which are short.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from ..dataset.captions import NotUtf8Error, decoded, read_utf8
from ..errors import DatasetError
from ..files import open_regular
from ..parsers import MOST_COLUMNS, MOST_ROWS, Tables, too_many_rows

Row = tuple[str, list[Any] | str]
"""("line 7", the requested cells, or the reason why the row cannot be used)"""
_Read = tuple[str, dict[str, Any] | str]

TEXT_SUFFIXES = frozenset({".jsonl", ".ndjson", ".csv", ".tsv"})
TABLE_SUFFIXES = frozenset({".parquet", ".arrow"})
_MAX_LIST_BYTES = 1 << 30
_MAX_LINE_BYTES = 1 << 20
JSON_HERE_BYTES = 4 << 20
"""largest .json list that is not parsed in a child process"""


@contextmanager
def opened_list(path: Path, tables: Tables) -> Iterator[tuple[Sequence[str], Callable[[Sequence[str]], Iterator[Row]]]]:
    """Yields the column names, and a function that returns the rows of some columns.

    Column names of JSON lines are those of the first thousand rows. `tables`: the child process, for several files.
    DatasetError if the file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES or (suffix == ".json" and os.stat(path).st_size > JSON_HERE_BYTES):
        yield tables.open(path), lambda columns: ((f"row {n}", row) for n, row in enumerate(tables.rows(columns), 1))
    elif suffix in (".csv", ".tsv"):
        with open_regular(path) as file:
            reader = _csv_reader(path, _text_lines(file, path))
            header = _header(reader, path)
            yield header, lambda columns: _checked_count(_csv_rows(path, reader, header, columns), path)
    else:
        read = _json_lines if suffix in (".jsonl", ".ndjson") else _json_rows
        there = _keys(itertools.islice(read(path), 1000), path)
        yield there, lambda columns: _checked_count(_of_columns(read(path), columns), path)


def _checked_count(rows: Iterable[Row], path: Path) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if number > MOST_ROWS:
            raise too_many_rows(path.name)
        yield row


def _of_columns(rows: Iterable[_Read], columns: Sequence[str]) -> Iterator[Row]:
    for place, row in rows:
        yield place, row if isinstance(row, str) else [row.get(column) for column in columns]


def _keys(rows: Iterable[_Read], path: Path) -> list[str]:
    found: dict[str, None] = {}
    bad = ""
    for place, row in rows:
        found.update(dict.fromkeys(row if isinstance(row, dict) else ()))
        _check_columns(len(found), path)
        bad = bad or (f"{place} {row}" if isinstance(row, str) else "")
    if bad and not found:
        raise DatasetError(f"No row of {path.name} can be read: {bad}. Correct it, or write the list again.")
    return list(found)


def _check_columns(count: int, path: Path) -> None:
    if count > MOST_COLUMNS:
        raise DatasetError(f"{path.name} has more than {MOST_COLUMNS:,} columns. Write the paths and captions alone.")


def _lines(file: Any, path: Path) -> Iterator[bytes]:
    if os.fstat(file.fileno()).st_size > _MAX_LIST_BYTES:
        raise DatasetError(f"{path.name} is larger than 1 GiB. Split it into several lists.")
    number = 0
    while line := file.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise DatasetError(f"Line {number} of {path.name} is longer than 1 MiB. A row is one line of JSON.")
        yield line


def _json_lines(path: Path) -> Iterator[_Read]:
    with open_regular(path) as file:
        for number, line in enumerate(_lines(file, path), 1):
            if text := line.strip():
                yield f"line {number}", _json_row(text)


def _json_row(line: bytes) -> dict[str, Any] | str:
    try:
        row: Any = json.loads(decoded(line))
    except NotUtf8Error as error:
        return f"{error}; save the file again as UTF-8"
    except json.JSONDecodeError as error:
        return f"is not valid JSON ({error.msg} at character {error.pos + 1}){_cause(line, error.msg)}"
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON ({str(error)[:120]})"
    return cast("dict[str, Any]", row) if isinstance(row, dict) else "is not an object such as {...}"


def _cause(line: bytes, error: str) -> str:
    """Returns the likely cause of a JSON error in a line, as a clause."""
    if line.startswith(b"["):
        return "; rename a file that is one array to .json"
    if "\\" in error:  # Invalid \escape
        return "; a single \\ has to be written as \\\\ or /"
    if line.endswith(b","):
        return "; a line ends without a comma"
    if re.search(rb",\s*[}\]]", line):
        return "; a closing bracket must not follow a comma"
    return "; names and texts need double quotes" if b"'" in line and b'"' not in line else ""


def _json_rows(path: Path) -> Iterator[_Read]:
    try:
        # The size was checked before; this limit catches a file that has grown since.
        data: Any = json.loads(read_utf8(path, JSON_HERE_BYTES, "is larger than 4 MiB. Try again."))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not valid JSON ({str(error)[:120]}). Write it again.") from error
    if not isinstance(data, list):
        raise DatasetError(
            f"{path.name} is not a list of rows. Write [{{...}}, {{...}}], or one row per line as .jsonl."
        )
    for number, row in enumerate(cast("list[Any]", data), 1):
        yield f"row {number}", row if isinstance(row, dict) else "is not an object such as {...}"


def _text_lines(file: Any, path: Path) -> Iterator[str]:
    start = 0
    for line in _lines(file, path):
        try:
            yield decoded(line, start)
        except NotUtf8Error as error:
            raise DatasetError(f"{path.name} {error}. Save it again as UTF-8.") from error
        start += len(line)


def _csv_reader(path: Path, lines: Iterator[str]) -> Any:
    first = next(lines, "")
    # The most frequent delimiter in the header, because captions may contain commas.
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
    return csv.reader(itertools.chain([first], lines), delimiter=delimiter, strict=True)


def _header(reader: Any, path: Path) -> list[str]:
    try:
        header = next((row for row in reader if row), [])
    except csv.Error as error:
        raise _unreadable(reader, path, error) from error
    _check_columns(len(header), path)
    return header


def _csv_rows(path: Path, reader: Any, header: list[str], columns: Sequence[str]) -> Iterator[Row]:
    places = [len(header) - 1 - header[::-1].index(column) for column in columns]
    try:
        for row in reader:
            if len(row) > len(header):
                yield (
                    f"line {reader.line_num}",
                    f"has more cells than the {len(header)} columns; quote commas in captions",
                )
            elif row:
                yield f"line {reader.line_num}", [(row[at] or None) if at < len(row) else None for at in places]
    except csv.Error as error:
        raise _unreadable(reader, path, error) from error


def _unreadable(reader: Any, path: Path, error: csv.Error) -> DatasetError:
    return DatasetError(f"Line {reader.line_num} of {path.name} cannot be read ({error}). Quote its cells.")
