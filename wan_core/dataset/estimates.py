"""Estimates for a dataset: batches per epoch and bucket, bytes of cache entries, clips off the model's frame rate.

A batch has samples of one bucket, so the last batch of a bucket may be short. Entries are bfloat16. Frames are sampled
by timestamp, so a clip with another frame rate keeps its speed; frames are dropped or repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..model import ConditionKind, LatentSpace
from ..words import counted, tallied
from .bucket import Bucket
from .config import ROLES, Reading
from .sample import Companion, Sample, one_per_file

BATCH_SIZES = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class BucketRow:
    """The samples and batches of one bucket in an epoch."""

    bucket: Bucket | None
    """None: all buckets"""
    clips: int
    """files; a file cut into several samples counts once"""
    stills: int
    samples: int
    batches: tuple[int, ...]
    """number of batches per epoch, for each of BATCH_SIZES"""


def is_averaged(samples: Sequence[Sample]) -> bool:
    """True if weights of samples make the number of batches per epoch an average."""
    return any(sample.weight != 1 for sample in samples)


def epoch_rows(samples: Sequence[Sample]) -> list[BucketRow]:
    """Returns a row per bucket, the largest first, and a total if there are several."""
    groups: dict[Bucket, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.bucket, []).append(sample)
    rows: list[BucketRow] = []
    for bucket, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        # One of the samples that take turns is trained per epoch.
        seen = math.fsum(sample.repeats * sample.weight for sample in members if sample.turn == 0)
        # Minus 1e-9, because a rounding error of the weights must not add a batch.
        rows.append(_row(bucket, members, tuple(math.ceil(seen / size - 1e-9) for size in BATCH_SIZES)))
    if len(rows) > 1:
        totals = tuple(sum(numbers) for numbers in zip(*(row.batches for row in rows), strict=True))
        rows.append(_row(None, samples, totals))
    return rows


def epoch_lines(rows: Sequence[BucketRow], *, averaged: bool) -> list[str]:
    """Returns a heading and one line per row of `epoch_rows`."""
    mean = ", on average" if averaged else ""
    lines = [f"an epoch{mean}, in batches of {' / '.join(map(str, BATCH_SIZES))}:"]
    for row in rows:
        kinds = [counted(number, noun) for number, noun in ((row.clips, "clip"), (row.stills, "still")) if number]
        windows = f", {counted(row.samples, 'sample')}" if row.samples > row.clips + row.stills else ""
        batches = " / ".join(f"{number:,}" for number in row.batches)
        lines.append(f"  {row.bucket or 'all'}: {' + '.join(kinds)}{windows}, {batches} batches")
    return lines


def _row(bucket: Bucket | None, samples: Sequence[Sample], batches: tuple[int, ...]) -> BucketRow:
    files = one_per_file(samples)
    stills = sum(sample.kind == "still" for sample in files)
    return BucketRow(bucket=bucket, clips=len(files) - stills, stills=stills, samples=len(samples), batches=batches)


_BYTES = 2
TOKEN_BYTES = 4096 * _BYTES
_VISION_BYTES = 257 * 1280 * _BYTES


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """Payload bytes of a dataset's cache entries, without headers (a few hundred bytes each)."""

    latents: int
    conditions: int
    masks: int
    captions: int
    """number of different captions. A text entry has TOKEN_BYTES per token; only the text encoder can count tokens"""
    megapixels: float
    """megapixels that the VAE encodes"""

    @property
    def known(self) -> int:
        """Bytes without the text entries."""
        return self.latents + self.conditions + self.masks


def cache_size(samples: Sequence[Sample], space: LatentSpace, kind: ConditionKind, *, loss_masks: bool) -> CacheSize:
    """Returns the size of the entries of `samples`; each cut of a file counts once."""
    cuts = {(s.path, s.cut, s.bucket): s for s in samples}.values()
    volumes = [_volume(sample.bucket, space) for sample in cuts]
    pixels = sum(s.bucket.num_frames * s.bucket.height * s.bucket.width for s in cuts)
    tokens = max(len(kind.frames), 1) * _VISION_BYTES * len(cuts) if kind.vision else 0
    of_roles = sum(_values(file, sample, space) for sample in cuts for file in sample.context) * _BYTES
    return CacheSize(
        latents=sum(volumes) * space.channels * _BYTES,
        conditions=sum(volumes) * kind.channels_of(space.channels) * _BYTES + tokens + of_roles,
        masks=sum(_volume(s.bucket, space) for s in cuts if s.mask is not None) * _BYTES if loss_masks else 0,
        captions=len({sample.caption for sample in samples}),
        megapixels=pixels / 1e6 * (1 + kind.vae_passes),
    )


def _values(file: Companion, sample: Sample, space: LatentSpace) -> int:
    """Returns the number of cached values of a companion: pixels of a face video, latents of others."""
    size = file.of_sample(sample)
    if ROLES[file.role].reading is Reading.SQUARE:
        return 3 * size.num_frames * size.height * size.width
    return space.channels * _volume(size, space)


def _volume(bucket: Bucket, space: LatentSpace) -> int:
    """Returns the number of values of one latent channel."""
    stride = space.spatial_stride
    return math.prod((space.latent_frames(bucket.num_frames), bucket.height // stride, bucket.width // stride))


_DIFFERENT = 1.2
"""smallest ratio of frame rates that is reported"""


def off_speed(samples: Sequence[Sample], fps: float) -> tuple[list[Sample], list[Sample]]:
    """Returns one sample of each clip whose frame rate differs from the model's by a factor of 1.2 or more."""
    clips = [sample for sample in _moving(samples) if sample.kind == "clip" and not sample.cut.fps]
    fast = [sample for sample in clips if sample.info.fps >= fps * _DIFFERENT]
    slow = [sample for sample in clips if 0 < sample.info.fps <= fps / _DIFFERENT]
    return fast, slow


def _moving(samples: Sequence[Sample]) -> list[Sample]:
    return one_per_file([sample for sample in samples if sample.bucket.num_frames > 1])


def speed_lines(samples: Sequence[Sample], fps: float) -> list[str]:
    """Returns sentences about clips whose frame rate differs from the model's."""
    fast, slow = ([sample.info.fps for sample in group] for group in off_speed(samples, fps))
    lines: list[str] = []
    if other := [sample.cut.fps for sample in _moving(samples) if sample.cut.fps]:
        slowest, fastest = f"{max(other) / fps:.2g}", f"{min(other) / fps:.2g}"
        times = slowest if slowest == fastest else f"{fastest} to {slowest}"
        lines.append(
            f"read at {_rates(other)} frames a second and trained at {fps:g}, as set: motion becomes "
            f"{times} times as slow."
        )
    said = len(lines)
    if fast:
        kept = f"{fps / max(fast):.0%} to {fps / min(fast):.0%}" if max(fast) > min(fast) else f"{fps / fast[0]:.0%}"
        lines.append(
            f"faster than the model's {fps:g} fps: {_rates(fast)} fps. They play at the same speed; {kept} of their "
            "frames are used, the others dropped."
        )
    if slow:
        lines.append(
            f"slower than the model's {fps:g} fps: {_rates(slow)} fps. They play at the same speed; frames are shown "
            f"up to {fps / min(slow):.1f} times, and the model learns to stutter. Leave them out, or interpolate them."
        )
    if len(lines) > said:
        lines.append(
            "If one of them plays too slow or too fast in a player, its stated frame rate is wrong: write it again."
        )
    return lines


def _rates(found: Sequence[float]) -> str:
    return tallied((f"{rate:.4g}" for rate in found), 6)
