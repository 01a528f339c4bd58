"""What a file says, as the captions that take turns: prefix, shuffled tags, trigger word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..sources import caption_with_prefix, caption_with_trigger, tag_orders
from .config import DatasetConfig
from .sample import Rejected, Sample

__all__ = ["caption_remedies", "captions_of", "source_of_caption", "with_captions", "without_captionless"]


def captions_of(written: Sequence[str], config: DatasetConfig) -> tuple[str, ...]:
    """The captions a file with the captions `written` is trained with; several take turns, one an epoch."""
    trigger = config.trigger_word.strip()
    orders = [order for text in written for order in tag_orders(text, config.caption_shuffles, config.keep_tokens)]
    whole = (caption_with_trigger(caption_with_prefix(order, config.caption_prefix), trigger) for order in orders)
    return tuple(dict.fromkeys(whole))


def source_of_caption(written: str, config: DatasetConfig, place: str = "file") -> str:
    """Where the text comes from, as in Sample.caption_from; `place` is "file" or "list"."""
    trigger = config.trigger_word.strip()
    if not written:
        return "trigger" if trigger else "none"
    added = bool(trigger) and trigger not in caption_with_prefix(written, config.caption_prefix)
    return f"{place}+trigger" if added else place


def with_captions(samples: Sequence[Sample], captions: Sequence[str]) -> list[Sample]:
    """The samples of one file, which may take turns already, with captions that take turns: every pair comes up once.

    The caption changes with every epoch, also where the window or crop changes with every epoch.
    """
    if len(captions) == 1:
        return [replace(sample, caption=captions[0]) for sample in samples]
    return [
        replace(
            sample,
            caption=captions[(round_ + sample.turn) % len(captions)],
            turn=round_ * sample.turns + sample.turn,
            turns=len(captions) * sample.turns,
        )
        for round_ in range(len(captions))
        for sample in samples
    ]


def caption_remedies(config: DatasetConfig, sample: Sample) -> str:
    """What to do about files without a caption, of which `sample` is one."""
    example = sample.path.with_suffix(config.caption_extension).name
    return (
        f"Write {example} with what is seen, set trigger_word, or say in Wan Dataset Settings what missing_captions "
        'means: "skip the file" or "empty caption"'
    )


def without_captionless(config: DatasetConfig, samples: Sequence[Sample]) -> tuple[list[Sample], list[Rejected]]:
    """What is left of `samples` when files without a caption are skipped, and those files."""
    if config.missing_captions != "skip the file":
        return list(samples), []
    missing = dict.fromkeys(sample.name for sample in samples if sample.caption_from == "none")
    reason = f"has no caption ({config.caption_extension} file missing or empty), and missing_captions is skip the file"
    kept = [sample for sample in samples if sample.caption_from != "none"]
    return kept, [Rejected(name=name, reason=reason) for name in missing]
