"""The outer layer of a TFRecord file: length, checksum of the length, bytes, checksum of the bytes, again and again.

[crc32c] CRC-32C (Castagnoli), the checksum of TFRecord files, fast enough for latents without a compiled package.

A checksum is linear, so a long text is cut into lanes that numpy advances side by side, four bytes of every lane at a
time; then neighbours are joined, each join shifting the left half past as many zero bytes as the right half has.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...errors import DatasetError
from ...files import FileError, atomic_write, open_regular

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_LANE_BYTES = 1024
_SHORT_BYTES = 4096
"""below this, a plain loop is as fast"""

_Words = NDArray[np.uint32]


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC-32C of `data` as RFC 3720 defines it."""
    view = memoryview(data).cast("B")
    return _plain(view) if len(view) < _SHORT_BYTES else _laned(view)


def _make_tables() -> list[_Words]:
    """Returns what a byte makes of an empty register, followed by 0, 1, 2 or 3 zero bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ _POLYNOMIAL, table >> 1).astype(np.uint32)
    tables = [table]
    for _ in range(3):
        tables.append(tables[-1] >> np.uint32(8) ^ table[tables[-1] & np.uint32(255)])
    return tables


_TABLES = _make_tables()
_LIST: list[int] = _TABLES[0].tolist()


def _plain(view: memoryview) -> int:
    crc = 0xFFFFFFFF
    for byte in view:
        crc = crc >> 8 ^ _LIST[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _laned(view: memoryview) -> int:
    lanes = 1 << (-(-len(view) // _LANE_BYTES) - 1).bit_length()
    padded = np.zeros(lanes * _LANE_BYTES, np.uint8)  # zeros in front leave a register of zero as it is
    start = len(padded) - len(view)
    padded[start:] = np.frombuffer(view, np.uint8)
    padded[start : start + 4] ^= 0xFF  # the register starts with ones: the same as inverting the first four bytes
    words = np.ascontiguousarray(padded.view("<u4").reshape(lanes, _LANE_BYTES // 4).T)
    crcs = np.zeros(lanes, np.uint32)
    for column in words:
        crcs ^= column
        first, second, third, last = (crcs >> np.uint32(shift) & np.uint32(255) for shift in (0, 8, 16, 24))
        crcs = _TABLES[3][first] ^ _TABLES[2][second] ^ _TABLES[1][third] ^ _TABLES[0][last]
    shift = _zero_bytes(_LANE_BYTES)
    while len(crcs) > 1:
        crcs = _apply(shift, crcs[0::2]) ^ crcs[1::2]
        shift = _apply(shift, shift)
    return int(crcs[0]) ^ 0xFFFFFFFF


def _zero_bytes(count: int) -> _Words:
    """The linear map that `count` zero bytes (a power of two) make of a register: the images of its 32 bits."""
    one_bit = np.array([_POLYNOMIAL, *(1 << bit for bit in range(31))], np.uint32)
    shift = one_bit
    for _ in range((8 * count).bit_length() - 1):
        shift = _apply(shift, shift)
    return shift


def _apply(shift: _Words, words: _Words) -> _Words:
    out = np.zeros_like(words)
    for bit in range(32):
        out ^= np.where(words >> np.uint32(bit) & np.uint32(1), shift[bit], np.uint32(0))
    return out


_MAX_RECORD_BYTES = 1 << 30
"""four times the latent of the longest clip at 1280x720"""
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
    """TFRecord stores checksums rotated and moved, so that a checksum over checksums stays useful."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _damaged(name: str, number: int, why: str) -> DatasetError:
    return DatasetError(f"Record {number} of {name} {why}. Copy or write the file again.")
