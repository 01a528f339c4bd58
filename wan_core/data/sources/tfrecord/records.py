"""The outer layer of a TFRecord file: length, checksum of the length, bytes, checksum of the bytes, again and again."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ....errors import DatasetError
from ....files import FileError, atomic_write, open_regular
from .crc32c import crc32c

__all__ = ["MAX_RECORD_BYTES", "RecordWriter", "read_records", "record_bytes"]

MAX_RECORD_BYTES = 2 << 30
"""larger than any clip's latent; protobuf itself allows no more"""
_MASK = 0xA282EAD8
_GZIP = b"\x1f\x8b"


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a file, one in memory at a time. DatasetError names the record that is cut off or damaged."""
    try:
        file = open_regular(path)
    except FileError as error:
        raise DatasetError(str(error)) from error
    with file:
        left = os.fstat(file.fileno()).st_size
        number = 0
        while left:
            record = _read_record(file, left, path.name, number)
            left -= len(record) + 16
            yield record
            number += 1


def record_bytes(data: bytes) -> bytes:
    """`data` with the length and checksums around it."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


class RecordWriter:
    """Writes one file of records that appears whole when the `with` block ends well, or not at all."""

    def __init__(self, path: Path) -> None:
        self._atomic = atomic_write(path)
        self._file: BinaryIO | None = None

    def __enter__(self) -> RecordWriter:
        self._file = self._atomic.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file = None
        self._atomic.__exit__(kind, error, trace)

    def write(self, data: bytes) -> None:
        assert self._file is not None, "use it as a context manager"
        self._file.write(record_bytes(data))


def _read_record(file: BinaryIO, left: int, name: str, number: int) -> bytes:
    header = file.read(12)
    if number == 0 and header.startswith(_GZIP):
        raise DatasetError(f"{name} is compressed with gzip. Decompress it first (gzip -d), then try again.")
    if len(header) < 12:
        raise _damaged(name, number, "is cut off")
    length, check = struct.unpack("<QI", header)
    if check != _masked(header[:8]):
        raise _damaged(name, number, "has a length whose checksum does not match")
    if length > MAX_RECORD_BYTES:
        raise _damaged(name, number, f"claims {length} bytes")
    if length + 16 > left:
        raise _damaged(name, number, f"is cut off: it has {length} bytes and {max(left - 16, 0)} are there")
    body = file.read(length + 4)
    if len(body) < length + 4:
        raise _damaged(name, number, "is cut off")
    data = body[:length]
    if struct.unpack("<I", body[length:])[0] != _masked(data):
        raise _damaged(name, number, "is damaged: its checksum does not match")
    return data


def _masked(data: bytes) -> int:
    """TFRecord stores checksums rotated and moved, so that a checksum over checksums stays useful."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _damaged(name: str, number: int, why: str) -> DatasetError:
    return DatasetError(f"Record {number} of {name} {why}. Copy or write the file again.")
