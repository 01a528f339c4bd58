"""The review of a dataset before it is encoded: epochs, copies, cache size and encoding time, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DatasetError
from ..files import FileError
from ..model.latents import LatentSpace
from ..video import VideoProcess
from ..words import counted, listed
from .conditioning import NOTHING_TO_PREDICT
from .estimates import TOKEN_BYTES, BucketRow, CacheSize, cache_size, epoch_lines, epoch_rows, is_averaged, speed_lines
from .held_out import held_out_digests
from .known_files import KnownFiles
from .near_copies import DigestOf, NearTwins, byte_twins, near_twins
from .sample import Dataset, Sample, one_per_file

_COMPARING_S = 20.0
"""longest search for near copies, in seconds"""
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class DatasetReview:
    """The results of a dataset review."""

    dataset: Dataset
    epoch: tuple[BucketRow, ...]
    """batches per bucket, the largest bucket first; empty if all files are held out"""
    averaged: bool
    held_out: tuple[Sample, ...]
    """one sample of each held-out file"""
    same_bytes: tuple[tuple[Sample, ...], ...]
    look_alikes: NearTwins
    comparing_s: float
    size: CacheSize
    encoding_s: float | None
    """estimated at the speed of the last encoding; None before the first"""

    def report(self) -> str:
        """Returns plain text for the node."""
        lines = epoch_lines(self.epoch, averaged=self.averaged) if self.epoch else []
        if self.dataset.given_whole:
            lines.append(NOTHING_TO_PREDICT)
        if self.held_out:
            held = listed(sample.name for sample in self.held_out)
            lines.append(f"held out for evaluation: {counted(len(self.held_out), 'file')}: {held}")
        lines += speed_lines(self.dataset.samples, self.dataset.fps)
        lines += _group_lines("the same bytes", "trained once for each name", self.same_bytes)
        lines += _group_lines("looks the same", "re-encoded, scaled or cropped", self.look_alikes.groups)
        if self.look_alikes.left_out:
            left = counted(self.look_alikes.left_out, "file")
            lines.append(f"copies: {left} not compared within the limit of {self.comparing_s:g} s")
        return "\n".join([*lines, *_size_lines(self.size, self.encoding_s)])


def dataset_review(
    dataset: Dataset,
    *,
    video: VideoProcess,
    digest_of: DigestOf,
    space: LatentSpace,
    seconds_per_megapixel: float | None = None,
    comparing_s: float = _COMPARING_S,
    known: KnownFiles | None = None,
) -> DatasetReview:
    """Review a dataset without a GPU.

    `digest_of` returns the SHA-256 of a file; `seconds_per_megapixel`: speed of the last encoding.
    """
    trained, evaluated = _split(dataset, digest_of)
    same = byte_twins(dataset.samples, digest_of)
    copies = {sample.path for group in same for sample in group[1:]}
    others = [sample for sample in dataset.samples if sample.path not in copies]
    size = cache_size(dataset.samples, space, dataset.kind, loss_masks=dataset.masks_loss)
    return DatasetReview(
        dataset=dataset,
        epoch=tuple(epoch_rows(trained)),
        averaged=is_averaged(trained),
        held_out=tuple(evaluated),
        same_bytes=tuple(same),
        look_alikes=near_twins(others, video, allowed_s=comparing_s, known=known),
        comparing_s=comparing_s,
        size=size,
        encoding_s=None if seconds_per_megapixel is None else size.megapixels * seconds_per_megapixel,
    )


def _split(dataset: Dataset, digest_of: DigestOf) -> tuple[list[Sample], list[Sample]]:
    known: dict[Path, str] = {}

    def digest(sample: Sample) -> str:
        if sample.path not in known:
            try:
                known[sample.path] = digest_of(sample.path)
            except (FileError, DatasetError):  # the file was changed or deleted since the scan; encoding reports that
                known[sample.path] = "f" * 64
        return known[sample.path]

    held = held_out_digests(dataset, digest)
    if not held:
        return list(dataset.samples), []
    evaluated = [sample for sample in dataset.samples if digest(sample) in held]
    return [sample for sample in dataset.samples if digest(sample) not in held], one_per_file(evaluated)


def _group_lines(what: str, how: str, groups: Sequence[tuple[Sample, ...]]) -> list[str]:
    if not groups:
        return []
    lines = [f"{what} ({how}): {counted(len(groups), 'group')}"]
    lines += [f"  {listed(sample.name for sample in group)}" for group in groups[:_SHOWN]]
    return lines + ([f"  and {len(groups) - _SHOWN:,} more groups"] if len(groups) > _SHOWN else [])


def _size_lines(size: CacheSize, encoding_s: float | None) -> list[str]:
    parts = [f"{_bytes(size.latents)} latents"]
    parts += [f"{_bytes(size.conditions)} conditioning"] if size.conditions else []
    parts += [f"{_bytes(size.masks)} masks"] if size.masks else []
    texts = f"texts ({counted(size.captions, 'caption')}) {_bytes(TOKEN_BYTES)} for every token"
    lines = [f"cache size, if nothing is cached yet: {', '.join(parts)}; {texts}"]
    if encoding_s is not None:
        said = f"{encoding_s / 60:.0f} min" if encoding_s >= 120 else f"{encoding_s:.0f} s"
        lines.append(f"encoding everything: about {said} at the speed of the last encoding here")
    return lines


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"
