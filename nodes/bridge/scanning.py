"""The common part of the dataset nodes: shared inputs, scans and their cards, and the scans that routes may edit."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from comfy import model_management as mm
from comfy_api.latest import io, ui

from ...wan_core.advice import advice_on, measured_clips, remark_facts, remarks_on_findings
from ...wan_core.dataset import (
    CaptionEdits,
    Dataset,
    DatasetReview,
    KnownFiles,
    ScanContext,
    ScanResult,
    Thumbnails,
    clip_groups,
    contact_sheet,
    dataset_facts,
    dataset_report,
    dataset_review,
    scanned_files,
)
from ...wan_core.model import LATENT_SPACES, WAN21_LATENTS, LatentSpace
from ...wan_core.video import VideoProcess
from . import folders
from .folders import allowed_places
from .progress import NodeProgress
from .types import DatasetSettingsHandle, ModelHandle, WanDataset, WanDatasetSettingsType, WanTrainModel
from .widgets import number, widget_values

_MEASURING_S = 10.0
"""longest time in seconds that a request measures new clips; the page asks again"""
_MOST = 64
_MOST_FILES = 400_000


def edits_of(
    dataset: Dataset, review: DatasetReview | None = None, thumbnails: Thumbnails | None = None
) -> CaptionEdits:
    """Returns the captions of a dataset's files; with a review, their groups as well."""
    return CaptionEdits(
        scanned_files(dataset, thumbnails),
        folders.allowed_places,
        (folders.cache().root / "unpacked",),
        clip_groups(review) if review is not None else None,
    )


class Scans:
    """The newest scans of this server by a random id; the page sends this id and a clip's number, never a path."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[CaptionEdits, Dataset | None]] = OrderedDict()
        self._turn = threading.Lock()

    def add(self, edits: CaptionEdits, dataset: Dataset | None = None) -> str:
        """Adds a dataset's files, and the dataset if its clips may be measured; returns their new id."""
        scan = secrets.token_hex(16)
        with self._turn:
            self._known[scan] = edits, dataset
            # Two limits, because one scan of 100,000 files needs as much memory as thousands of small ones.
            while len(self._known) > 1 and (
                len(self._known) > _MOST or sum(len(edits) for edits, _ in self._known.values()) > _MOST_FILES
            ):
                self._known.popitem(last=False)
        return scan

    def get(self, scan: str) -> CaptionEdits | None:
        """Returns the files of a scan; None for an unknown or forgotten id."""
        with self._turn:
            return self._known.get(scan, (None, None))[0]

    def dataset(self, scan: str) -> Dataset | None:
        """Returns the dataset of a scan; None for an unknown or forgotten id."""
        with self._turn:
            return self._known.get(scan, (None, None))[1]


SCANS = Scans()
"""the scans of this process"""
_MEASURING = threading.Lock()
"""held by the request that measures, so that pages do not decode the same clips"""


def dataset_input(name: str) -> io.Input:
    """Returns a shared input of the dataset nodes: model, force_rate, append_to or settings."""
    if name == "model":
        return WanTrainModel.Input(
            name,
            tooltip="The model to train, from Load Wan Model. It determines the frame rate and the size "
            "multiple of clips.",
        )
    if name == "force_rate":
        return number(
            name,
            0.0,
            0.0,
            120.0,
            "Frames per second to which clips are resampled. 0 = the model's own rate. Change it to train motion at "
            "another rate.",
        )
    if name == "append_to":
        return WanDataset.Input(
            name,
            optional=True,
            tooltip="Another dataset. Both are trained together. Connect it to train several folders.",
        )
    return WanDatasetSettingsType.Input(
        "settings",
        optional=True,
        tooltip="From Wan Dataset Settings. Connect it to change crops, windows of frames or validation.",
    )


def chosen_elsewhere(model: ModelHandle, force_rate: float, settings: DatasetSettingsHandle | None) -> dict[str, Any]:
    """Returns the fields of DatasetConfig that come from model and settings. `force_rate`: 0 is the model's rate."""
    return {
        "fps": force_rate or model.variant.fps,
        "size_multiple": model.variant.size_multiple,
        "conditioning": "context" if model.variant.family.context else model.variant.conditioning.name,
        **dict(settings.values if settings is not None else ()),
    }


def dataset_outputs() -> list[io.Output]:
    return [
        WanDataset.Output(display_name="dataset", tooltip="For Cache Latents + Captions."),
        io.String.Output(display_name="report", tooltip="Report of what was found, and what was skipped and why."),
        io.Image.Output(display_name="contact_sheet", tooltip="Preview image: the first frame of up to 48 files."),
    ]


def scanned_output(
    node: type[io.ComfyNode],
    append_to: Dataset | None,
    scan: Callable[[ScanContext], tuple[ScanResult, ...]],
) -> io.NodeOutput:
    """Runs `scan`, appends its datasets to `append_to`, and shows the result on the node."""
    cache = folders.cache()
    with _saved_at_last(cache.files), VideoProcess(mm.processing_interrupted) as video:
        context = scan_context(node, video, allowed_places(), cache.files)
        scanned = scan(context)
        dataset = Dataset((*(append_to.parts if append_to is not None else ()), *scanned))
        thumbnails = Thumbnails(video, cache.root / "thumbnails")
        sheet = torch.tensor(contact_sheet(dataset, thumbnails)).float()[None] / 255
        thumbnails.draw(sample for part in dataset.parts for sample in (*part.samples, *part.excluded))
        space = space_of(dataset)
        review = dataset_review(
            dataset,
            video=video,
            digest_of=lambda path: cache.files.digest(path, mm.processing_interrupted),  # CacheLatents reuses it
            space=space,
            seconds_per_megapixel=cache.entries.seconds_per_megapixel(space.name),
            known=cache.files,
        )
        advice = advice_on(review, measured_clips(dataset, context, allowed_s=0))
    report = "\n\n".join([dataset_report(dataset), review.report(), "\n".join(remark.text for remark in advice)])
    found = dataset_facts(review)
    facts: dict[str, Any] = {
        **found,
        "findings": [*found["findings"], *remark_facts(advice)],
        "asked": widget_values(node),
        "scan": SCANS.add(edits_of(dataset, review, thumbnails), dataset),
    }
    # Under the key "images", the page would draw the sheet a second time below the card.
    facts["image"] = dict(ui.PreviewImage(sheet, cls=node).values[0])
    return io.NodeOutput(dataset, report, sheet, ui={"text": [report], "wan_dataset": [facts]})


def measured_findings(dataset: Dataset) -> list[dict[str, Any]]:
    """Measures clips of a scan for at most `_MEASURING_S`; returns the findings of all that are measured."""
    known = folders.cache().files
    with _MEASURING, _saved_at_last(known), VideoProcess() as video:
        measured = measured_clips(dataset, ScanContext(video, known=known), allowed_s=_MEASURING_S)
    return remark_facts(remarks_on_findings(dataset, measured))


@contextlib.contextmanager
def _saved_at_last(known: KnownFiles) -> Iterator[None]:
    """Saves the memo of media files at the end, even of a stopped scan, so that the next scan reads only other
    files."""
    try:
        yield
    finally:
        known.save()


def scan_context(
    node: type[io.ComfyNode], video: VideoProcess, allowed: Sequence[Path] = (), known: KnownFiles | None = None
) -> ScanContext:
    """Returns the context of a scan that shows the node's progress bar and stops with Cancel."""
    progress = NodeProgress(node.hidden.unique_id)
    return ScanContext(
        video,
        allowed=allowed,
        progress=lambda done, total, name: progress.bar(done, total),
        should_stop=mm.processing_interrupted,
        known=known,
    )


def space_of(dataset: Dataset) -> LatentSpace:
    """Returns the latent space of the dataset's model, by its size multiple."""
    multiple = dataset.parts[0].config.size_multiple // (1 + dataset.kind.halves)
    return next((space for space in LATENT_SPACES if space.size_multiple == multiple), WAN21_LATENTS)
