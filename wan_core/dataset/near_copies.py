"""Finds identical and near-identical files, which are only reported.

Identical files have the same size and digest. Near copies: 64-bit hashes of the first frame (`look_of`) select pairs;
then small pictures of the first and middle frame are correlated at several crops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetError
from ..files import FileError
from ..video import LOOK_SIZE, VideoProcess, look_of
from .known_files import KnownFiles
from .sample import Sample, one_per_file

_NEAR_BITS = 12
"""largest number of differing bits, of 64, in a selected pair. Of 200 shapeworld clips, all re-encoded, scaled or 3 %
cropped copies pass, and nine of ten copies cropped by 5 %"""
_NEAR_CORRELATION = 0.96
"""smallest correlation of both pictures in a copy. Of 19,900 pairs of different shapeworld clips, the highest
correlation is 0.948. Copies are above 0.964; at JPEG quality 40, 19 of 20 are above 0.971"""
_CROPS = (0.0, 0.02, 0.04, 0.06)
"""shares cropped from each side of either picture before correlating"""
_SIDE = 64
_SAME_LENGTH = 0.05
"""largest relative difference of durations: containers and encoders round them differently"""

DigestOf = Callable[[Path], str]


@dataclass(frozen=True)
class NearTwins:
    """Groups of similar files."""

    groups: tuple[tuple[Sample, ...], ...]
    left_out: int = 0
    """number of files that were not compared, for lack of time"""


def byte_twins(samples: Sequence[Sample], digest_of: DigestOf) -> list[tuple[Sample, ...]]:
    """Returns groups of files with the same bytes, in order."""
    by_size: dict[int, list[Sample]] = {}
    for sample in one_per_file(samples):
        by_size.setdefault(sample.mark[0], []).append(sample)
    by_digest: dict[str, list[Sample]] = {}
    for sample in (sample for group in by_size.values() if len(group) > 1 for sample in group):
        try:
            by_digest.setdefault(digest_of(sample.path), []).append(sample)
        except (FileError, DatasetError):
            continue  # the file was changed or deleted since the scan; encoding reports that
    return [tuple(group) for group in by_digest.values() if len(group) > 1]


def near_twins(
    samples: Sequence[Sample], video: VideoProcess, *, allowed_s: float, known: KnownFiles | None = None
) -> NearTwins:
    """Returns groups of files with similar first and middle frames, cached in `known`. Takes about `allowed_s` seconds
    at most.
    """
    files = one_per_file(samples)

    def find() -> tuple[list[list[int]], int]:
        return _found_among(files, _Pictures(video, time.monotonic() + allowed_s, known))

    how = f"copies within {allowed_s:g} s: {_NEAR_BITS} bits, {_NEAR_CORRELATION}, {_CROPS}, {_SAME_LENGTH}"
    groups, left_out = find() if known is None else known.search((sample.path for sample in files), how, find)
    return NearTwins(tuple(tuple(files[number] for number in group) for group in groups), left_out)


def _found_among(files: Sequence[Sample], pictures: _Pictures) -> tuple[list[list[int]], int]:
    """Returns groups of places in `files`, and the number of files that were not compared."""
    found = [(place, int(look, 16)) for place, sample in enumerate(files) if (look := pictures.look(sample))]
    looks = np.array([look for _, look in found], np.uint64)
    group_of = np.arange(len(found))
    for row, (place, _) in enumerate(found):
        close = row + 1 + np.flatnonzero(_ones(looks[row + 1 :] ^ looks[row]) <= _NEAR_BITS)
        for column in [row, *close[group_of[close] != group_of[row]].tolist()]:
            if pictures.over:
                pictures.late |= {files[late].path for late, _ in found[row:]}
                break
            sample, other = files[place], files[found[column][0]]
            # Files of one group need no comparison, which saves decoding.
            if group_of[row] != group_of[column] and _same_length(sample, other) and pictures.alike(sample, other):
                group_of[group_of == group_of[column]] = group_of[row]
        else:
            continue
        break
    groups: dict[int, list[int]] = {}
    for (place, _), group in zip(found, group_of.tolist(), strict=True):
        groups.setdefault(group, []).append(place)
    return [group for group in groups.values() if len(group) > 1], len(pictures.late)


def _ones(numbers: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Returns the number of set bits of each number (n,)."""
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.bitwise_count(numbers)
    return np.unpackbits(numbers[:, None].view(np.uint8), axis=-1).sum(-1, dtype=np.uint8)


def _same_length(a: Sample, b: Sample) -> bool:
    longest = max(a.info.duration_s, b.info.duration_s)
    return a.kind == b.kind and abs(a.info.duration_s - b.info.duration_s) <= _SAME_LENGTH * longest


class _Pictures:
    """Small pictures of files. Decodes each file once, and no file after the deadline."""

    def __init__(self, video: VideoProcess, deadline: float, known: KnownFiles | None) -> None:
        self._video, self._deadline, self._memo = video, deadline, known
        self._known: dict[Path, list[NDArray[np.float32]] | None] = {}
        self.late: set[Path] = set()

    @property
    def over(self) -> bool:
        return time.monotonic() > self._deadline

    def look(self, sample: Sample) -> str:
        """Returns the perceptual hash (`look_of`) of a file: from the scan, or computed for a still, which a scan does
        not decode.
        """
        if sample.info.look or sample.kind == "clip":
            return sample.info.look

        def ask() -> str:
            height = min(max(1, round(_SIDE * sample.info.height / sample.info.width)), 16 * _SIDE)
            picture = self._read(sample, 0.0, _SIDE, height)
            return "" if picture is None else look_of(_grey(picture))

        return ask() if self._memo is None else self._memo.recall(sample.path, "look", ask)

    def alike(self, a: Sample, b: Sample) -> bool:
        """True if the first and middle frames of both files correlate, with either one cropped."""
        mine, other = self._crops(a), self._crops(b)
        if mine is None or other is None:
            return False
        best = (max((o @ m[0]).max(), (m @ o[0]).max()) for m, o in zip(mine, other, strict=True))
        return all(found >= _NEAR_CORRELATION for found in best)

    def _crops(self, sample: Sample) -> list[NDArray[np.float32]] | None:
        """Returns all crops of the first and of the middle frame, each as unit vectors (crops, values)."""
        if sample.path not in self._known:
            times = [0.0] if sample.kind == "still" else [0.0, sample.info.duration_s / 2]
            pictures = [self._read(sample, at_s, _SIDE, _SIDE) for at_s in times]
            found = [picture for picture in pictures if picture is not None]
            complete = len(found) == len(times)
            self._known[sample.path] = [_cropped(picture) for picture in found] if complete else None
        return self._known[sample.path]

    def _read(self, sample: Sample, at_s: float, width: int, height: int) -> NDArray[np.uint8] | None:
        if self.over:
            self.late.add(sample.path)
            return None
        fps = max(sample.info.fps, 1.0)  # 0 for a still
        try:
            return self._video.read(sample.path, fps=fps, num_frames=1, width=width, height=height, start_s=at_s)[0]
        except DatasetError:
            return None


def _grey(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns a picture (H, W, 3) as (LOOK_SIZE, LOOK_SIZE) grey levels, like the video child."""
    from PIL import Image

    small = Image.fromarray(picture).convert("L").resize((LOOK_SIZE, LOOK_SIZE), Image.Resampling.BOX)
    return np.asarray(small, np.uint8)


def _cropped(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    from PIL import Image

    image = Image.fromarray(picture)
    side, size = picture.shape[0], (LOOK_SIZE, LOOK_SIZE)
    crops: list[NDArray[np.float32]] = []
    for crop in _CROPS:
        low, high = crop * side, side - crop * side
        values = np.asarray(image.resize(size, Image.Resampling.BILINEAR, box=(low, low, high, high)), np.float32)
        away = (values - values.mean((0, 1))).ravel()
        crops.append(away / max(float(np.linalg.norm(away)), 1e-6))
    return np.stack(crops)
