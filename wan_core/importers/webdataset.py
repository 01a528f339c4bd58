"""WebDataset: a tar in which the files of a sample share one name (`0001.mp4`, `0001.txt`).

Clips and stills are extracted into the cache; captions are read from the tar. The standard library's tarfile reads each
header, but not the tar: it takes a damaged header for the end, and reads pax headers of any size into memory. Member
names never become paths; links, devices and sparse files are refused. Format: POSIX pax, with GNU long names and
base-256 sizes.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..dataset.caption_names import in_one_form
from ..dataset.captions import MAX_CAPTION_BYTES, NotUtf8Error, caption_key, decoded, one_line
from ..dataset.files import CLIP_SUFFIXES, OTHER_SUFFIXES, STILL_SUFFIXES, MediaFile, Rejected, SourcePart
from ..errors import DatasetError
from ..files import open_regular
from ..words import is_text
from .extracted import ExtractedFiles
from .source import SourceFile

_BLOCK = 512
_MAX_NAME_BYTES = 64 << 10
_MAX_MEMBERS = 2_000_000
_SIZE = re.compile(r"[0-9]{1,18}")
_PAX_LENGTH = re.compile(rb"([0-9]{1,9}) ")
_MAX_SIZE = 1 << 60
"""largest size of a member in bytes, larger than any file system"""
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
"""headers about the next member, or about all"""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd", b"PK": "zip"}


@dataclass(frozen=True, kw_only=True)
class TarMember:
    """A file in the tar, or a refused entry."""

    name: str
    offset: int
    """offset of the member's first byte"""
    size: int
    refused: str = ""
    """reason why the member cannot be used; "" if it can"""


def tar_members(path: Path, stop_if_asked: Callable[[], None] = lambda: None) -> list[TarMember]:
    """Returns all entries except folders; DatasetError for a compressed or damaged tar."""
    members: list[TarMember] = []
    with open_regular(path) as file:
        length = os.fstat(file.fileno()).st_size
        for member in _entries(file, length, path.name):
            stop_if_asked()
            members.append(member)
    return members


def read_member(file: BinaryIO, member: TarMember, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Yields the bytes of a member in chunks."""
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
    while position <= length and (header := _header(file, position, name)) is not None:
        count += 1
        if count > _MAX_MEMBERS:
            raise DatasetError(f"{name} holds more than {_MAX_MEMBERS} entries. Split it into several.")
        kind = header.type
        # The size in a pax header is the size of the next file, not of the next header.
        size = header.size if kind in _HEADERS or "size" not in pax else int(pax["size"])
        if not 0 <= size <= _MAX_SIZE:
            raise _no_number(name)
        start = position + _BLOCK
        position = start + -(-size // _BLOCK) * _BLOCK
        if kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            text = _small(file, start, size, name)
            long_name, pax = (long_name, _pax(text, name)) if kind == tarfile.XHDTYPE else (text.rstrip("\0"), pax)
            continue
        if kind in _HEADERS:
            continue
        if kind != tarfile.DIRTYPE:
            own = pax.get("path") or long_name or header.name
            yield TarMember(name=own, offset=start, size=size, refused=_refusal(kind, pax, start + size > length))
        long_name, pax = "", {}


def _refusal(kind: bytes, pax: dict[str, str], cut_off: bool) -> str:
    if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE):
        return "is a link inside the tar; pack the file itself"
    if kind == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse") for key in pax):
        return "is a sparse file; pack it without --sparse"
    if kind not in tarfile.REGULAR_TYPES:
        return "is no regular file"
    return "is cut off: the tar ends before it does; copy the tar again" if cut_off else ""


def _header(file: BinaryIO, position: int, name: str) -> tarfile.TarInfo | None:
    """Returns the next header; None at the end of the tar."""
    file.seek(position)
    block = file.read(_BLOCK)
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except tarfile.HeaderError as error:
        if position == 0 and (kind := _COMPRESSED.get(block[:2])) is not None:
            packed = f"{name} is packed with {kind}; only plain .tar files are read. Unpack it first."
            raise DatasetError(packed) from error
        if not block.strip(b"\0"):
            if position == 0:
                raise DatasetError(f"{name} is empty. Write it again.") from error
            return None
        what = "is no tar file" if position == 0 else f"is damaged at byte {position}"
        raise DatasetError(f"{name} {what}. Write it again.") from error


def _no_number(name: str) -> DatasetError:
    return DatasetError(f"{name} is damaged: a size in it is no number. Write it again.")


def _small(file: BinaryIO, start: int, size: int, name: str) -> str:
    if size > _MAX_NAME_BYTES:
        raise DatasetError(f"{name} is damaged: the name of a member takes {size} bytes. Write it again.")
    file.seek(start)
    return file.read(size).decode("utf-8", "replace")


def _pax(text: str, name: str) -> dict[str, str]:
    """Returns key -> value of a pax header, whose records are "<length> <key>=<value>\\n"."""
    found: dict[str, str] = {}
    data = text.encode("utf-8").rstrip(b"\0")
    place = 0
    while place < len(data):
        head = _PAX_LENGTH.match(data, place)
        end = place + int(head[1]) if head else 0
        if head is None or not head.end() + 2 <= end <= len(data):
            raise DatasetError(f"{name} is damaged: a pax header cannot be read. Write it again.")
        key, _, value = data[head.end() : end].rstrip(b"\n").decode("utf-8", "replace").partition("=")
        found[key] = value
        place = end
    if not _SIZE.fullmatch(found.get("size", "0")):
        raise _no_number(name)
    return found


_MAX_JSON_BYTES = 1 << 20
_MAX_MEMBER_BYTES = 16 << 30
_CAPTIONS = (".txt", ".caption", ".cap", ".json")
_MEDIA = CLIP_SUFFIXES | STILL_SUFFIXES
_COMPANIONS = (".control.", ".mask.")

_Group = dict[str, TarMember]
"""suffix, such as ".mp4" or ".control.mp4", -> member"""


def read_webdataset(source: SourceFile) -> SourcePart:
    """Returns the samples of a tar; refused entries and samples without media are reported."""
    path = source.path
    if source.unpacked is None:
        raise DatasetError(
            f"{path.name} must be unpacked, but no folder for that is given. Unpack it, and choose that folder instead."
        )
    members = tar_members(path, source.stop_if_asked)
    rejected = [Rejected(name=member.name[-120:], reason=member.refused) for member in members if member.refused]
    groups = _groups(member for member in members if not member.refused)
    store = ExtractedFiles(source.unpacked, [path])
    files: list[MediaFile] = []
    with open_regular(path) as tar:
        for key, group in groups.items():
            source.stop_if_asked()
            found = _sample(tar, key, group, store)
            if isinstance(found, MediaFile):
                files.append(found)
            else:
                rejected.append(found)
    store.save()
    if not files and not rejected:
        raise DatasetError(f"{path.name} holds no files. Pack clips and captions into it: 0001.mp4, 0001.txt.")
    return SourcePart(name=path.name, files=tuple(files), rejected=tuple(rejected), watched=(path,))


def _groups(members: Any) -> dict[str, _Group]:
    groups: dict[str, _Group] = {}
    for member in cast("Sequence[TarMember]", members):
        folder, slash, base = member.name.rpartition("/")
        stem, dot, suffix = base.partition(".")
        if stem:  # others are hidden files, such as ._0001.mp4 of macOS
            groups.setdefault(in_one_form(folder + slash + stem), {})[dot + suffix.lower()] = member
    return groups


def _sample(tar: BinaryIO, key: str, group: _Group, store: ExtractedFiles) -> MediaFile | Rejected:
    media = next((suffix for suffix in group if suffix in _MEDIA), None)
    named = [suffix for suffix in group if _last(suffix) in _MEDIA and not suffix.startswith(_COMPANIONS)]
    if media is None and len(named) > 1:
        several = ", ".join(sorted(named))[:120]
        return Rejected(name=key[-120:], reason=f"has several clips or stills ({several}); keep one per sample")
    media = media or next(iter(named), None)
    if media is None:
        if unread := next((suffix for suffix in group if suffix in OTHER_SUFFIXES), None):
            return Rejected(name=group[unread].name[-120:], reason=f"{unread} files are not read")
        others = ", ".join(sorted(suffix for suffix in group if suffix))[:120]
        return Rejected(name=key[-120:], reason="has no clip and no still" + (f", only {others}" if others else ""))
    if group[media].size > _MAX_MEMBER_BYTES:
        return Rejected(name=group[media].name[-120:], reason="is larger than 16 GiB")
    try:
        caption = _caption(tar, group)
    except DatasetError as error:
        return Rejected(name=group[media].name[-120:], reason=str(error))
    companions = {kind: next((s for s in group if s.startswith(f".{kind}.")), None) for kind in ("control", "mask")}
    return MediaFile(
        path=_extracted(tar, group[media], _last(media), store),
        name=group[media].name,
        caption=caption,
        control=_companion(tar, group, companions["control"], store),
        mask=_companion(tar, group, companions["mask"], store),
    )


def _companion(tar: BinaryIO, group: _Group, suffix: str | None, store: ExtractedFiles) -> Path | None:
    last = _last(suffix) if suffix else ""
    return _extracted(tar, group[suffix], last, store) if suffix and last in _MEDIA else None


def _last(suffix: str) -> str:
    """Returns ".mp4" for ".video.mp4"."""
    return f".{suffix.rpartition('.')[2]}"


def _extracted(tar: BinaryIO, member: TarMember, suffix: str, store: ExtractedFiles) -> Path:
    label = f"{member.name}@{member.offset}"
    return store.find(label) or store.add(label, read_member(tar, member), suffix)


def _caption(tar: BinaryIO, group: _Group) -> str:
    """Returns the caption of a sample, or ""; the message of a DatasetError is a clause about the caption file."""
    suffix = next((suffix for suffix in _CAPTIONS if suffix in group), None)
    suffix = suffix or next((own for last in _CAPTIONS for own in sorted(group) if _last(own) == last), None)
    if suffix is None:
        return ""
    member, limit = group[suffix], _MAX_JSON_BYTES if suffix == ".json" else MAX_CAPTION_BYTES
    if member.size > limit:
        raise DatasetError(f"its {suffix} is longer than {limit >> 10} KiB")
    data = b"".join(read_member(tar, member))
    try:
        text = decoded(data)
    except NotUtf8Error as error:
        raise DatasetError(f"its {suffix} {error}; save it again as UTF-8") from error
    return one_line(_from_json(text)) if suffix == ".json" else one_line(text)


def _from_json(text: str) -> str:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"its .json is not valid ({str(error)[:80]})") from error
    known = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    key = caption_key(known)
    caption = "" if key is None else str(known[key])
    if not is_text(caption):
        raise DatasetError("its .json contains half a character (a lone surrogate)")
    return caption
