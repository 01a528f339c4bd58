"""The review as text: a line per fact, nothing where there is nothing to say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....errors import DatasetError
from ....files import FileError
from ....model.latents import LatentSpace
from ....video import VideoProcess
from ..dataset import Dataset
from ..held_out import held_out_digests
from ..sample import Sample
from .epochs import epoch_lines
from .files import count, names, one_per_file
from .size import cache_size
from .speed import speed_lines
from .twins import DigestOf, byte_twins, near_twins

__all__ = ["dataset_review"]

COMPARING_S = 20.0
"""how long near copies are looked for at most"""
_SHOWN = 10


def dataset_review(
    dataset: Dataset,
    *,
    video: VideoProcess,
    digest_of: DigestOf,
    space: LatentSpace,
    seconds_per_megapixel: float | None = None,
    comparing_s: float = COMPARING_S,
) -> str:
    """What is to be known before the GPU works, as plain text.

    `digest_of` gives the SHA-256 of a file and remembers it; `seconds_per_megapixel` is what the last encoding took
    here, if there was one.
    """
    trained, evaluated = _split(dataset, digest_of)
    lines = epoch_lines(trained) if trained else []
    if evaluated:
        lines.append(f"held out for evaluation: {count(len(evaluated), 'file')}: {names(s.name for s in evaluated)}")
    lines += speed_lines(dataset.samples, dataset.fps)
    lines += _twin_lines(dataset.samples, video, digest_of, comparing_s)
    lines += _size_lines(dataset, space, seconds_per_megapixel)
    return "\n".join(lines)


def _split(dataset: Dataset, digest_of: DigestOf) -> tuple[list[Sample], list[Sample]]:
    """The samples that are trained, and one of each file that is held out."""
    known: dict[Path, str] = {}

    def digest(sample: Sample) -> str:
        if sample.path not in known:
            try:
                known[sample.path] = digest_of(sample.path)
            except (FileError, DatasetError):  # changed or gone since the scan; encoding names it
                known[sample.path] = "f" * 64
        return known[sample.path]

    held = held_out_digests(dataset, digest)
    if not held:
        return list(dataset.samples), []
    evaluated = [sample for sample in dataset.samples if digest(sample) in held]
    return [sample for sample in dataset.samples if digest(sample) not in held], one_per_file(evaluated)


def _twin_lines(samples: Sequence[Sample], video: VideoProcess, digest_of: DigestOf, allowed_s: float) -> list[str]:
    same = byte_twins(samples, digest_of)
    copies = {sample.path for group in same for sample in group[1:]}
    near = near_twins([s for s in samples if s.path not in copies], video, allowed_s=allowed_s)
    lines = _group_lines("the same bytes", "trained once for each name", same)
    lines += _group_lines("looks the same", "written again, scaled or cropped", near.groups)
    if near.left_out:
        left = count(near.left_out, "file")
        lines.append(f"copies: {left} not compared, {allowed_s:g} s were over")
    return lines


def _group_lines(what: str, how: str, groups: Sequence[tuple[Sample, ...]]) -> list[str]:
    if not groups:
        return []
    lines = [f"{what} ({how}): {count(len(groups), 'group')}"]
    lines += [f"  {names(sample.name for sample in group)}" for group in groups[:_SHOWN]]
    return lines + ([f"  and {len(groups) - _SHOWN:,} more groups"] if len(groups) > _SHOWN else [])


def _size_lines(dataset: Dataset, space: LatentSpace, seconds_per_megapixel: float | None) -> list[str]:
    size = cache_size(dataset.samples, space, dataset.kind, loss_masks=dataset.masks_loss)
    parts = [f"{_bytes(size.latents)} latents"]
    parts += [f"{_bytes(size.conditions)} conditioning"] if size.conditions else []
    parts += [f"{_bytes(size.masks)} masks"] if size.masks else []
    texts = f"texts ({count(size.captions, 'caption')}) {_bytes(size.token_bytes)} for every token"
    lines = [f"cache, where nothing of it is there yet: {', '.join(parts)}; {texts}"]
    if seconds_per_megapixel is not None:
        took = size.megapixels * seconds_per_megapixel
        said = f"{took / 60:.0f} min" if took >= 120 else f"{took:.0f} s"
        lines.append(f"encoding all of it: about {said} at the speed of the last encoding here")
    return lines


def _bytes(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"
