"""Advice: what the clips and captions of a dataset do to its training, each line with its reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ..dataset import Dataset, DatasetReview, Sample
from ..train import TrainConfig
from ..words import counted, listed
from .clips import MeasuredClips
from .findings import Remark, remarks_on_findings

_FEW = 10
"""files below which each is trained more than 150 times in the steps of a new run"""
_ALIKE = 0.2
"""share of the files that may have one caption"""
_LEAST_CAPTIONS = 4
"""captions from which a word in all of them is worth a line"""
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at by for from has have in into is it its of off on or over that the their there this to "
        "under up was which while with her his he she they",
    )
)
"""English words that stand in captions without meaning"""


def advice_on(review: DatasetReview, measured: MeasuredClips, step_s: float | None = None) -> list[Remark]:
    """Returns the findings, then the advice on the set. `step_s`: predicted seconds of a step, if known."""
    dataset = review.dataset
    captions = {(s.path, s.captioned_shot_s): s for part in dataset.parts for s in part.samples if s.turn == 0}
    return [
        *remarks_on_findings(dataset, measured),
        *_on_the_set(review, step_s),
        *_on_same_captions(list(captions.values())),
        *_on_common_words(dataset, list(captions.values())),
        *_on_held_out(review),
    ]


def _on_the_set(review: DatasetReview, step_s: float | None) -> list[Remark]:
    files = {s.path: s for s in review.dataset.samples}.values()
    clips = [s.info.duration_s for s in files if s.kind == "clip"]
    sizes = sorted({(s.info.width * s.info.height, f"{s.info.width}x{s.info.height}") for s in files})
    if not review.epoch:
        return []
    lengths = f" of {min(clips):.2g} to {max(clips):.2g} s" if clips else ""
    size = sizes[0][1] if len(sizes) == 1 else f"{sizes[0][1]} to {sizes[-1][1]}"
    batches, steps = review.epoch[-1].batches[0], TrainConfig.steps
    text = (
        f"the set: {counted(len(clips), 'clip')}{lengths} and {counted(len(files) - len(clips), 'still')}, {size}; "
        f"{steps:,} steps, as in a new run, train each {steps / max(1, batches):.0f} times"
    )
    few = len(files) < _FEW
    if few:
        text += "; with so few, the background is learned together with the subject: add clips in other places"
    if step_s is not None:
        seconds = batches * step_s
        cost = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        cost = f"an epoch of {counted(batches, 'step')} takes about {cost} on this card"
        text += f"; {cost}, at {step_s:.2g} s a step"
    return [Remark(kind="few_files" if few else "", text=text, count=len(files))]


def _on_same_captions(files: Sequence[Sample]) -> list[Remark]:
    written = [sample for sample in files if sample.caption_from not in ("none", "trigger")]
    counts = Counter(_words_of(sample.caption) for sample in written)
    same = {words for words, count in counts.items() if count >= max(3, _ALIKE * len(written))}
    if not same:
        return []
    names = [sample.clip_name for sample in written if _words_of(sample.caption) in same]
    text = f"captions that are all alike, so a prompt cannot choose between these clips: {listed(names)}"
    return [Remark(kind="same_captions", text=text, names=tuple(names), count=len(names))]


def _words_of(caption: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", caption.lower()))


def _on_common_words(dataset: Dataset, files: Sequence[Sample]) -> list[Remark]:
    captions = [_words_of(sample.caption) for sample in files if sample.caption]
    if len(captions) < _LEAST_CAPTIONS or len(set(captions)) < _LEAST_CAPTIONS:
        return []
    everywhere = set.intersection(*map(set, captions)) - _COMMON
    triggers = {word for part in dataset.parts for word in _words_of(part.config.trigger_word)}
    known = [word for word in dict.fromkeys(captions[0]) if word in everywhere - triggers]
    if not known:
        return []
    they_act = "it acts" if len(known) == 1 else "they act"
    text = (
        f"in every caption, so {they_act} like the trigger word: {listed(known)}. What all clips share is learned with "
        "these words; prompts need them too"
    )
    return [Remark(kind="every_caption", text=text, names=tuple(known), count=len(known))]


def _on_held_out(review: DatasetReview) -> list[Remark]:
    if not review.held_out:
        return []
    held = {sample.path for sample in review.held_out}
    named = any(part.config.held_out or part.config.held_out_folder for part in review.dataset.parts)
    how = "by name, as the settings say" if named else "by their file content, not by name or order"
    text = f"held-out clips are chosen {how}"
    return [Remark(kind="held_out_how", text=text, names=tuple(s.name for s in review.held_out), count=len(held))]
