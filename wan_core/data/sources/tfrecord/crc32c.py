"""CRC-32C (Castagnoli), the checksum of TFRecord files, fast enough for latents without a compiled package.

A checksum is linear, so a long text is cut into lanes that numpy advances side by side, four bytes of every lane at a
time; then neighbours are joined, each join shifting the left half past as many zero bytes as the right half has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["crc32c"]

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
    """What a byte makes of an empty register, followed by 0, 1, 2 or 3 zero bytes."""
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
