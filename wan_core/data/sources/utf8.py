"""Bytes as text, or where they are none: nothing is guessed."""

from __future__ import annotations

__all__ = ["NotUtf8Error", "decoded"]


class NotUtf8Error(ValueError):
    """The clause "is not UTF-8: byte 0xdf at offset 4"."""


def decoded(data: bytes) -> str:
    """`data` as text, without a byte order mark; NotUtf8Error for anything that is not UTF-8, or holds a zero byte."""
    zero = data.find(b"\0")
    try:
        text = data.decode("utf-8-sig")
        start = zero
    except UnicodeDecodeError as error:
        text, start = "", error.start if zero < 0 else zero
    if start >= 0:
        raise NotUtf8Error(f"is not UTF-8: byte 0x{data[start]:02x} at offset {start}")
    return text
