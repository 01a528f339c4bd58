"""TFRecord files: a sequence of records, each a length, a checksum of the length, the bytes, and their checksum.

Checksums are CRC-32C, from the package google-crc32c. A length is checked before the bytes are read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import DatasetError, DependencyError
from ...files import FileError, open_regular
from ...packages import pip_line

_MAX_RECORD_BYTES = 1 << 30
"""four times the latent of the longest clip at 1280x720"""
_MASK = 0xA282EAD8
_GZIP = b"\x1f\x8b"


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the records of a file one at a time.

    Raises DatasetError for a truncated or damaged record, and DependencyError without google-crc32c.
    """
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
    """Returns `data` as a record, with length and checksums; DependencyError without google-crc32c."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _read_record(file: BinaryIO, left: int, name: str, number: int) -> bytes:
    header = file.read(12)
    if number == 0 and header.startswith(_GZIP):
        raise DatasetError(f"{name} is compressed with gzip. Decompress it first (gzip -d), then try again.")
    if len(header) < 12:
        raise _damaged(name, number, "is cut off")
    length, check = struct.unpack("<QI", header)
    if check != _masked(header[:8]):
        raise _damaged(name, number, "has a length whose checksum does not match")
    if length > _MAX_RECORD_BYTES:
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
    """Returns TFRecord's masked CRC-32C: rotated, plus a constant."""
    try:
        import google_crc32c
    except ImportError as error:
        raise DependencyError(
            f"TFRecords need the package google-crc32c, for their checksums. Run: {pip_line('google-crc32c')}."
        ) from error
    crc: Any = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _damaged(name: str, number: int, why: str) -> DatasetError:
    return DatasetError(f"Record {number} of {name} {why}. Copy or write the file again.")
