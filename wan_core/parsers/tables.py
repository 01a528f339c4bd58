"""Reads parquet and arrow files with pyarrow, and long JSON lists, a few rows at a time.

A dictionary-encoded cell takes four bytes in the file for a text of any size, so a small file could fill the memory.
Text columns are therefore read as dictionaries, and an oversized cell is reported without copying it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..children import Answer
from ..errors import DatasetError, DependencyError
from ..files import open_regular
from ..packages import pip_line

MOST_ROWS = 1_000_000
MOST_COLUMNS = 10_000
MOST_TEXT_BYTES = 512 << 20
"""largest total size of texts in all cells, in bytes"""
_LARGEST_TEXT_BYTES = 1 << 20
LARGEST_MEDIA_BYTES = 2 << 30
SPARE_MEDIA_BYTES = 64 << 20
"""largest media file in a list: twice the list's size plus this many bytes, because lists compress uncompressed
stills"""
_LARGEST_JSON_BYTES = 64 << 20
_LONGEST_LIST = 1000
_PYARROW = 15
"""oldest supported version; before 14.0.1, a schema could contain a pickle"""
_BATCH_ROWS, _BATCH_MEDIA_ROWS = 4096, 1
_ANSWER_BYTES = 4 << 20


class OpenTable:
    """An open file; its rows are read once, in order."""

    def __init__(self, path: Path) -> None:
        self._name, self._file = path.name, open_regular(path)
        self._room_bytes = 2 * os.fstat(self._file.fileno()).st_size + (1 << 30)
        kinds = {".parquet": _Parquet, ".json": _Json}
        self._rows: Iterator[list[Any] | str] | None = None
        try:
            self._list: _Parquet | _Arrow | _Json = kinds.get(path.suffix.lower(), _Arrow)(self._file, path.name)
            self.columns = self._list.columns
            if len(self.columns) > MOST_COLUMNS:
                raise DatasetError(
                    f"{path.name} has more than {MOST_COLUMNS:,} columns. Write the paths and captions alone."
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def next_rows(self, columns: list[str]) -> Answer:
        """Returns the next rows of `columns` as {"rows", "end"}, and the bytes of their media cells."""
        if self._rows is None:
            self._rows = self._counted(self._list.rows(columns))
        rows: list[list[Any] | str] = []
        payload, size = bytearray(), 0
        for row in self._rows:
            before = len(payload)
            rows.append(row if isinstance(row, str) else [_placed(cell, payload) for cell in row])
            self._room_bytes -= len(payload) - before
            size += len(payload) - before + 256 + sum(_length(cell) for cell in row)
            if self._room_bytes < 0:
                raise DatasetError(f"{self._name} holds the same media files in many rows. Write each once.")
            if size > _ANSWER_BYTES:
                return {"rows": rows, "end": False}, payload
        return {"rows": rows, "end": True}, payload

    def _counted(self, rows: Iterable[Sequence[Any]]) -> Iterator[list[Any] | str]:
        count = text_bytes = 0
        for row in rows:
            count, text_bytes = count + 1, text_bytes + sum(map(_length, row))
            if count > MOST_ROWS:
                raise too_many_rows(self._name)
            if text_bytes > MOST_TEXT_BYTES:
                raise DatasetError(
                    f"{self._name} holds more than {MOST_TEXT_BYTES >> 20} MiB of text. Split it into several lists."
                )
            large = next((cell for cell in row if isinstance(cell, _Large)), None)
            if large is None and sum(map(_length, row)) > _ANSWER_BYTES:
                large = _Large(f"holds more than {_ANSWER_BYTES >> 20} MiB of text; a caption is one paragraph")
            yield list(row) if large is None else large.why


class _Json:
    """A list of objects, [{...}, {...}], too long to be parsed in the server."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        data = file.read(_LARGEST_JSON_BYTES + 1)
        if len(data) > _LARGEST_JSON_BYTES:
            raise DatasetError(
                f"{name} is larger than {_LARGEST_JSON_BYTES >> 20} MiB. Write one row per line, as .jsonl."
            )
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{name} is not valid JSON ({str(error)[:120]}). Write it again.") from error
        if not isinstance(found, list):
            raise DatasetError(
                f"{name} is not a list of rows. Write [{{...}}, {{...}}], or one row per line as .jsonl."
            )
        self._data = cast("list[Any]", found)
        first = (row for row in self._data[:1000] if isinstance(row, dict))
        self.columns = list(dict.fromkeys(str(key) for row in first for key in cast("dict[str, Any]", row)))

    def rows(self, columns: list[str]) -> Iterator[Sequence[Any]]:
        for row in self._data:
            if isinstance(row, dict):
                yield [self._cell(cast("dict[str, Any]", row).get(column)) for column in columns]
            else:
                yield [_Large("is not an object such as {...}")]

    def _cell(self, value: Any) -> Any:
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            if len(entries) > _LONGEST_LIST:
                return _long_list(entries)
            return entries if all(isinstance(one, str) for one in entries) else [{}]
        if isinstance(value, dict):
            path = cast("dict[str, Any]", value).get("path")
            return {"path": path if isinstance(path, str) else None}
        return value


class _Arrow:
    """An arrow file or stream of record batches."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name, self._types = file, name, _pyarrow(name).types
        self._most_media_bytes = 2 * os.fstat(file.fileno()).st_size + SPARE_MEDIA_BYTES
        self.columns = [str(name) for name in self._opened().names]

    def rows(self, columns: list[str]) -> Iterator[Sequence[Any]]:
        for batch in self._batches(columns):
            cells = [self._cells(batch.column(batch.schema.names.index(name))) for name in columns]
            yield from zip(*cells, strict=True)

    def _opened(self) -> Any:
        from pyarrow import ipc  # pyright: ignore[reportMissingImports]

        magic = self._file.read(6)
        self._file.seek(0)
        self._reader: Any = ipc.open_file(self._file) if magic == b"ARROW1" else ipc.open_stream(self._file)
        return self._reader.schema

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        reader = self._reader
        is_file = hasattr(reader, "get_batch")  # otherwise the file is an arrow stream
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            chosen = batch.select([self.columns.index(name) for name in columns])
            chosen.validate(full=True)  # validated, because invalid offsets lead outside of pyarrow's buffers
            yield chosen

    def _cells(self, column: Any) -> list[Any]:
        """Returns the cells as JSON data; a media file is a buffer under "bytes"."""
        types, kind = self._types, column.type
        if types.is_dictionary(kind):
            numbers = column.indices.to_pylist()
            known = {number: self._cell(column.dictionary[number]) for number in {*numbers} - {None}}
            return [known.get(number) for number in numbers]
        if self._is_one_of(kind, "integer", "floating", "boolean", "null"):
            return column.to_pylist()
        return [self._cell(column[row]) for row in range(len(column))]

    def _cell(self, cell: Any) -> Any:
        types, kind = self._types, cell.type
        if not cell.is_valid:
            return None
        if types.is_dictionary(kind):
            return self._cell(cell.dictionary[cell.index.as_py()])
        if self._is_text(kind):
            size = cell.as_buffer().size
            if size > _LARGEST_TEXT_BYTES:
                return _Large(f"holds a text of {size >> 10} KiB; a caption is one paragraph")
            return cell.as_py()
        if self._is_bytes(kind):
            media = cell.as_buffer()
            if media.size > LARGEST_MEDIA_BYTES:
                return _Large("holds a media file larger than 2 GiB; name a file instead")
            if media.size > self._most_media_bytes:
                return _Large("holds a media file that a list of this size cannot hold; name a file instead")
            return {"bytes": media}
        if types.is_struct(kind):
            return self._struct(cell)
        if self._is_one_of(kind, "list", "large_list", "fixed_size_list"):
            return self._list(cell)
        value = cell.as_py()
        value = float(value) if isinstance(value, Decimal) else value
        return value if isinstance(value, bool | int | float) else {}

    def _struct(self, cell: Any) -> Any:
        """Returns a picture or video as `datasets` writes it."""
        media, path = (
            self._cell(cell[key]) if cell.type.get_field_index(key) >= 0 else None for key in ("bytes", "path")
        )
        if large := next((one for one in (media, path) if isinstance(one, _Large)), None):
            return large
        return {"path": path if isinstance(path, str) else None, **(media if isinstance(media, dict) else {})}

    def _list(self, cell: Any) -> Any:
        values = cell.values
        if len(values) > _LONGEST_LIST:
            return _long_list(values)
        found = [self._cell(values[index]) for index in range(len(values))]
        if large := next((one for one in found if isinstance(one, _Large)), None):
            return large
        return [{} if isinstance(one, dict | list) else one for one in found]

    def _is_text(self, kind: Any) -> bool:
        return self._is_one_of(kind, "string", "large_string", "string_view")

    def _is_bytes(self, kind: Any) -> bool:
        return self._is_one_of(kind, "binary", "large_binary", "fixed_size_binary", "binary_view")

    def _is_one_of(self, kind: Any, *names: str) -> bool:
        # Older versions of pyarrow have no views.
        return any(getattr(self._types, f"is_{name}", lambda _: False)(kind) for name in names)

    def _is_small(self, kind: Any) -> bool:
        return self._is_text(kind) or self._is_one_of(kind, "primitive", "dictionary", "null")


class _Parquet(_Arrow):
    def _opened(self) -> Any:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]

        plain = parquet.ParquetFile(self._file)
        if plain.metadata.num_rows > MOST_ROWS:
            raise too_many_rows(self._name)
        self._schema = plain.schema_arrow
        texts = [field.name for field in self._schema if self._is_text(field.type)]
        self._file.seek(0)
        # Opened again, now that the schema shows which columns are texts, to be read as dictionaries.
        self._reader = parquet.ParquetFile(
            self._file, metadata=plain.metadata, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False
        )
        return self._schema

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        media = any(not self._is_small(self._schema.field(self.columns.index(name)).type) for name in columns)
        rows = _BATCH_MEDIA_ROWS if media else _BATCH_ROWS
        return self._reader.iter_batches(batch_size=rows, columns=columns, use_threads=False)


@dataclass(frozen=True)
class _Large:
    """A cell above the limits; its row is refused."""

    why: str


def _placed(cell: Any, payload: bytearray) -> Any:
    """Append the bytes of a cell to `payload`; returns the cell with their offsets."""
    if isinstance(cell, dict) and "bytes" in cell:
        start = len(payload)
        payload += memoryview(cell["bytes"])
        return {**cell, "bytes": [start, len(payload)]}
    return cell


def _length(cell: Any) -> int:
    return sum(map(_length, cell)) if isinstance(cell, list) else len(cell) if isinstance(cell, str) else 8


def _long_list(values: Any) -> _Large:
    return _Large(f"holds a list of {len(values)} entries; write at most {_LONGEST_LIST} captions")


def too_many_rows(name: str) -> DatasetError:
    """Returns the refusal of a list with too many rows."""
    return DatasetError(f"{name} has more than {MOST_ROWS:,} rows. Split it into several lists.")


def _pyarrow(name: str) -> Any:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DependencyError(
            f"{name} needs the package pyarrow. Run: {pip_line('pyarrow')}; or write the list as .jsonl."
        ) from error
    version = str(pyarrow.__version__)
    if int(version.partition(".")[0]) < _PYARROW:
        raise DependencyError(
            f"{name} needs pyarrow {_PYARROW} or newer; here it is {version[:20]}, which a file can make "
            f"run code. Run: {pip_line('pyarrow>=15', upgrade=True)}; or write the list as .jsonl."
        )
    return pyarrow
