"""From files to samples: what each file is, what it says, and the size it will be trained at.

Reads headers, packets and captions, never pixels or weights: everything wrong with a dataset is told before any model
is loaded. Which files there are is decided in `sources`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import DatasetError, Stopped
from ...files import file_identity, lies_under
from ...video import ClipInfo, VideoProcess, shown
from ..bucket import assign_bucket, nearest_frames
from ..sources import (
    LINK_OUTSIDE,
    OTHER_SUFFIXES,
    MediaFile,
    caption_with_trigger,
    folder_files,
    read_caption,
    with_companions,
)
from .companion import accompanied, wanted_companions
from .config import DatasetConfig
from .sample import Rejected, Sample, ScanResult

__all__ = ["Progress", "scan_files", "scan_folder"]

MIN_SOURCE_PIXELS = 16
"""per side"""

Progress = Callable[[int, int, str], None]
"""called with (done, total, name)"""


def scan_folder(
    config: DatasetConfig,
    folder: Path,
    video: VideoProcess,
    *,
    allowed: Sequence[Path] = (),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ScanResult:
    """`scan_files` of the files of `folder` (not its subfolders), sorted by name."""
    files = folder_files(folder)
    return scan_files(config, folder.name, files, video, allowed=allowed, progress=progress, should_stop=should_stop)


def scan_files(
    config: DatasetConfig,
    source: str,
    files: Sequence[MediaFile],
    video: VideoProcess,
    *,
    allowed: Sequence[Path] = (),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ScanResult:
    """Look at each file; `source` is what messages call the dataset.

    Files that are links must lead below their own folder or below one of `allowed` (rules S2, S16). DatasetError when
    nothing can be used, or when captions are missing and there is no trigger word.
    """
    samples: list[Sample] = []
    rejected: list[Rejected] = []
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
            progress(number + 1, len(files), shown(file.path))
    if not samples:
        raise DatasetError(_nothing_left(source, config, rejected))
    _require_captions(config, samples)
    return ScanResult(config=config, samples=tuple(samples), rejected=tuple(rejected))


def _look_at(
    file: MediaFile, config: DatasetConfig, video: VideoProcess, allowed: Sequence[Path]
) -> list[Sample] | Rejected:
    path = file.path
    if not lies_under(path, (path.parent, *allowed)):
        return Rejected(name=shown(path), reason=LINK_OUTSIDE)
    if path.suffix.lower() in OTHER_SUFFIXES:
        return Rejected(name=path.name, reason=f"{path.suffix} files are not read; convert it to mp4 or png")
    try:
        info = video.probe(path)
        identity = file_identity(path)
    except (DatasetError, OSError) as error:
        return Rejected(name=shown(path), reason=str(error).removeprefix(f"{shown(path)} ").rstrip("."))
    if min(info.width, info.height) < MIN_SOURCE_PIXELS:
        return Rejected(name=shown(path), reason=f"is only {info.width}x{info.height} pixels")
    num_frames = 1 if info.kind == "still" else config.num_frames
    available = info.frames_at(config.fps)
    if available < num_frames:
        return Rejected(name=path.name, reason=_too_short(info, config, available), frames=available)
    caption = file.caption
    if caption is None:
        caption = read_caption(path.with_suffix(config.caption_extension), allowed=allowed)
    full = caption_with_trigger(caption, config.trigger_word.strip())
    sample = Sample(
        path=path,
        name=shown(path),
        caption=full,
        caption_from=("file" if full == caption else "file+trigger") if caption else "trigger",
        info=info,
        bucket=assign_bucket(
            info.width,
            info.height,
            num_frames=num_frames,
            width=config.width,
            height=config.height,
            multiple=config.size_multiple,
            enable_bucket=config.enable_bucket,
        ),
        identity=identity,
        repeats=config.num_repeats * file.repeats,
    )
    return [sample]


def _too_short(info: ClipInfo, config: DatasetConfig, available: int) -> str:
    at = f" at {config.fps:g} fps"
    source = "" if abs(info.fps - config.fps) < 0.01 else f" ({info.num_frames} at {info.fps:.4g} fps)"
    return f"has {available} frames{at}{source}, fewer than num_frames {config.num_frames}"


def _nothing_left(source: str, config: DatasetConfig, rejected: list[Rejected]) -> str:
    shown = "; ".join(f"{r.name}: {r.reason}" for r in rejected[:5])
    more = f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
    longest = max(r.frames for r in rejected)
    fix = "Add clips that can be read."
    if longest:
        fix = f"Set num_frames to {nearest_frames(longest)}, or add longer clips."
    return f"No file of dataset folder {source!r} can be used ({shown}{more}). {fix}"


def _require_captions(config: DatasetConfig, samples: list[Sample]) -> None:
    missing = [sample for sample in samples if not sample.caption]
    if missing:
        names = ", ".join(sample.name for sample in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        example = missing[0].path.with_suffix(config.caption_extension).name
        raise DatasetError(
            f"{len(missing)} of {len(samples)} files have no caption: {names}{more}. "
            f"Write {example} with what is seen, or set trigger_word."
        )
