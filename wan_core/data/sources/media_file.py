"""Which files a dataset consists of, before any of them is opened: a folder's own, or those that a list names."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import DatasetError
from ...files import file_identity
from ...video import shown

__all__ = [
    "CLIP_SUFFIXES",
    "COMPANION_FOLDERS",
    "OTHER_SUFFIXES",
    "STILL_SUFFIXES",
    "MediaFile",
    "Rejected",
    "folder_files",
    "folder_fingerprint",
    "media_names",
]

CLIP_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif"})
STILL_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
OTHER_SUFFIXES = frozenset(
    [
        ".wmv",
        ".flv",
        ".ts",
        ".mts",
        ".m2ts",
        ".mpg",
        ".mpeg",
        ".3gp",
        ".ogv",
        ".vob",
        ".heic",
        ".heif",
        ".avif",
        ".tif",
        ".tiff",
        ".jxl",
        ".svg",
        ".m3u8",
        ".asf",
        ".f4v",
        ".mxf",
        ".y4m",
        ".jfif",
    ]
)
"""Media that is not read: named in the report instead of ignored."""


COMPANION_FOLDERS = {"control": "control", "controls": "control", "mask": "mask", "masks": "mask"}
"""folders beside clips whose files go with the clips of the same name, and as what"""


@dataclass(frozen=True, kw_only=True)
class MediaFile:
    """One file that a dataset names."""

    path: Path
    caption: str | None = None
    """None: it stands in the caption file beside the media file"""
    repeats: int = 1
    """how often it is seen in one epoch; multiplies num_repeats"""
    weight: float = 1.0
    """multiplies the weight of its dataset"""
    control: Path | None = None
    """control video of VACE and Fun-Control models; None: looked for beside the file where one is needed"""
    mask: Path | None = None
    """mask video or picture; None: looked for beside the file where masks are used"""
    name: str = ""
    """what messages call it; empty: the name of the file"""
    more_captions: tuple[str, ...] = ()
    """further captions that take turns with `caption`, one an epoch"""

    @property
    def shown_name(self) -> str:
        """The name for messages, short and without control characters (S15)."""
        return "".join(c if c.isprintable() else "?" for c in self.name)[:120] or shown(self.path)


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file, or a row of a list, that is not trained on, and why."""

    name: str
    reason: str
    frames: int = 0
    """frames it would give, where that is the reason"""


def folder_fingerprint(folder: Path) -> str:
    """Changes when a file of the folder (or of its folders of control and mask videos) is added, removed, edited or
    replaced; reads no content.
    """
    digest = hashlib.sha256()
    beside = (folder / name for name in COMPANION_FOLDERS)
    for place in (folder, *(place for place in beside if place.is_dir())):
        for entry in sorted(os.scandir(place), key=lambda e: e.name):
            if entry.is_file():
                digest.update(repr(file_identity(Path(entry.path))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def folder_files(folder: Path) -> list[MediaFile]:
    """The media files directly in `folder`, sorted by name; DatasetError when there are none."""
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DatasetError(f"Dataset folder {folder.name!r} {problem}. Choose a folder that holds clips.")
    names = media_names(folder)
    if not names:
        kinds = " ".join(sorted(suffix[1:] for suffix in CLIP_SUFFIXES | STILL_SUFFIXES))
        raise DatasetError(f"Dataset folder {folder.name!r} holds no clips or stills. Put files into it ({kinds}).")
    return [MediaFile(path=folder / name) for name in (*names, *folders_like_media(folder))]


def folders_like_media(folder: Path) -> list[str]:
    """Folders called like clips, such as "take.mp4": named in the report, not passed over."""
    known = CLIP_SUFFIXES | STILL_SUFFIXES
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in known and not entry.name.startswith(".") and os.path.isdir(entry.path)
        )


def media_names(folder: Path) -> list[str]:
    """Names of the media files directly in `folder`, sorted; hidden ones are left out."""
    known = CLIP_SUFFIXES | STILL_SUFFIXES | OTHER_SUFFIXES
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in known
            and not entry.name.startswith(".")
            and not os.path.isdir(entry.path)
        )
