"""What one source file gives: files with their captions, and what it says about how they are to be trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .media_file import MediaFile, Rejected

__all__ = ["SourcePart", "Stop"]

Stop = Callable[[], bool]


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
