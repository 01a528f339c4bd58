"""What an uncompressed tar holds: names, places and sizes of its regular files.

A reader of our own because it must be stricter than a general one: no member is ever given a path on this machine,
headers are bounded, and links, devices and sparse files are named instead of followed. Format: POSIX pax interchange
format, with GNU's long names and base-256 sizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...errors import DatasetError
from ...files import open_regular

__all__ = ["TarMember", "read_member", "tar_members"]

_BLOCK = 512
_MAX_NAME_BYTES = 64 << 10
_MAX_MEMBERS = 2_000_000
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd", b"PK": "zip"}


@dataclass(frozen=True, kw_only=True)
class TarMember:
    """One entry that is a file, or is named because it is not."""

    name: str
    offset: int
    """of its first byte in the tar"""
    size: int
    """bytes"""
    refused: str = ""
    """why it cannot be used, if so"""


def tar_members(path: Path) -> list[TarMember]:
    """Every entry but folders; DatasetError when the file is no uncompressed tar, or is damaged."""
    with open_regular(path) as file:
        length = os.fstat(file.fileno()).st_size
        members = list(_entries(file, length, path.name))
    return members


def read_member(file: BinaryIO, member: TarMember, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a member, a piece at a time."""
    file.seek(member.offset)
    left = member.size
    while left:
        chunk = file.read(min(chunk_bytes, left))
        if not chunk:
            raise DatasetError(f"The tar ends inside {member.name[:120]!r}. Copy the tar again.")
        left -= len(chunk)
        yield chunk


def _entries(file: BinaryIO, length: int, name: str) -> Iterator[TarMember]:
    long_name, pax, count = "", dict[str, str](), 0
    position = 0
    while len(header := _header(file, position, name)) == _BLOCK:
        count += 1
        if count > _MAX_MEMBERS:
            raise DatasetError(f"{name} holds more than {_MAX_MEMBERS} entries. Split it into several.")
        kind = chr(header[156])
        # A pax header states the size of the entry after it, never its own.
        size = _number(header[124:136], name) if kind in "xgLK" or "size" not in pax else int(pax["size"])
        start = position + _BLOCK
        position = start + -(-size // _BLOCK) * _BLOCK
        if kind in "xL":
            text = _small(file, start, size, name)
            long_name, pax = (text.rstrip("\0"), pax) if kind == "L" else (long_name, _pax(text, name))
            continue
        if kind in "gK":
            continue
        if kind != "5":
            own = pax.get("path") or long_name or _name(header)
            yield TarMember(name=own, offset=start, size=size, refused=_refusal(kind, pax, start + size > length))
        long_name, pax = "", {}


def _refusal(kind: str, pax: dict[str, str], cut_off: bool) -> str:
    if kind in "12":
        return "is a link inside the tar; pack the file itself"
    if kind == "S" or any(key.startswith("GNU.sparse") for key in pax):
        return "is a sparse file; pack it without --sparse"
    if kind not in "0\0" + "7":
        return "is no regular file"
    return "is cut off: the tar ends before it does; copy the tar again" if cut_off else ""


def _header(file: BinaryIO, position: int, name: str) -> bytes:
    """The next header block; empty at the end of the tar."""
    file.seek(position)
    block = file.read(_BLOCK)
    if position == 0 and (kind := _COMPRESSED.get(block[:2])) is not None and _checksum(block) is None:
        raise DatasetError(f"{name} is packed with {kind}; only plain .tar files are read. Unpack it first.")
    if not block.strip(b"\0"):
        if position == 0:
            raise DatasetError(f"{name} is empty. Write it again.")
        return b""
    if len(block) < _BLOCK or _checksum(block) is None:
        what = "is no tar file" if position == 0 else f"is damaged at byte {position}"
        raise DatasetError(f"{name} {what}. Write it again.")
    return block


def _checksum(block: bytes) -> int | None:
    """The sum of the header's bytes if it is the one that stands in it."""
    total = sum(block[:148]) + 8 * 0x20 + sum(block[156:_BLOCK])
    try:
        stated = int(block[148:156].strip(b"\0 ") or b"0", 8)
    except ValueError:
        return None
    return total if total == stated else None


def _number(field: bytes, name: str) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        return int(field.strip(b"\0 ") or b"0", 8)
    except ValueError as error:
        raise DatasetError(f"{name} is damaged: a size in it is no number. Write it again.") from error


def _name(header: bytes) -> str:
    own = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + own if prefix else own).decode("utf-8", "replace")


def _small(file: BinaryIO, start: int, size: int, name: str) -> str:
    if size > _MAX_NAME_BYTES:
        raise DatasetError(f"{name} is damaged: the name of a member takes {size} bytes. Write it again.")
    file.seek(start)
    return file.read(size).decode("utf-8", "replace")


def _pax(text: str, name: str) -> dict[str, str]:
    """The records "<length> <key>=<value>\\n" of a pax header."""
    found: dict[str, str] = {}
    rest = text.encode("utf-8")
    while rest.strip(b"\0"):
        length, _, _ = rest.partition(b" ")
        if not length.isdigit() or not len(length) + 3 <= int(length) <= len(rest):
            raise DatasetError(f"{name} is damaged: a pax header cannot be read. Write it again.")
        record = rest[len(length) + 1 : int(length)].rstrip(b"\n").decode("utf-8", "replace")
        key, _, value = record.partition("=")
        found[key] = value
        rest = rest[int(length) :]
    if not found.get("size", "0").isdigit():
        raise DatasetError(f"{name} is damaged: a size in it is no number. Write it again.")
    return found
