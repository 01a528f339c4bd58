"""What of the clips is used and what is left over, as lines of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...video import covered_size
from .config import DatasetConfig
from .sample import Sample
from .windows import round_frames

__all__ = ["asked_frames", "one_per_file", "unused_s", "window_lines"]


def one_per_file(samples: Sequence[Sample]) -> list[Sample]:
    """The first sample of each file; of a file listed with several captions, the first of each."""
    firsts: dict[tuple[Path, str], Sample] = {}
    for sample in samples:
        if sample.turn == 0:
            firsts.setdefault((sample.path, sample.caption), sample)
    return list(firsts.values())


def asked_frames(config: DatasetConfig) -> str:
    """The lengths asked for, and what became of those that are not 4n+1: '73 (75 rounded down)'."""
    asked = sorted(set(config.frame_buckets)) or [config.num_frames]
    lengths = ", ".join(_rounded(length, config) for length in asked)
    return f"up to {lengths}" if config.frame_extraction == "full" else lengths


def _rounded(length: int, config: DatasetConfig) -> str:
    used = round_frames(length, config.frame_rounding)
    if used == length:
        return str(used)
    return f"{used} ({length} rounded {'down' if used < length else 'up'})"


def window_lines(config: DatasetConfig, samples: Sequence[Sample]) -> list[str]:
    """Windows per clip and the seconds none of them covers, crops, mirroring, turns; nothing where all is default."""
    clips = [sample for sample in samples if sample.kind == "clip"]
    lines: list[str] = []
    if clips and (config.frame_extraction != "head" or config.split_scenes):
        lines.append(_windows_line(config, clips))
    if config.split_scenes and clips:
        scenes = {sample.path: sample.scenes for sample in clips}
        lines.append(f"scenes: {sum(scenes.values())} in {_files(len(scenes), 'clip')}; no window crosses a cut")
    lines += _picture_lines(config, samples)
    if (turns := max(sample.turns for sample in samples)) > 1:
        seen = sum(sample.turn == 0 for sample in samples)
        lines.append(f"turns: {len(samples)} samples cached, {seen} seen in one epoch; up to {turns} take turns")
    return lines


def _windows_line(config: DatasetConfig, clips: Sequence[Sample]) -> str:
    windows: dict[Path, set[tuple[float, int]]] = {}
    for sample in clips:
        windows.setdefault(sample.path, set()).add((sample.cut.start_s, sample.bucket.num_frames))
    counts = [len(found) for found in windows.values()]
    each = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
    total_s = sum({sample.path: sample.info.duration_s for sample in clips}.values())
    left_s = sum(unused_s(clips, config.fps).values())
    of = f"{sum(counts)} of {_files(len(counts), 'clip')}"
    return f"windows: {config.frame_extraction}, {of} ({each} of each); {left_s:.1f} of {total_s:.1f} s in none of them"


def unused_s(clips: Sequence[Sample], fps: float) -> dict[Path, float]:
    """Of each clip, the seconds that no window covers."""
    spans: dict[Path, list[tuple[float, float]]] = {}
    for sample in clips:
        start_s = sample.cut.start_s
        rate = sample.cut.fps or fps
        spans.setdefault(sample.path, []).append((start_s, start_s + sample.bucket.num_frames / rate))
    durations_s = {sample.path: sample.info.duration_s for sample in clips}
    return {path: max(0.0, durations_s[path] - _covered_s(found)) for path, found in spans.items()}


def _covered_s(spans: Sequence[tuple[float, float]]) -> float:
    covered, reached = 0.0, 0.0
    for start_s, end_s in sorted(spans):
        covered += max(0.0, end_s - max(start_s, reached))
        reached = max(reached, end_s)
    return covered


def _picture_lines(config: DatasetConfig, samples: Sequence[Sample]) -> list[str]:
    lines: list[str] = []
    if config.crop == "none":
        shrunk = len({sample.path for sample in samples if not sample.cut.framing.native})
        scaled = f"; {_files(shrunk)} scaled down to {config.width}x{config.height} in area" if shrunk else ""
        lines.append(f"crop: none, each at its own size{scaled}")
    if config.crop == "random":
        still = len({sample.path for sample in samples if not _has_room(sample)})
        lines.append(
            "crop: random" + (f"; {_files(still)} of the bucket's own shape: nothing to move" if still else "")
        )
    if config.horizontal_flip == "both":
        lines.append("mirrored: every sample also left to right")
    if config.horizontal_flip == "turns":
        lines.append("mirrored: every second epoch")
    return lines


def _has_room(sample: Sample) -> bool:
    wanted = sample.bucket.width, sample.bucket.height
    return covered_size((sample.info.width, sample.info.height), wanted) != wanted


def _files(number: int, noun: str = "file") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
