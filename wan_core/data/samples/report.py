"""A scan as text, for the dataset node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .caption_report import caption_lines
from .companion_report import companion_lines
from .cut_report import asked_frames, one_per_file, window_lines
from .scan import Sample, ScanResult

__all__ = ["scan_report"]


def scan_report(result: ScanResult) -> str:
    """One fact a line; every rejected file with its reason at the end."""
    config, samples = result.config, one_per_file(result.samples)
    clips = [s for s in samples if s.kind == "clip"]
    stills = len(samples) - len(clips)
    title = config.folder or "dataset"
    lines = [f"{title}: {_count(len(clips), 'clip')}, {_count(stills, 'still')}"]
    if clips:
        lines.append(_frames_line(result, clips))
    if held := [s.name for s in clips if s.cut.held]:
        lines.append(f"one frame short of {config.frame_lengths[0]}, so the last frame is held: {_names(held)}")
    lines += window_lines(config, result.samples)
    lines.append("buckets: " + _tally(str(s.bucket) for s in result.samples))
    if any(s.upscaled for s in samples):
        lines.append("enlarged: " + _names(s.name for s in samples if s.upscaled))
    if any(s.info.interlaced for s in samples):
        combed = _names(s.name for s in samples if s.info.interlaced)
        lines.append(f"interlaced, so combs will be learned (ffmpeg -vf yadif removes them): {combed}")
    lines += caption_lines(config, result.samples)
    lines += companion_lines(result)
    if config.num_repeats > 1:
        lines.append(f"repeats: each {config.num_repeats} times in an epoch")
    if config.weight != 1:
        lines.append(f"weight: {config.weight:g}, how often its files are seen beside those of other datasets")
    lines += result.notes
    if result.rejected:
        lines.append(f"not used: {_count(len(result.rejected), 'file')}")
        lines += [f"  {r.name}: {r.reason}" for r in result.rejected]
    return "\n".join(lines)


def _frames_line(result: ScanResult, clips: list[Sample]) -> str:
    config = result.config
    rates = _tally(f"{s.info.fps:.4g}" for s in clips)
    at = f"{config.read_fps or config.fps:g} fps"
    if config.every_frame:
        at = "their own rate, each frame once"
    line = f"frames: {asked_frames(config)} of each clip at {at}, from {rates} fps"
    variable = [s.name for s in clips if s.info.variable_rate]
    return f"{line}; variable rate: {_names(variable)}" if variable else line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tally(words: Iterable[str]) -> str:
    counts = Counter(words)
    return ", ".join(f"{word} ({count})" for word, count in counts.most_common())


def _names(names: Iterable[str], limit: int = 8) -> str:
    every = list(names)
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest} more" if rest > 0 else "")
