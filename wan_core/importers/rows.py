"""Lists as rows: jsonl, json, csv, parquet and arrow files, one row at a time. `columns` says what they mean.

Memory stays flat: a parquet file with the bytes of a thousand clips is read a few rows at a time.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ..dataset.captions import NotUtf8Error, decoded, read_utf8
from ..errors import DatasetError, DependencyError
from ..files import open_regular
from ..packages import pip_line

__all__ = ["TABLE_SUFFIXES", "TEXT_SUFFIXES", "Row", "column_names", "rows_of"]

Row = tuple[str, dict[str, Any] | str]
"""("line 7", the row), or the reason why it is none"""

TEXT_SUFFIXES = frozenset({".jsonl", ".ndjson", ".csv", ".tsv"})
TABLE_SUFFIXES = frozenset({".parquet", ".arrow"})
MAX_LIST_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 20
_PYARROW = 15
"""the oldest that is used: before 14.0.1 a schema could hold a pickle"""
_BATCH_ROWS = 16


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a list, by its suffix; DatasetError when the file as a whole cannot be read."""
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _json_lines(path)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path)
    if suffix == ".json":
        return _json_rows(path)
    return _table_rows(path)


def column_names(path: Path) -> list[str]:
    """All column names; of lines of JSON those of the first thousand rows."""
    if path.suffix.lower() in TABLE_SUFFIXES:
        return _table_columns(path)
    if path.suffix.lower() in (".csv", ".tsv"):
        return list(_csv_reader(path).fieldnames or ())
    found: dict[str, None] = {}
    for _place, row in itertools.islice(rows_of(path), 1000):
        found.update(dict.fromkeys(row if isinstance(row, dict) else ()))
    return list(found)


def _json_lines(path: Path) -> Iterator[Row]:
    with open_regular(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise DatasetError(f"Line {number} of {path.name} is longer than 1 MiB. A row is one line of JSON.")
            if text := line.strip():
                yield f"line {number}", _json_row(text)


def _json_row(line: bytes) -> dict[str, Any] | str:
    try:
        row: Any = json.loads(decoded(line))
    except NotUtf8Error as error:
        return f"{error}; save the file again as UTF-8"
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON ({str(error)[:120]})"
    return cast("dict[str, Any]", row) if isinstance(row, dict) else "is not an object such as {...}"


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        data: Any = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not valid JSON ({str(error)[:120]}). Write it again.") from error
    if not isinstance(data, list):
        raise DatasetError(f"{path.name} is not a list of rows. Write [{{...}}, {{...}}], or one row a line as .jsonl.")
    for number, row in enumerate(cast("list[Any]", data), 1):
        yield f"row {number}", row if isinstance(row, dict) else "is not an object such as {...}"


def _csv_rows(path: Path) -> Iterator[Row]:
    reader = _csv_reader(path)
    try:
        for row in reader:
            place = f"line {reader.line_num}"
            if None in row:
                yield place, f"has more cells than the {len(reader.fieldnames or ())} columns; quote commas in captions"
            else:
                yield place, {name: cell for name, cell in row.items() if cell not in (None, "")}
    except csv.Error as error:
        raise DatasetError(
            f"Line {reader.line_num} of {path.name} cannot be read ({error}). Quote its cells."
        ) from error


def _csv_reader(path: Path) -> csv.DictReader[str]:
    text = _text(path)
    head = text.split("\n", 1)[0]
    # The delimiter is the one the header uses most: captions are full of commas, headers are not.
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=head.count)
    return csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)


def _text(path: Path) -> str:
    return read_utf8(path, MAX_LIST_BYTES, "is larger than 1 GiB. Split it into several lists.")


def _table_columns(path: Path) -> list[str]:
    with _Table(path) as table:
        return list(table.columns)


def _table_rows(path: Path) -> Iterator[Row]:
    number = 0
    with _Table(path) as table:
        for rows in table.batches():
            for row in rows:
                number += 1
                yield f"row {number}", {name: cell for name, cell in row.items() if cell is not None}


class _Table:
    """A parquet file, or an arrow file as `datasets` writes it, through pyarrow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrow = _pyarrow(path)
        self._file = open_regular(path)
        try:
            self._source = self._opened()
        except self._arrow.ArrowException as error:
            self._file.close()
            raise self._damaged(error) from error
        self.columns: list[str] = [str(name) for name in self._schema().names]

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        try:
            for batch in self._record_batches():
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    yield batch.slice(start, _BATCH_ROWS).to_pylist()
        except (self._arrow.ArrowException, UnicodeDecodeError) as error:
            raise self._damaged(error) from error

    def _opened(self) -> Any:
        if self._path.suffix.lower() == ".parquet":
            from pyarrow import parquet  # pyright: ignore[reportMissingImports]

            return parquet.ParquetFile(self._file)
        from pyarrow import ipc  # pyright: ignore[reportMissingImports]

        magic = self._file.read(6)
        self._file.seek(0)
        return ipc.open_file(self._file) if magic == b"ARROW1" else ipc.open_stream(self._file)

    def _schema(self) -> Any:
        return getattr(self._source, "schema_arrow", None) or self._source.schema

    def _record_batches(self) -> Iterator[Any]:
        if hasattr(self._source, "iter_batches"):
            return self._source.iter_batches(batch_size=_BATCH_ROWS)
        if hasattr(self._source, "get_batch"):
            return (self._source.get_batch(index) for index in range(self._source.num_record_batches))
        return iter(self._source)

    def _damaged(self, error: Exception) -> DatasetError:
        return DatasetError(f"{self._path.name} cannot be read ({str(error)[:160]}). Write it again.")


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DependencyError(
            f"{path.name} needs the package pyarrow. Run: {pip_line('pyarrow')}; or write the list as .jsonl."
        ) from error
    version = str(pyarrow.__version__)
    if int(version.partition(".")[0]) < _PYARROW:
        raise DependencyError(
            f"{path.name} needs pyarrow {_PYARROW} or newer; here it is {version[:20]}, which a file can make "
            f"run code. Run: {pip_line('pyarrow>=15', upgrade=True)}; or write the list as .jsonl."
        )
    return pyarrow
