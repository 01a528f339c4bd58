"""What cutting clips to the model's frame rate does to motion, where rates differ by a fifth or more.

Frames are taken by their times, so a clip keeps the speed at which it plays; only how many of its frames are seen
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..sample import Sample
from .files import one_per_file

__all__ = ["off_speed", "speed_lines"]

DIFFERENT = 1.2
"""ratio of frame rates from which it is said"""


def off_speed(samples: Sequence[Sample], fps: float) -> tuple[list[Sample], list[Sample]]:
    """One sample of each clip that is faster than the model's rate by a fifth or more, and of each that is slower."""
    clips = [sample for sample in one_per_file(samples) if sample.kind == "clip" and not sample.cut.fps]
    fast = [sample for sample in clips if sample.info.fps >= fps * DIFFERENT]
    slow = [sample for sample in clips if 0 < sample.info.fps <= fps / DIFFERENT]
    return fast, slow


def speed_lines(samples: Sequence[Sample], fps: float) -> list[str]:
    """Sentences for the report; none when every clip is near the model's rate."""
    fast, slow = ([sample.info.fps for sample in group] for group in off_speed(samples, fps))
    lines: list[str] = []
    if other := [sample.cut.fps for sample in one_per_file(samples) if sample.cut.fps]:
        slowest, fastest = f"{max(other) / fps:.2g}", f"{min(other) / fps:.2g}"
        times = slowest if slowest == fastest else f"{fastest} to {slowest}"
        lines.append(
            f"read at {_tally(other)} frames a second and trained at {fps:g}, as the settings say: motion becomes "
            f"{times} times as slow."
        )
    said = len(lines)
    if fast:
        kept = f"{fps / max(fast):.0%} to {fps / min(fast):.0%}" if max(fast) > min(fast) else f"{fps / fast[0]:.0%}"
        lines.append(
            f"faster than the model's {fps:g} fps: {_tally(fast)} fps. They play at the same speed; {kept} of their "
            "frames are used, the others dropped."
        )
    if slow:
        lines.append(
            f"slower than the model's {fps:g} fps: {_tally(slow)} fps. They play at the same speed; frames are shown "
            f"up to {fps / min(slow):.1f} times, and the model learns to stutter. Leave them out, or interpolate them."
        )
    if len(lines) > said:
        lines.append(
            "If one of them plays too slow or too fast in a player, its stated frame rate is wrong: write it again."
        )
    return lines


def _tally(rates: list[float]) -> str:
    counts = Counter(f"{rate:.4g}" for rate in rates)
    return ", ".join(f"{rate} ({number})" for rate, number in counts.most_common(6))
