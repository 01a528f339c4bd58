"""A source file as it is asked for: where it lies, and which of its columns is what.

Columns go by name where the user says so, otherwise by the names that are in use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..config import Config
from ..dataset.captions import CAPTION_KEYS
from ..errors import DatasetError, Stopped

_USUAL: dict[str, tuple[str, ...]] = {
    "path": (
        *("file", "path", "video", "media", "file_name", "filename", "file_path", "filepath"),
        *("video_path", "image_path", "media_path", "image", "clip", "mp4", "png", "jpg"),
    ),
    "caption": (*CAPTION_KEYS, "captions", "txt"),
    "repeats": ("repeats", "num_repeats"),
    "weight": ("weight",),
    "control": ("control", "control_path", "control_video"),
    "mask": ("mask", "mask_path"),
}


@dataclass(frozen=True, kw_only=True)
class Columns(Config):
    """Names of columns; empty means the first usual name that is there."""

    path: str = ""
    """of the media file, relative to the folder of the list"""
    caption: str = ""
    repeats: str = ""
    """how often the file is seen in one epoch"""
    weight: str = ""
    control: str = ""
    """of the control video or picture"""
    mask: str = ""
    """of the loss mask"""


def columns_of(there: Collection[str], asked: Columns, name: str) -> dict[str, str]:
    """Role -> column for the columns of the list called `name`.

    DatasetError when an asked column is not there, or none holds paths.
    """
    found: dict[str, str] = {}
    lower = {column.lower().strip(): column for column in reversed(list(there))}
    for field in fields(Columns):
        wanted = getattr(asked, field.name)
        if wanted and wanted not in there:
            raise DatasetError(f'{name} has no column "{wanted[:80]}". It has: {_listed(there)}.')
        usual = next((lower[column] for column in _USUAL[field.name] if column in lower), "")
        if wanted or usual:
            found[field.name] = wanted or usual
    if "path" not in found:
        raise DatasetError(
            f'{name} has no column with the paths of files. It has: {_listed(there)}. Call it "file", or name it in '
            "path_column."
        )
    return found


def _listed(names: Collection[str]) -> str:
    shown = [repr(name[:40]) for name in list(names)[:12]]
    return ", ".join(shown) + (" ..." if len(names) > 12 else "") or "nothing"


Stop = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A source file, and how it is read."""

    path: Path
    columns: Columns = Columns()
    allowed: Sequence[Path] = ()
    """every file must lie below one of these"""
    beside: Sequence[Path] = ()
    """where settings of other trainers look for a folder that is not beside them"""
    unpacked: Path | None = None
    """where media files are laid down that lie inside a tar or a table"""
    size_multiple: int = 16
    """both sides of what is trained are multiples of this"""
    fps: float = 16.0
    """frames per second clips are resampled to"""
    should_stop: Stop | None = None

    def stop_if_asked(self) -> None:
        """Stopped when somebody asked for it."""
        if self.should_stop is not None and self.should_stop():
            raise Stopped(f"Stopped while reading {self.path.name}.")
