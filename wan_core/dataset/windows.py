"""The stretches of a clip that are trained on: pure arithmetic on frame numbers at the dataset's rate.

A stretch here is a whole clip, or one scene of it. Its frame k is what a player shows k / fps seconds after it begins,
so a window of n frames that begins at frame k lasts from k / fps to (k + n) / fps, whatever the file's own rate.

Random windows are drawn from hashes of a file's content, so renaming a file, or adding others, moves no window and no
crop, and no cache entry is made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


def draw_different(seed: str, purpose: str, below: int, count: int) -> list[int]:
    """Up to `count` different numbers from 0 to `below` - 1; all of them where there are not more.

    A larger `count` begins with the same numbers.
    """
    wanted = min(below, count)
    found: dict[int, None] = {}
    number = 0
    while len(found) < wanted:
        digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
        found[int.from_bytes(digest, "big") % below] = None
        number += 1
    return list(found)


FRAME_EXTRACTIONS = ("head", "chunk", "slide", "uniform", "full", "random")
FRAME_ROUNDINGS = ("refuse", "down", "nearest")


@dataclass(frozen=True)
class Window:
    """`num_frames` frames from frame `first` of a stretch on."""

    first: int
    num_frames: int


def round_frames(num_frames: int, rounding: str) -> int:
    """`num_frames` as a 4n+1: the one below, or the nearest (the one below when both are two away).

    "refuse" returns it as it is; whoever asked checks it.
    """
    if rounding == "refuse":
        return num_frames
    below = max(1, (num_frames - 1) // 4 * 4 + 1)
    return below + 4 if rounding == "nearest" and num_frames - below > 2 else below


def find_windows(
    mode: str, available: int, lengths: Sequence[int], *, stride: int, count: int, variants: int, seed: str
) -> list[Window]:
    """The windows of a stretch of `available` frames; empty when not even the shortest of `lengths` fits.

    `lengths` rise. Each window has the longest of them that fits:

    - head: one window, from frame 0 on.
    - chunk: from frame 0 on, each begins where the last one ended, as long as the shortest length fits.
    - slide: all of one length, beginning at frames 0, stride, 2 * stride ... as long as they fit.
    - uniform: `count` of one length; the first begins at frame 0, the last ends at the end, the others lie evenly
      between (to whole frames). One alone is the first. Where fewer beginnings exist, each is taken once.
    - full: head; `lengths` then holds every 4n+1 up to the longest wanted.
    - random: up to `variants` of one length at different places drawn from `seed`, which take turns. More variants
      leave the places of the first ones as they are.
    """
    if not (fitting := [length for length in lengths if length <= available]):
        return []
    longest = fitting[-1]
    last = available - longest
    if mode == "chunk":
        return _chunks(available, lengths)
    if mode == "slide":
        return [Window(first, longest) for first in range(0, last + 1, stride)]
    if mode == "uniform":
        places = {round(last * number / (count - 1)) for number in range(count)} if count > 1 else {0}
        return [Window(first, longest) for first in sorted(places)]
    if mode == "random":
        return [Window(first, longest) for first in draw_different(seed, "window", last + 1, variants)]
    return [Window(0, longest)]


def _chunks(available: int, lengths: Sequence[int]) -> list[Window]:
    windows: list[Window] = []
    first = 0
    while fitting := [length for length in lengths if length <= available - first]:
        windows.append(Window(first, fitting[-1]))
        first += fitting[-1]
    return windows
