"""Windows of a clip, in frames at the dataset's fps.

A stretch is a complete clip or one scene. Frame k of a stretch is the picture at k / fps seconds after its start, for
any frame rate of the file. Random windows are drawn from a hash of the file's content, so renaming or adding files
changes no window and no cache key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from .bucket import nearest_frames


def draw_different(seed: str, purpose: str, below: int, count: int) -> list[int]:
    """Returns up to `count` different random numbers below `below`; a larger `count` appends numbers."""
    wanted = min(below, count)
    found: dict[int, None] = {}
    number = 0
    while len(found) < wanted:
        digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
        # A dict ignores a repeated number, and the next one is drawn.
        found[int.from_bytes(digest, "big") % below] = None
        number += 1
    return list(found)


FRAME_EXTRACTIONS = ("head", "chunk", "slide", "uniform", "full", "random")
FRAME_ROUNDINGS = ("refuse", "down", "nearest")


@dataclass(frozen=True)
class Window:
    """`num_frames` frames from frame `first` of a stretch."""

    first: int
    num_frames: int


def round_frames(num_frames: int, rounding: str) -> int:
    """Returns `num_frames` as 4n+1, "down" or to the "nearest" (a tie rounds down); unchanged for "refuse"."""
    if rounding == "refuse":
        return num_frames
    below = nearest_frames(num_frames)
    return below + 4 if rounding == "nearest" and num_frames - below > 2 else below


def find_windows(
    mode: str, available: int, lengths: Sequence[int], *, stride: int, count: int, variants: int, seed: str
) -> list[Window]:
    """Returns the windows of a stretch of `available` frames; [] if none of `lengths` (ascending) fits.

    A window has the longest of `lengths` that fits. Modes:
    - head: one window at frame 0.
    - chunk: windows back to back from frame 0, while the shortest length fits.
    - slide: windows at frames 0, stride, 2 * stride ...
    - uniform: up to `count` windows, evenly spaced from the start to the end.
    - full: as head; `lengths` has every 4n+1 up to the longest.
    - random: up to `variants` windows drawn from `seed`, which take turns. More variants keep the first ones.
    """
    if not (fitting := [length for length in lengths if length <= available]):
        return []
    longest = fitting[-1]
    last = available - longest
    if mode == "chunk":
        windows, first = list[Window](), 0
        while fitting := [length for length in lengths if length <= available - first]:
            windows.append(Window(first, fitting[-1]))
            first += fitting[-1]
        return windows
    if mode == "slide":
        return [Window(first, longest) for first in range(0, last + 1, stride)]
    if mode == "uniform":
        places = {round(last * number / (count - 1)) for number in range(count)} if count > 1 else {0}
        return [Window(first, longest) for first in sorted(places)]
    if mode == "random":
        return [Window(first, longest) for first in draw_different(seed, "window", last + 1, variants)]
    return [Window(0, longest)]
