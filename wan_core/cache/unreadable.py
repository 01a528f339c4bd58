"""Clips that a scan takes for whole are sometimes damaged further on: each costs itself, never the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..dataset import Sample
from ..errors import DatasetError
from ..words import counted, filled
from .cache_set import CacheItem, CacheSet
from .evaluation import nothing_trained

_NAMED = 20
_ENOUGH_TO_JUDGE = 10
"""damaged clips after which encoding does not wait for the last one to say that most are damaged"""


def keys_of(item: CacheItem) -> tuple[str, ...]:
    """The names of the entries that are made from the files of an item."""
    return tuple(filter(None, (item.latent_key, item.condition_key, item.mask_key)))


def without(cache_set: CacheSet, failed: Collection[str]) -> CacheSet:
    """Returns the set without the items of which an entry is among `failed`."""
    if not failed:
        return cache_set

    def kept(items: tuple[CacheItem, ...]) -> tuple[CacheItem, ...]:
        return tuple(item for item in items if not any(key in failed for key in keys_of(item)))

    items, held_out = kept(cache_set.items), kept(cache_set.held_out)
    if not items:
        raise nothing_trained(len(held_out))
    return replace(cache_set, items=items, held_out=held_out)


def require_enough(reasons: Sequence[str], of: int, *, finished: bool) -> None:
    """DatasetError once more than half of the clips cannot be read: that is no bad luck with single files.

    A reason is a sentence about one clip, `of` is how many were tried; before all of them were (`finished`), ten must
    have failed.
    """
    if 2 * len(reasons) <= of or not (finished or len(reasons) >= _ENOUGH_TO_JUDGE):
        return
    different = list(dict.fromkeys(_reason(why) for why in reasons))
    more = filled("; and {n} more", n=len(different) - 3) if len(different) > 3 else ""
    raise DatasetError(
        "{reasons} of {of} clips cannot be read: {different}{more}. Copy them again, or take them out "
        "of the dataset; what is encoded is kept.",
        reasons=len(reasons),
        of=of,
        different="; ".join(different[:3]),
        more=more,
    )


@dataclass(frozen=True)
class LeftOut:
    """A clip of which a set lacks something, because it cannot be read to its end."""

    why: str
    """a sentence that names the clip"""
    lost: int
    """samples of it (windows, crops) that are not in the set"""
    of: int
    """samples that were cut from it"""

    @property
    def whole(self) -> bool:
        """True when nothing of the clip is in the set."""
        return self.lost == self.of


def left_out_of(failed: Mapping[str, str], samples: Mapping[str, Sample]) -> tuple[LeftOut, ...]:
    """Returns what a set lacks, a value for each clip.

    `failed` says why an entry cannot be made, by its name; `samples` are all that were asked for, by the names of
    their entries.
    """
    cut: dict[Path, set[tuple[Any, ...]]] = {}
    lost: dict[Path, set[tuple[Any, ...]]] = {}
    why: dict[Path, str] = {}
    for key, sample in samples.items():
        part = sample.cut, sample.bucket
        cut.setdefault(sample.path, set()).add(part)
        if key in failed:
            lost.setdefault(sample.path, set()).add(part)
            why.setdefault(sample.path, failed[key])
    return tuple(LeftOut(why[path], len(parts), len(cut[path])) for path, parts in lost.items())


def left_out_lines(clips: Sequence[LeftOut]) -> list[str]:
    """Returns for the report how many, and each with its reason and with how much of it is lost."""
    if not clips:
        return []
    whole = sum(clip.whole for clip in clips)
    parts = len(clips) - whole
    what = counted(whole, "clip") if whole else f"parts of {counted(parts, 'clip')}"
    also = f", and parts of {parts} more" if whole and parts else ""
    first = f"skipped: {what} that cannot be read to the end{also} (mode rebuild tries again); the rest is trained"
    more = [f"  and {len(clips) - _NAMED} more"] if len(clips) > _NAMED else []
    return [first, *(f"  {_reason(clip.why)}{_share(clip)}" for clip in clips[:_NAMED]), *more]


def _share(clip: LeftOut) -> str:
    return "" if clip.whole else f": {clip.lost} of the {clip.of} samples cut from it"


def _reason(sentence: str) -> str:
    """Returns the reason without the advice to write the clip again, which would freeze the damage."""
    return sentence.partition(". Write it again")[0].rstrip(".")
