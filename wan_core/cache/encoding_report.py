"""The report of an encoding, as facts and as text for the node: counts, caption lengths, clips that were left out."""

from __future__ import annotations

from dataclasses import dataclass

from ..dataset import NOTHING_TO_PREDICT, TOKEN_LIMIT, TextLengths
from ..words import listed
from .cache_set import CacheSet
from .encoding_plan import EncodingPlan
from .unreadable import LeftOut, left_out_lines


@dataclass(frozen=True, kw_only=True)
class EncodingReport:
    """The counts of an encoding, and the names that go with them."""

    fingerprint: str
    """names the stored set"""
    latents_encoded: int
    latents_reused: int
    texts_encoded: int
    texts_reused: int
    clips: int
    """items of the set: clips and stills"""
    frames: int
    """pixel frames of all items"""
    damaged: int
    seconds: float
    conditioning: str = "none"
    """ConditionKind.name of the set"""
    conditions_encoded: int = 0
    conditions_reused: int = 0
    stills: int = 0
    """items of one frame"""
    given_whole: bool = False
    """whether the model is given all of every item"""
    text_lengths: TextLengths | None = None
    """of the captions encoded this time; None when none was, or the encoder cannot count"""
    masks_encoded: int = 0
    masks_reused: int = 0
    black_masks: tuple[str, ...] = ()
    """names of clips encoded now whose mask leaves nothing to train"""
    nothing_shown: tuple[str, ...] = ()
    """names of clips of noise or of one colour"""
    held_out: int = 0
    """further clips that are not trained but evaluated"""
    upkeep: str = ""
    """what was done for the cache itself"""
    left_out: tuple[LeftOut, ...] = ()
    """the clips that cannot be read to their end, with what the set lacks of each"""

    def sentences(self) -> str:
        """Plain text for the node."""
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
            lines.append(f"{what} ({self.conditioning}): {counts}")
            if self.stills and self.conditioning.startswith("first"):
                lines.append(f"stills: {self.stills}, each given whole as its own first frame")
            if self.given_whole:
                lines.append(NOTHING_TO_PREDICT)
        lines += _length_sentences(self.text_lengths)
        if self.masks_encoded or self.masks_reused:
            lines.append(f"loss masks: {self.masks_encoded} encoded, {self.masks_reused} reused")
        if self.black_masks:
            lines.append(f"masks without any white, nothing is trained there: {', '.join(self.black_masks[:8])}")
        if self.nothing_shown:
            lines.append(f"noise or one colour alone, nothing is learned there: {listed(self.nothing_shown)}")
        if self.held_out:
            lines.append(f"held out for evaluation: {self.held_out}")
        lines.append(f"{self.seconds:.1f} s")
        if self.damaged:
            lines.append(f"{self.damaged} damaged cache entries were replaced")
        if self.upkeep:
            lines.append(self.upkeep)
        return "\n".join(lines)


def report_of(plan: EncodingPlan, kept: CacheSet, fingerprint: str, seconds: float) -> EncodingReport:
    """Returns what `plan` asked for and `kept`, the set that was stored, holds."""
    items = kept.items
    return EncodingReport(
        fingerprint=fingerprint,
        latents_encoded=len(plan.missing_latents),
        latents_reused=plan.latents_reused,
        texts_encoded=len(plan.missing_texts),
        texts_reused=plan.texts_reused,
        clips=len(items),
        frames=sum(item.num_frames for item in items),
        damaged=plan.damaged,
        seconds=seconds,
        conditioning=plan.cache_set.conditioning,
        given_whole=kept.given_whole,
        conditions_encoded=len(plan.missing_conditions),
        conditions_reused=plan.conditions_reused,
        masks_encoded=len(plan.missing_masks),
        masks_reused=plan.masks_reused,
        stills=sum(item.num_frames == 1 for item in items),
        held_out=len(kept.held_out),
    )


def _length_sentences(lengths: TextLengths | None) -> list[str]:
    """Returns the sentences on lengths in the report of the encoding."""
    if lengths is None:
        return []
    line = f"caption length: {lengths.median} tokens in the middle, {lengths.longest} at most, of {TOKEN_LIMIT}"
    if not lengths.too_long:
        return [line]
    names = ", ".join(lengths.too_long[:8]) + (f" and {len(lengths.too_long) - 8} more" * (len(lengths.too_long) > 8))
    return [line, f"cut at {TOKEN_LIMIT} tokens, the rest is not seen: {names}"]
