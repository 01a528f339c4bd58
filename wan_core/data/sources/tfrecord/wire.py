"""The wire format of protocol buffers, as much of it as Example and TensorProto use."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["LENGTH", "field", "fields", "signed", "varints", "write_varint"]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


def fields(message: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """(field number, wire type, value) of a message; ValueError when it is not one.

    A value is an int for varints, else the bytes.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, place = _varint(message, place)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise ValueError(f"wire type {kind} is not used by Example")
        if place + size > len(message):
            raise ValueError("a field is longer than its message")
        yield number, kind, message[place : place + size]
        place += size


def varints(packed: memoryview) -> Iterator[int]:
    """All numbers of a packed field, as signed 64-bit."""
    place = 0
    while place < len(packed):
        value, place = _varint(packed, place)
        yield signed(value)


def signed(value: int) -> int:
    """Sixty-four bits read as an int64."""
    return value - (1 << 64) if value >> 63 else value


def write_varint(value: int) -> bytes:
    """A number of 64 bits; negative ones take ten bytes, as protobuf's int64 does."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    """One field: an int as varint, bytes with their length."""
    if isinstance(value, int):
        return write_varint(number << 3 | VARINT) + write_varint(value)
    return write_varint(number << 3 | LENGTH) + write_varint(len(value)) + value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """The number at `place`, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place
    raise ValueError("a number is longer than 64 bits")
