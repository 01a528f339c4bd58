"""Cuts samples out of one file: windows in time, crops, mirroring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..choices import PLAIN, Choice
from ..files import sampled_digest
from ..video import ClipInfo, Framing, VideoProcess, covered_size
from .bucket import Bucket, assign_bucket
from .config import ROLES, DatasetConfig, Reading
from .files import UnfitError
from .known_files import ScanContext
from .sample import Companion, Cut, Sample
from .windows import Window, draw_different, find_windows


def find_bucket(info: ClipInfo, num_frames: int, config: DatasetConfig) -> Bucket | None:
    """Returns the training size of a source; None if crop is none and a side is smaller than the size multiple."""
    if config.crop != "none":
        return assign_bucket(
            info.width,
            info.height,
            num_frames=num_frames,
            width=config.width,
            height=config.height,
            multiple=config.size_multiple,
            enable_bucket=config.enable_bucket,
        )
    # The source's own size, scaled down to at most width x height pixels.
    scale = min(1.0, math.sqrt(config.width * config.height / (info.width * info.height)))
    multiple = config.size_multiple
    width, height = (int(side * scale + 1e-9) // multiple * multiple for side in (info.width, info.height))
    return Bucket(num_frames, height, width) if width and height else None


def find_framings(
    info: ClipInfo, bucket: Bucket, config: DatasetConfig, seed: str, chosen: tuple[float, float] | None = None
) -> list[Framing]:
    """Returns one crop, or up to `config.variants` random crops that take turns. `chosen`: Choice.crop.

    Random crops differ along the cropped axis; a source with the bucket's aspect ratio has a single crop.
    """
    if config.crop == "none":
        return [Framing(native=info.width * info.height <= config.width * config.height)]
    if config.crop == "center" and chosen is None:
        return [Framing()]
    source, wanted = (info.width, info.height), (bucket.width, bucket.height)
    covered = covered_size(source, wanted)
    columns, rows = covered[0] - wanted[0] + 1, covered[1] - wanted[1] + 1
    centre = Framing().place(covered, wanted)
    if chosen is not None:
        place = round(chosen[0] * (columns - 1)), round(chosen[1] * (rows - 1))
        return [Framing(offset=None if place == centre else place)]
    places = [divmod(place, rows) for place in draw_different(seed, "crop", columns * rows, config.variants)]
    return [Framing(offset=None if place == centre else place) for place in places]


_MAX_PIECES = 10_000
"""largest number of windows of a file, because a damaged timestamp may jump by hours"""
_CUT_GUARD_S = 0.0025
"""a window ends at least this many seconds before a cut, because containers round timestamps (Matroska: to 1 ms)"""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One sample of a file: its cut, its bucket, and its turn among samples that take turns by epoch."""

    cut: Cut
    bucket: Bucket
    turn: int = 0
    turns: int = 1
    scenes: int = 1
    shot_s: float | None = None
    """as in Sample"""


@dataclass(frozen=True)
class _Stretch:
    start_s: float
    frames: int
    """at the dataset's fps"""
    held: int = 0
    """number of these frames that repeat the last one"""
    shot_s: float | None = None


def cut_file(
    path: Path,
    info: ClipInfo,
    config: DatasetConfig,
    context: ScanContext,
    cuts_s: Sequence[float] = (),
    choice: Choice = PLAIN,
) -> list[Piece]:
    """Returns all samples of a file, in order of time. `cuts_s`: start times of all scenes but the first, in seconds.

    Samples that take turns may differ in window and crop. With horizontal_flip "turns", each is followed by its mirror
    image, and consecutive epochs train both.
    """
    is_random = "random" in (config.frame_extraction, config.crop)
    # Seeded by content, so that a renamed file keeps its windows and crops, and its cache entries.
    seed: str = context.recall(path, "sampled", lambda: sampled_digest(path)) if is_random else ""
    pieces: list[Piece] = []
    stretches = _stretches(info, config, cuts_s, choice)
    for number, stretch in enumerate(stretches):
        windows = [Window(0, 1)]
        if info.kind != "still":
            windows = find_windows(
                config.frame_extraction,
                stretch.frames,
                config.frame_lengths,
                stride=config.frame_stride,
                count=config.frame_sample,
                variants=config.variants,
                seed=f"{seed}/{number}",
            )
        if len(pieces) + len(windows) > _MAX_PIECES:
            why = f"lasts {info.duration_s:.0f} s and would give more than {_MAX_PIECES} windows; cut it into clips"
            raise UnfitError(why)
        taking_turns = config.frame_extraction == "random" and windows
        for group in [windows] if taking_turns else [[window] for window in windows]:
            pieces += _variants(info, stretch, group, config, f"{seed}/{number}/{group[0].first}", choice)
    if not pieces:
        longest = max(stretch.frames for stretch in stretches)
        why = _too_short(info, config, longest, cuts_s, choice.is_piece)
        raise UnfitError(why, frames=longest, too_short=path, is_piece=choice.is_piece)
    return [replace(piece, scenes=len(stretches)) for piece in pieces]


def _too_short(info: ClipInfo, config: DatasetConfig, available: int, cuts_s: Sequence[float], is_piece: bool) -> str:
    whose = f"has {len(cuts_s) + 1} scenes, the longest of" if cuts_s else "has"
    rate = _reading_fps(info, config)
    at = f" at {rate:.4g} fps"
    source = "" if is_piece or abs(info.fps - rate) < 0.01 else f" ({info.num_frames} at {info.fps:.4g} fps)"
    least = config.frame_lengths[0]
    needed = f"{least}, the shortest of frame_buckets" if config.frame_buckets else f"num_frames {least}"
    whose = f"its chosen piece {whose}" if is_piece else whose
    return f"{whose} {available} frames{at}{source}, fewer than {needed}"


def _reading_fps(info: ClipInfo, config: DatasetConfig) -> float:
    """Returns the frame rate at which a clip is read."""
    if info.kind == "clip" and config.every_frame:
        return info.fps
    return config.read_fps or config.fps


def _stretches(info: ClipInfo, config: DatasetConfig, cuts_s: Sequence[float], choice: Choice) -> list[_Stretch]:
    """Returns the complete clip or its chosen piece, or the scenes in it. The last frame of a clip is repeated if one
    frame is missing."""
    rate = _reading_fps(info, config)
    is_piece = choice.is_piece and info.kind == "clip"
    if not cuts_s and not is_piece:
        available = info.frames_at(rate)
        # Clips often last whole seconds, which is one frame less than 4n+1.
        if info.kind == "clip" and available == config.frame_lengths[0] - 1:
            return [_Stretch(0.0, available + 1, held=1)]
        return [_Stretch(0.0, available)]
    first_s = choice.start_s if is_piece else 0.0
    last_s = min(info.duration_s, first_s + (choice.length_s or info.duration_s)) if is_piece else info.duration_s
    shots_s = (0.0, *cuts_s) if cuts_s else ()
    cuts_s = [cut_s for cut_s in cuts_s if first_s < cut_s < last_s]
    starts, ends = (first_s, *cuts_s), (*cuts_s, None)
    found: list[_Stretch] = []
    for start_s, end_s in zip(starts, ends, strict=True):
        if end_s is None:
            frames = math.ceil((last_s - start_s) * rate - 1e-3)  # 1e-3, because durations are rounded
        else:
            frames = math.ceil((end_s - start_s - _CUT_GUARD_S) * rate)
        shot_s = max((shot_s for shot_s in shots_s if shot_s <= start_s), default=None)
        found.append(_Stretch(start_s, max(0, frames), shot_s=shot_s))
    return found


def _variants(
    info: ClipInfo, stretch: _Stretch, windows: Sequence[Window], config: DatasetConfig, seed: str, choice: Choice
) -> list[Piece]:
    """Returns the samples of one window, or of several windows that take turns."""
    bucket, rate = find_bucket(info, windows[0].num_frames, config), _reading_fps(info, config)
    if bucket is None:
        size, grid = f"{info.width}x{info.height}", config.size_multiple
        raise UnfitError(f"is only {size} pixels, and crop is none: each side needs {grid}")
    framings = find_framings(info, bucket, config, seed, choice.crop)
    count = max(len(windows), len(framings))
    plain = [(windows[turn % len(windows)], framings[turn % len(framings)]) for turn in range(count)]
    mirror = [(window, replace(framing, flip=True)) for window, framing in plain]
    groups = [plain, mirror] if config.horizontal_flip == "both" else [plain]
    if config.horizontal_flip == "turns":
        groups = [[side for pair in zip(plain, mirror, strict=True) for side in pair]]
    return [
        Piece(
            cut=Cut(
                start_s=stretch.start_s + window.first / rate,
                framing=framing,
                fps=0.0 if rate == config.fps else rate,
                held=stretch.held,
            ),
            bucket=bucket,
            turn=turn,
            turns=len(group),
            shot_s=stretch.shot_s,
        )
        for group in groups
        for turn, (window, framing) in enumerate(group)
    ]


def scene_cuts(path: Path, info: ClipInfo, config: DatasetConfig, context: ScanContext) -> Sequence[float]:
    """Returns the start time of every scene after the first, in seconds; empty for a still."""
    if info.kind == "still":
        return ()
    threshold = config.scene_threshold
    return context.recall(
        path,
        f"scenes {threshold:g}",
        lambda: context.video.cuts(path, threshold=threshold, duration_s=info.duration_s),
    )


def read_sample(
    video: VideoProcess, sample: Sample, fps: float, companion: Companion | None = None
) -> NDArray[np.uint8]:
    """Returns (F, H, W, 3) RGB of a sample, or of its companion, which is cut like it but may have another size."""
    own = companion.size if companion is not None else None
    bucket, cut = own or sample.bucket, sample.cut
    is_image = companion is not None and companion.role in ROLES and ROLES[companion.role].reading is Reading.IMAGE
    return video.read(
        sample.path if companion is None else companion.path,
        fps=cut.fps or fps,
        num_frames=bucket.num_frames,
        width=bucket.width,
        height=bucket.height,
        start_s=0.0 if is_image else cut.start_s,
        framing=cut.framing if own is None else Framing(flip=cut.framing.flip),
        held=cut.held if bucket.num_frames == sample.bucket.num_frames else 0,
    )
