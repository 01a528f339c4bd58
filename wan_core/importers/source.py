"""A source file, and its columns, by the user's or by usual names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ..config import Config
from ..dataset.captions import CAPTION_KEYS
from ..errors import DatasetError, stop_if

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
    """Column names; empty: the first usual name that exists."""

    path: str = ""
    """column of the media file's path, relative to the folder of the list"""
    caption: str = ""
    repeats: str = ""
    """column: how often an epoch has the file"""
    weight: str = ""
    control: str = ""
    """column: path of the control video or picture"""
    mask: str = ""
    """column: path of the loss mask"""


def columns_of(there: Collection[str], named: Columns, name: str) -> dict[str, str]:
    """Returns role -> column; DatasetError if a named column does not exist, or there is no column of paths."""
    found: dict[str, str] = {}
    # Reversed, so that the first of several columns wins that differ only in case.
    lower = {column.lower().strip(): column for column in reversed(list(there))}
    for field in fields(Columns):
        wanted = getattr(named, field.name)
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
    """A source file, and the settings for reading it."""

    path: Path
    columns: Columns = Columns()
    allowed: Sequence[Path] = ()
    """folders that every file must be below"""
    beside: Sequence[Path] = ()
    """additional folders that are searched for the folders in another trainer's settings"""
    unpacked: Path | None = None
    """folder into which media files of a tar or table are extracted"""
    size_multiple: int = 16
    """number of pixels by which both sides of a clip are divisible"""
    fps: float = 16.0
    """frame rate to which clips are resampled"""
    should_stop: Stop | None = None

    def stop_if_asked(self) -> None:
        """Raises Stopped if a stop was requested."""
        stop_if(self.should_stop, f"reading {self.path.name}")
