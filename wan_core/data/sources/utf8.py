"""Bytes as text, or where they are none: nothing is guessed."""

from __future__ import annotations

import codecs
from pathlib import Path

from ...errors import DatasetError
from ...files import open_regular

__all__ = ["NotUtf8Error", "decoded", "read_utf8"]


class NotUtf8Error(ValueError):
    """The clause "is not UTF-8: byte 0xdf at offset 4"."""


def decoded(data: bytes) -> str:
    """`data` as text, without a byte order mark; NotUtf8Error for anything that is not UTF-8, or holds a zero byte."""
    zero = data.find(b"\0")
    bad = [zero] if zero >= 0 else []
    text = ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad.append(error.start)
    if bad:
        guess = " (it looks like UTF-16)" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else ""
        raise NotUtf8Error(f"is not UTF-8: byte 0x{data[min(bad)]:02x} at offset {min(bad)}{guess}")
    return text


def read_utf8(path: Path, limit_bytes: int, too_large: str) -> str:
    """A whole file as text; DatasetError when it is not UTF-8, or has more than `limit_bytes`: name and `too_large`."""
    with open_regular(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise DatasetError(f"{path.name} {too_large}")
    try:
        return decoded(data)
    except NotUtf8Error as error:
        raise DatasetError(f"{path.name} {error}. Save it again as UTF-8.") from error
