"""A dataset review as JSON data, for the card of the dataset node and for API clients.

Texts and lists are shortened, because ComfyUI keeps all results in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .caption_edits import scanned_files
from .captions import TOKEN_LIMIT, estimated_tokens
from .contact_sheet import sheet_layout, sheet_samples
from .estimates import BATCH_SIZES, BucketRow, off_speed
from .review import DatasetReview
from .sample import Rejected, Sample, ScanResult, one_per_file

_NAMES = 20
_LONGEST = 300
"""characters"""


def dataset_facts(review: DatasetReview) -> dict[str, Any]:
    """Returns the review as JSON data.

    `buckets`: the buckets of an epoch, and a total with null sizes. `findings`: possible problems, with a count of
    files (for copies, of groups). `sheet`: the file of each cell of the contact sheet.
    """
    dataset, size = review.dataset, review.size
    files = [sample for part in dataset.parts for sample in one_per_file(part.samples)]
    clips = sum(sample.kind == "clip" for sample in files)
    # Files that the card can mend come first: it writes captions and chooses pieces.
    rejected = [r for part in dataset.parts for r in part.rejected]
    rejected.sort(key=lambda r: not (r.wants_caption or r.is_piece))
    numbers = {(file.path, file.shot_s): number for number, file in enumerate(scanned_files(dataset))}
    return {
        "version": 1,
        "folders": [_short(part.config.folder) for part in dataset.parts],
        "clips": clips,
        "stills": len(files) - clips,
        "samples": len(dataset.samples),
        "held_out": _named(review.held_out),
        "fps": dataset.fps,
        "batch_sizes": list(BATCH_SIZES),
        "averaged": review.averaged,
        "buckets": [_bucket(row) for row in review.epoch],
        "findings": [finding for finding in _findings(review) if finding["count"]],
        "left_out": {
            "count": len(rejected),
            "files": [_left(item, numbers) for item in rejected[:_NAMES]],
        },
        "excluded": _named([sample for part in dataset.parts for sample in part.excluded]),
        "cache_bytes": size.known,
        "captions": size.captions,
        "encoding_s": review.encoding_s,
        "sheet": {
            **sheet_layout(dataset),
            "cells": [_cell(sample, numbers) for sample in sheet_samples(dataset)],
        },
    }


def clip_groups(review: DatasetReview) -> dict[str, frozenset[int]]:
    """Returns the groups that the card can show alone: name -> clips by their numbers in `scanned_files`.

    "short": shorter than a window of the settings, also because of its piece; "marked": with a finding.
    """
    dataset = review.dataset
    files = scanned_files(dataset)
    samples = one_per_file((*dataset.samples, *(sample for part in dataset.parts for sample in part.excluded)))
    findings = findings_by_file(review)
    alike = {path for path, kinds in findings.items() if not {"same bytes", "look alike"}.isdisjoint(kinds)}
    short = {s.path for s in samples if s.cut.held} | {r.too_short for part in dataset.parts for r in part.rejected}
    marked = {*findings, *short}
    groups = {"still": {s.path for s in samples if s.kind == "still"}, "short": short, "alike": alike, "marked": marked}
    return {
        name: frozenset(at for at, file in enumerate(files) if file.path in paths) for name, paths in groups.items()
    }


def findings_by_file(review: DatasetReview) -> dict[Path, list[str]]:
    """Returns file -> what may be wrong with it, such as "enlarged" or "look alike"; only files with a finding."""
    found: dict[Path, list[str]] = {}
    groups = {"same_bytes": review.same_bytes, "look_alike": review.look_alikes.groups}
    of_kind = [(kind, [s for group in found_groups for s in group]) for kind, found_groups in groups.items()]
    of_kind += [item for part in review.dataset.parts for item in _of_part(part).items() if item[0] not in _UNMARKED]
    for kind, samples in of_kind:
        for sample in samples:
            found.setdefault(sample.path, []).append(kind.replace("_", " "))
    return found


_UNMARKED = frozenset(("variable_rate", "trigger_alone", "first_page"))
"""findings for information, without a remedy"""


def _findings(review: DatasetReview) -> list[dict[str, Any]]:
    """Returns kind, number of files and first names of each finding."""
    parts = review.dataset.parts
    fast, slow = off_speed(review.dataset.samples, review.dataset.fps)
    found: dict[str, list[Sample]] = {
        "given_whole": review.dataset.given_whole,
        "faster": fast,
        "slower": slow,
    }
    for part in parts:
        for kind, samples in _of_part(part).items():
            found.setdefault(kind, []).extend(samples)
    groups = {"same_bytes": review.same_bytes, "look_alike": review.look_alikes.groups}
    return [
        *({"kind": kind, **_named(samples)} for kind, samples in found.items()),
        *({"kind": kind, **_grouped(found_groups)} for kind, found_groups in groups.items()),
        {"kind": "not_compared", "count": review.look_alikes.left_out, "names": []},
    ]


def _of_part(part: ScanResult) -> dict[str, list[Sample]]:
    config = part.config
    holds: dict[str, Callable[[Sample], bool]] = {
        "enlarged": lambda sample: sample.upscaled,
        "interlaced": lambda sample: sample.info.interlaced,
        "variable_rate": lambda sample: sample.info.variable_rate,
        "first_page": lambda sample: sample.info.more_pages,
        "held_last": lambda sample: bool(sample.cut.held),
        "trigger_alone": lambda sample: sample.caption_from == "trigger",
        "needs_caption": lambda sample: sample.caption_from == "none" and config.missing_captions == "refuse",
        "no_caption": lambda sample: sample.caption_from == "none" and config.missing_captions != "refuse",
        "long_caption": lambda sample: estimated_tokens(sample.caption) > TOKEN_LIMIT,
        "no_mask": lambda sample: config.masks_loss and sample.mask is None,
    }
    return {kind: one_per_file(filter(is_so, part.samples)) for kind, is_so in holds.items()}


def _named(samples: Sequence[Sample]) -> dict[str, Any]:
    return {"count": len(samples), "names": [_short(sample.name) for sample in samples[:_NAMES]]}


def _grouped(groups: Sequence[Iterable[Sample]]) -> dict[str, Any]:
    return {"count": len(groups), "names": [_short(", ".join(s.name for s in group)) for group in groups[:_NAMES]]}


def _bucket(row: BucketRow) -> dict[str, Any]:
    bucket = row.bucket
    return {
        "frames": bucket.num_frames if bucket else None,
        "width": bucket.width if bucket else None,
        "height": bucket.height if bucket else None,
        "clips": row.clips,
        "stills": row.stills,
        "samples": row.samples,
        "batches": list(row.batches),
    }


def _cell(sample: Sample, numbers: Mapping[tuple[Path, float | None], int]) -> dict[str, Any]:
    return {
        "clip": numbers[sample.path, sample.captioned_shot_s],
        "name": _short(sample.clip_name),
        "kind": sample.kind,
        "frames": sample.bucket.num_frames,
        "width": sample.bucket.width,
        "height": sample.bucket.height,
        "caption": _short(sample.caption),
        "choice": sample.choice.to_dict(),
    }


def _left(item: Rejected, numbers: Mapping[tuple[Path, float | None], int]) -> dict[str, Any]:
    path, wants = item.wants_caption or item.too_short, "caption"
    if item.too_short is not None:
        wants = "piece" if item.is_piece else "frames"
    return {
        "name": _short(item.name),
        "reason": _short(item.reason),
        "clip": next((number for (own, _), number in numbers.items() if own == path), None),
        "wants": wants,
    }


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
