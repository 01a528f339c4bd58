"""Which files a dataset consists of, before any of them is opened: a folder's own, or those that a list names."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import DatasetError
from ...files import file_identity

__all__ = [
    "CLIP_SUFFIXES",
    "COMPANION_FOLDERS",
    "OTHER_SUFFIXES",
    "STILL_SUFFIXES",
    "MediaFile",
    "folder_files",
    "folder_fingerprint",
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
    control: Path | None = None
    """control video of VACE and Fun-Control models; None: looked for beside the file where one is needed"""
    mask: Path | None = None
    """mask video or picture; None: looked for beside the file where masks are used"""


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
    known = CLIP_SUFFIXES | STILL_SUFFIXES | OTHER_SUFFIXES
    with os.scandir(folder) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in known
            and not entry.name.startswith(".")
            and not os.path.isdir(entry.path)
        )
    if not names:
        kinds = " ".join(sorted(suffix[1:] for suffix in CLIP_SUFFIXES | STILL_SUFFIXES))
        raise DatasetError(f"Dataset folder {folder.name!r} holds no clips or stills. Put files into it ({kinds}).")
    return [MediaFile(path=folder / name) for name in names]
