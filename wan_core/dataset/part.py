"""What is asked of a source file, and what it gives: files with captions, and how they are to be trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Stopped
from ..importers.source import Columns
from .files import MediaFile, Rejected

__all__ = ["SourceFile", "SourcePart", "Stop"]

Stop = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """What is read, and how."""

    path: Path
    columns: Columns = Columns()
    allowed: Sequence[Path] = ()
    """every file must lie below one of these"""
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


@dataclass(frozen=True, kw_only=True)
class SourcePart:
    """One dataset of a source file: a list is one, settings of another trainer may be several."""

    name: str
    """what messages call it"""
    files: tuple[MediaFile, ...]
    rejected: tuple[Rejected, ...] = ()
    """rows and files that cannot be used, found before any media file was opened"""
    notes: Sequence[str] = ()
    """sentences for the report"""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of DatasetConfig that the source states"""
    watched: tuple[Path, ...] = ()
    """files and folders whose change is a change of the dataset, beside `files` themselves"""
