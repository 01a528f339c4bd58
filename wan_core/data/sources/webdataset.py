"""A WebDataset: a tar in which the files of one sample stand together under one name, `0001.mp4`, `0001.txt`.

Clips and stills are laid down in the cache folder by content; captions are read from the tar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from ...errors import DatasetError
from ...files import open_regular
from .captions import CAPTION_KEYS, MAX_CAPTION_BYTES, one_line
from .extracted import ExtractedFiles
from .media_file import CLIP_SUFFIXES, OTHER_SUFFIXES, STILL_SUFFIXES, MediaFile, Rejected
from .part import SourceFile, SourcePart
from .tar_members import TarMember, read_member, tar_members
from .utf8 import NotUtf8Error, decoded

__all__ = ["read_webdataset"]

_MAX_JSON_BYTES = 1 << 20
_MAX_MEMBER_BYTES = 16 << 30
_CAPTIONS = (".txt", ".caption", ".cap", ".json")
_MEDIA = CLIP_SUFFIXES | STILL_SUFFIXES
_COMPANIONS = (".control.", ".mask.")

_Group = dict[str, TarMember]
"""".mp4" -> member; a control video stands under ".control.mp4" """


def read_webdataset(source: SourceFile) -> SourcePart:
    """The samples of a tar. Entries that are no regular files, and samples without media, are named."""
    path = source.path
    if source.unpacked is None:
        raise DatasetError(f"{path.name} has to be unpacked, and no folder is named for that.")
    members = tar_members(path)
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
        if stem:  # a hidden file is none of ours
            groups.setdefault(folder + slash + stem, {})[dot + suffix.lower()] = member
    return groups


def _sample(tar: BinaryIO, key: str, group: _Group, store: ExtractedFiles) -> MediaFile | Rejected:
    media = next((suffix for suffix in group if suffix in _MEDIA), None)
    named = [suffix for suffix in group if _last(suffix) in _MEDIA and not suffix.startswith(_COMPANIONS)]
    if media is None and len(named) > 1:
        several = ", ".join(sorted(named))[:120]
        return Rejected(name=key[-120:], reason=f"has several clips or stills ({several}); keep one a sample")
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
        path=_laid_down(tar, group[media], _last(media), store),
        name=group[media].name,
        caption=caption,
        control=_companion(tar, group, companions["control"], store),
        mask=_companion(tar, group, companions["mask"], store),
    )


def _companion(tar: BinaryIO, group: _Group, suffix: str | None, store: ExtractedFiles) -> Path | None:
    last = _last(suffix) if suffix else ""
    return _laid_down(tar, group[suffix], last, store) if suffix and last in _MEDIA else None


def _last(suffix: str) -> str:
    """ ".mp4" of ".video.mp4" """
    return f".{suffix.rpartition('.')[2]}"


def _laid_down(tar: BinaryIO, member: TarMember, suffix: str, store: ExtractedFiles) -> Path:
    label = f"{member.name}@{member.offset}"
    return store.find(label) or store.add(label, read_member(tar, member), suffix)


def _caption(tar: BinaryIO, group: _Group) -> str:
    """The caption of a sample, "" where it has none; DatasetError is a clause about the caption file."""
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
        raise DatasetError(f"its {suffix} {error}") from error
    return one_line(_from_json(text)) if suffix == ".json" else one_line(text)


def _from_json(text: str) -> str:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"its .json is not valid ({str(error)[:80]})") from error
    known = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    caption = next((known[name] for name in CAPTION_KEYS if isinstance(known.get(name), str)), "")
    try:
        caption.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DatasetError("its .json holds half of a character (a lone surrogate)") from error
    return caption
