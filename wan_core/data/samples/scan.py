"""From files to samples: what each file is, what it says, and the size it will be trained at.

Reads headers, packets and captions, never pixels or weights: everything wrong with a dataset is told before any model
is loaded. Which files there are is decided in `sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import DatasetError, Stopped
from ...files import FileError, file_identity
from ...video import ClipInfo, VideoProcess, shown
from ..bucket import nearest_frames
from ..sources import (
    LINK_OUTSIDE,
    OTHER_SUFFIXES,
    MediaFile,
    files_of_folder,
    leads_outside,
    read_caption,
    with_companions,
)
from .caption_turns import captions_of, source_of_caption, with_captions, without_captionless
from .companion import accompanied, wanted_companions
from .config import DatasetConfig
from .cutting import MAX_PIECES, Piece, TooMany, TooShort, TooSmall, cut_file, reading_fps
from .sample import Rejected, Sample, ScanResult
from .scenes import scene_cuts

__all__ = ["NothingUsableError", "Progress", "scan_files", "scan_folder"]

MIN_SOURCE_PIXELS = 16
"""per side"""

Progress = Callable[[int, int, str], None]
"""called with (done, total, name)"""


class NothingUsableError(DatasetError):
    """No file of a dataset is left; the message names the first ones with their reasons."""


def scan_folder(
    config: DatasetConfig,
    folder: Path,
    video: VideoProcess,
    *,
    allowed: Sequence[Path] = (),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ScanResult:
    """`scan_files` of the files of `folder`, sorted by name; of its subfolders too where the config says recursive."""
    found = files_of_folder(folder, recursive=config.recursive, allowed=allowed)
    return scan_files(
        config,
        folder.name,
        found.files,
        video,
        allowed=allowed,
        progress=progress,
        should_stop=should_stop,
        rejected=found.rejected,
        notes=found.notes,
    )


def scan_files(
    config: DatasetConfig,
    source: str,
    files: Sequence[MediaFile],
    video: VideoProcess,
    *,
    allowed: Sequence[Path] = (),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    rejected: Sequence[Rejected] = (),
    notes: Sequence[str] = (),
) -> ScanResult:
    """Look at each file; `source` is what messages call the dataset, `rejected` and `notes` what it said itself.

    Files that are links must lead below their own folder or below one of `allowed` (rules S2, S16). DatasetError when
    nothing can be used. Files whose caption is missing are samples, so that all of them can be shown;
    `Dataset.require_captions` refuses to encode them.
    """
    samples: list[Sample] = []
    rejected = list(rejected)
    files = with_companions(files, wanted_companions(config))
    for number, file in enumerate(files):
        if should_stop is not None and should_stop():
            raise Stopped(f"Stopped while scanning {source}.")
        found = accompanied(_look_at(file, config, video, allowed), file, config, video, allowed)
        if isinstance(found, Rejected):
            rejected.append(found)
        else:
            samples += found
        if progress is not None:
            progress(number + 1, len(files), file.shown_name)
    samples, without_caption = without_captionless(config, samples)
    rejected += without_caption
    if not samples:
        raise NothingUsableError(_nothing_left(source, config, rejected))
    return ScanResult(config=config, samples=tuple(samples), rejected=tuple(rejected), notes=tuple(notes))


def _look_at(
    file: MediaFile, config: DatasetConfig, video: VideoProcess, allowed: Sequence[Path]
) -> list[Sample] | Rejected:
    path, name = file.path, file.shown_name
    if leads_outside(path, allowed):
        return Rejected(name=name, reason=LINK_OUTSIDE)
    if path.is_dir():
        return Rejected(name=name, reason="is a folder; recursive in Wan Dataset Settings takes what is in it")
    if path.suffix.lower() in OTHER_SUFFIXES:
        return Rejected(name=name, reason=f"{path.suffix} files are not read; convert it to mp4 or png")
    try:
        info = video.probe(path)
        identity = file_identity(path)
    except (DatasetError, OSError) as error:
        return Rejected(name=name, reason=str(error).removeprefix(f"{shown(path)} ").rstrip("."))
    pieces = _cut(path, info, config, video)
    if isinstance(pieces, Rejected):
        return pieces
    caption = file.caption
    try:
        if caption is None:
            caption = read_caption(path.with_suffix(config.caption_extension), allowed=allowed)
    except DatasetError as error:
        return Rejected(name=name, reason=f"its caption {str(error).rstrip('.')}")
    samples = [
        Sample(
            path=path,
            name=name,
            caption="",
            caption_from=source_of_caption(caption, config, "file" if file.caption is None else "list"),
            info=info,
            bucket=piece.bucket,
            identity=identity,
            cut=piece.cut,
            repeats=config.num_repeats * file.repeats,
            turn=piece.turn,
            turns=piece.turns,
            scenes=piece.scenes,
            weight=config.weight * file.weight,
        )
        for piece in pieces
    ]
    return with_captions(samples, captions_of((caption, *file.more_captions), config))


def _cut(path: Path, info: ClipInfo, config: DatasetConfig, video: VideoProcess) -> list[Piece] | Rejected:
    if min(info.width, info.height) < MIN_SOURCE_PIXELS:
        return Rejected(name=shown(path), reason=f"is only {info.width}x{info.height} pixels")
    cuts_s: Sequence[float] = ()
    try:
        if config.split_scenes:
            cuts_s = scene_cuts(path, info, config, video)
        return cut_file(path, info, config, cuts_s)
    except (DatasetError, FileError) as error:
        return Rejected(name=shown(path), reason=str(error).removeprefix(f"{shown(path)} ").rstrip("."))
    except TooShort as short:
        return Rejected(name=path.name, reason=_too_short(info, config, short.frames, cuts_s), frames=short.frames)
    except TooMany:
        reason = f"lasts {info.duration_s:.0f} s and would give more than {MAX_PIECES} windows; cut it into clips"
        return Rejected(name=shown(path), reason=reason)
    except TooSmall:
        size, grid = f"{info.width}x{info.height}", config.size_multiple
        return Rejected(name=shown(path), reason=f"is only {size} pixels, and crop is none: each side needs {grid}")


def _too_short(info: ClipInfo, config: DatasetConfig, available: int, cuts_s: Sequence[float]) -> str:
    whose = f"has {len(cuts_s) + 1} scenes, the longest of" if cuts_s else "has"
    rate = reading_fps(info, config)
    at = f" at {rate:.4g} fps"
    source = "" if abs(info.fps - rate) < 0.01 else f" ({info.num_frames} at {info.fps:.4g} fps)"
    return f"{whose} {available} frames{at}{source}, fewer than {_shortest(config)}"


def _shortest(config: DatasetConfig) -> str:
    """What a clip must have, as a clause."""
    shortest = config.frame_lengths[0]
    if config.frame_buckets:
        return f"{shortest}, the shortest of frame_buckets"
    return f"num_frames {shortest}"


def _nothing_left(source: str, config: DatasetConfig, rejected: list[Rejected]) -> str:
    shown = "; ".join(f"{r.name}: {r.reason}" for r in rejected[:5])
    more = f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
    longest = max(r.frames for r in rejected)
    fix = "Add clips that can be read."
    if longest:
        setting = "frame_buckets" if config.frame_buckets else "num_frames"
        fix = f"Set {setting} to {nearest_frames(longest)}, or add longer clips."
    return f"No file of dataset folder {source!r} can be used ({shown}{more}). {fix}"
