"""The report of an encoding, as data and as text: counts, caption lengths, skipped clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dataset import NOTHING_TO_PREDICT, TOKEN_LIMIT, Sample, TextLengths
from ..errors import DatasetError
from ..model.latents import TextEncoder
from ..words import counted, filled, listed
from .cache_set import CacheSet

_NAMED = 20
_ENOUGH_TO_JUDGE = 10
"""number of unreadable clips from which an encoding ends early, if they are the majority"""


def require_enough(reasons: Sequence[str], of: int, *, finished: bool) -> None:
    """Raises DatasetError if more than half of the clips are unreadable, which points to a damaged disk.

    `reasons`: a sentence per unreadable clip; `of`: number of clips tried. While the encoding runs (`finished` false),
    at least ten clips must have failed.
    """
    if 2 * len(reasons) <= of or not (finished or len(reasons) >= _ENOUGH_TO_JUDGE):
        return
    different = list(dict.fromkeys(_reason(why) for why in reasons))
    more = filled("; and {n} more", n=len(different) - 3) if len(different) > 3 else ""
    raise DatasetError(
        "{reasons} of {of} clips cannot be read: {different}{more}. Copy them again, or remove them from the dataset; "
        "encoded clips are kept.",
        reasons=len(reasons),
        of=of,
        different="; ".join(different[:3]),
        more=more,
    )


@dataclass(frozen=True)
class LeftOut:
    """A damaged clip, of which some or all samples are missing from a set."""

    why: str
    """the reason as a sentence that names the clip"""
    lost: int
    """number of the clip's samples (windows, crops) missing from the set"""
    of: int
    """number of samples of the clip"""

    @property
    def whole(self) -> bool:
        """True if the set lacks all samples of the clip."""
        return self.lost == self.of


def left_out_of(failed: Mapping[str, str], samples: Mapping[str, Sample]) -> tuple[LeftOut, ...]:
    """Returns one value per clip with missing samples.

    `failed`: key -> why the entry cannot be encoded; `samples`: key -> sample, for all samples of the dataset.
    """
    cut: dict[Path, set[tuple[Any, ...]]] = {}
    lost: dict[Path, set[tuple[Any, ...]]] = {}
    why: dict[Path, str] = {}
    for key, sample in samples.items():
        # Samples that differ only in their caption count once.
        part = sample.cut, sample.bucket
        cut.setdefault(sample.path, set()).add(part)
        if key in failed:
            lost.setdefault(sample.path, set()).add(part)
            why.setdefault(sample.path, failed[key])
    return tuple(LeftOut(why[path], len(parts), len(cut[path])) for path, parts in lost.items())


def left_out_lines(clips: Sequence[LeftOut]) -> list[str]:
    """Returns report lines: the number of skipped clips, and the first ones with reasons."""
    if not clips:
        return []
    whole = sum(clip.whole for clip in clips)
    parts = len(clips) - whole
    what = counted(whole, "clip") if whole else f"parts of {counted(parts, 'clip')}"
    also = f", and parts of {parts} more" if whole and parts else ""
    first = (
        f"skipped: {what} that cannot be read to the end{also} (mode rebuild tries again); the other clips are trained"
    )
    more = [f"  and {len(clips) - _NAMED} more"] if len(clips) > _NAMED else []
    shares = ("" if clip.whole else f": {clip.lost} of the {clip.of} samples cut from it" for clip in clips)
    named = [f"  {_reason(clip.why)}{share}" for clip, share in zip(clips[:_NAMED], shares, strict=False)]
    return [first, *named, *more]


def _reason(sentence: str) -> str:
    """Returns the reason without the advice "Write it again", which does not fit a list of several clips."""
    return sentence.partition(". Write it again")[0].rstrip(".")


@dataclass(frozen=True, kw_only=True)
class EncodingReport:
    """The counts of an encoding, and the names of clips with problems."""

    fingerprint: str
    latents_encoded: int
    latents_reused: int
    texts_encoded: int
    texts_reused: int
    clips: int
    """number of items: clips and stills"""
    frames: int
    """pixel frames of all items"""
    seconds: float
    damaged: int = 0
    conditioning: str = "none"
    """ConditionKind.name"""
    conditions_encoded: int = 0
    conditions_reused: int = 0
    stills: int = 0
    """items of one frame"""
    given_whole: bool = False
    """True if the model is given every frame of every item"""
    text_lengths: TextLengths | None = None
    """token counts of the encoded captions; None without captions, or if the encoder cannot count tokens"""
    masks_encoded: int = 0
    masks_reused: int = 0
    black_masks: tuple[str, ...] = ()
    """encoded clips whose mask has no white pixel"""
    nothing_shown: tuple[str, ...] = ()
    """clips of noise or of one colour"""
    held_out: int = 0
    upkeep: str = ""
    """a line about evicted entries"""
    left_out: tuple[LeftOut, ...] = ()

    def sentences(self) -> str:
        """Returns plain text for the node."""
        lines = [
            f"{self.clips} items, {self.frames} frames",
            *left_out_lines(self.left_out),
            f"latents: {self.latents_encoded} encoded, {self.latents_reused} reused",
            f"texts: {self.texts_encoded} encoded, {self.texts_reused} reused "
            "(captions, the empty prompt and the default negative prompt)",
        ]
        if self.conditioning != "none":
            counts = f"{self.conditions_encoded} encoded, {self.conditions_reused} reused"
            what = "given frames" if self.conditioning.startswith("first") else "control and mask files"
            what = "source and reference files" if self.conditioning == "context" else what
            lines.append(f"{what} ({self.conditioning}): {counts}")
            if self.stills and self.conditioning.startswith("first"):
                lines.append(f"stills: {self.stills}, each given completely as its own first frame")
            if self.given_whole:
                lines.append(NOTHING_TO_PREDICT)
        if lengths := self.text_lengths:
            known = f"{lengths.median} tokens (median), {lengths.longest} (longest)"
            lines.append(f"caption length: {known}, of at most {TOKEN_LIMIT}")
            if lengths.too_long:
                lines.append(f"truncated at {TOKEN_LIMIT} tokens: {listed(lengths.too_long)}")
        if self.masks_encoded or self.masks_reused:
            lines.append(f"loss masks: {self.masks_encoded} encoded, {self.masks_reused} reused")
        if self.black_masks:
            lines.append(f"masks without a white pixel, so nothing is trained: {', '.join(self.black_masks[:8])}")
        if self.nothing_shown:
            lines.append(f"only noise or one colour, so nothing is learned: {listed(self.nothing_shown)}")
        if self.held_out:
            lines.append(f"held out for evaluation: {self.held_out}")
        lines.append(f"{self.seconds:.1f} s")
        if self.damaged:
            lines.append(f"{self.damaged} damaged cache entries were replaced")
        if self.upkeep:
            lines.append(self.upkeep)
        return "\n".join(lines)


def report_of(
    kept: CacheSet, fingerprint: str, seconds: float, encoded: Mapping[str, int], reused: Mapping[str, int]
) -> EncodingReport:
    """Returns the report of the set `kept`; `encoded` and `reused`: kind -> number of entries."""
    return EncodingReport(
        fingerprint=fingerprint,
        **counts_of(encoded, reused),
        clips=len(kept.items),
        frames=sum(item.num_frames for item in kept.items),
        stills=sum(item.num_frames == 1 for item in kept.items),
        held_out=len(kept.held_out),
        conditioning=kept.conditioning,
        given_whole=kept.given_whole,
        seconds=seconds,
    )


def counts_of(encoded: Mapping[str, int], reused: Mapping[str, int]) -> dict[str, Any]:
    """Returns the fields of EncodingReport for numbers of entries by kind."""
    kinds = ("latent", "text", "condition", "mask")
    counts = {f"{kind}s_encoded": encoded.get(kind, 0) for kind in kinds}
    return counts | {f"{kind}s_reused": reused.get(kind, 0) for kind in kinds}


class TextCounter:
    """Counts the tokens of the captions that are encoded, without the empty and the negative prompt."""

    def __init__(self, cache_set: CacheSet, encoder: TextEncoder | None) -> None:
        self._count: Callable[[str], int] | None = getattr(encoder, "count_tokens", None)
        self._names = {item.text_key: item.name for item in reversed(cache_set.all_items) if item.caption}
        self.counts: list[tuple[str, int]] = []
        """(clip name, number of tokens) of each counted caption"""

    def add(self, key: str, text: str) -> None:
        """Count a prompt if it is a caption."""
        if self._count is not None and key in self._names:
            self.counts.append((self._names[key], self._count(text)))
