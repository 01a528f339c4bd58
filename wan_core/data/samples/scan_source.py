"""From a source file to scanned datasets: its parts with the settings they state, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import ConfigError
from ...video import VideoProcess
from ..sources import SourcePart
from .config import DatasetConfig
from .sample import ScanResult
from .scan import NothingUsableError, Progress, scan_files

__all__ = ["config_of_part", "scan_parts"]


def scan_parts(
    config: DatasetConfig,
    parts: Sequence[SourcePart],
    video: VideoProcess,
    *,
    allowed: Sequence[Path] = (),
    use_settings: bool = True,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[ScanResult, ...]:
    """`scan_files` of each part. What a part states of its own counts more than `config`, unless `use_settings` is off.

    A part of which nothing can be used is named in the notes of the first that is; DatasetError when there is none.
    """
    found: list[ScanResult] = []
    empty: list[tuple[SourcePart, NothingUsableError]] = []
    for part in parts:
        own, notes = config_of_part(config, part) if use_settings else (config, tuple(part.notes))
        try:
            if not part.files:
                raise NothingUsableError(_nothing_named(part))
            found.append(
                scan_files(
                    own,
                    part.name,
                    part.files,
                    video,
                    allowed=allowed,
                    progress=progress,
                    should_stop=should_stop,
                    rejected=part.rejected,
                    notes=notes,
                )
            )
        except NothingUsableError as error:
            empty.append((part, error))
    if not found:
        raise empty[0][1]
    lines = tuple(f"{part.name}: not used: {error}" for part, error in empty)
    return (replace(found[0], notes=(*found[0].notes, *lines)), *found[1:])


def config_of_part(config: DatasetConfig, part: SourcePart) -> tuple[DatasetConfig, tuple[str, ...]]:
    """`config` with what the part states, and the part's notes. ConfigError names the part."""
    titled = {"folder": part.name} if part.settings else {}
    try:
        own = DatasetConfig.from_dict({**config.to_dict(), **titled, **part.settings})
    except ConfigError as error:
        raise ConfigError(f"{part.name}: {error}") from error
    return own, tuple(part.notes)


def _nothing_named(part: SourcePart) -> str:
    reasons = "; ".join(f"{r.name}: {r.reason}" for r in part.rejected[:5])
    more = f"; and {len(part.rejected) - 5} more" if len(part.rejected) > 5 else ""
    return f"No row of {part.name} can be used ({reasons}{more}). Correct the list."
