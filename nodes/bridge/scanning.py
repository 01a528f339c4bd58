"""The common part of the dataset nodes: allowed places, fields the model decides, and a scan shown on the node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from comfy import model_management as mm
from comfy_api.latest import io, ui

from ...wan_core.cache import LatentCache
from ...wan_core.dataset import (
    Dataset,
    DatasetReview,
    KnownFiles,
    ScanContext,
    ScanResult,
    contact_sheet,
    dataset_facts,
    dataset_report,
    dataset_review,
)
from ...wan_core.model import LATENT_SPACES, WAN21_LATENTS, LatentSpace
from ...wan_core.video import VideoProcess
from . import folders
from .folders import allowed_places
from .interrupts import stops_become_interrupts
from .progress import NodeProgress
from .scans import SCANS
from .types import DatasetSettingsHandle, ModelHandle, WanDataset, WanDatasetSettingsType, WanTrainModel
from .widgets import asked_of, number


def dataset_input(name: str) -> io.Input:
    """Returns an input that dataset nodes have alike: model, force_rate, append_to or settings."""
    if name == "model":
        return WanTrainModel.Input(name, tooltip="Tells the frame rate and the size grid. From Load Wan Model.")
    if name == "force_rate":
        return number(name, 0.0, 0.0, 120.0, "Frames per second clips are resampled to. 0 = the model's own rate.")
    if name == "append_to":
        return WanDataset.Input(name, optional=True, tooltip="Another dataset, to train on both.")
    return WanDatasetSettingsType.Input("settings", optional=True, tooltip="From Wan Dataset Settings.")


def chosen_elsewhere(model: ModelHandle, force_rate: float, settings: DatasetSettingsHandle | None) -> dict[str, Any]:
    """Fields of DatasetConfig that model and WanDatasetSettings decide; `force_rate` 0 is the model's own."""
    return {
        "fps": force_rate or model.variant.fps,
        "size_multiple": model.variant.latents.size_multiple,
        "conditioning": model.variant.conditioning.name,
        **dict(settings.values if settings is not None else ()),
    }


def dataset_outputs() -> list[io.Output]:
    """Returns the outputs every dataset node declares."""
    return [
        WanDataset.Output(display_name="dataset", tooltip="For Cache Latents + Captions."),
        io.String.Output(display_name="report", tooltip="What was found, and what was skipped and why."),
        io.Image.Output(display_name="contact_sheet", tooltip="The first frame of up to 48 files."),
    ]


def scanned_output(
    node: type[io.ComfyNode],
    append_to: Dataset | None,
    scan: Callable[[ScanContext], tuple[ScanResult, ...]],
) -> io.NodeOutput:
    """Run `scan`, put its datasets behind those of `append_to`, and show what was found on the node."""
    cache = folders.cache()
    with stops_become_interrupts(), _saved_at_last(cache.files), VideoProcess(mm.processing_interrupted) as video:
        scanned = scan(scan_context(node, video, allowed_places(), cache.files))
        dataset = Dataset((*(append_to.parts if append_to is not None else ()), *scanned))
        sheet = torch.tensor(contact_sheet(dataset, video)).float()[None] / 255
        review = _review(dataset, video, cache)
    report = f"{dataset_report(dataset)}\n\n{review.report()}"
    facts = {**dataset_facts(review), "asked": asked_of(node), "scan": SCANS.add(dataset)}
    # Not as "images": the page would draw the sheet a second time, small, below the card that shows it.
    facts["image"] = dict(ui.PreviewImage(sheet, cls=node).values[0])
    return io.NodeOutput(dataset, report, sheet, ui={"text": [report], "wan_dataset": [facts]})


@contextlib.contextmanager
def _saved_at_last(known: KnownFiles) -> Iterator[None]:
    """Keeps what a scan found also when it is stopped, so that the next one goes on from there."""
    try:
        yield
    finally:
        known.save()


def scan_context(
    node: type[io.ComfyNode], video: VideoProcess, allowed: Sequence[Path] = (), known: KnownFiles | None = None
) -> ScanContext:
    """A scan that fills the bar of the node and ends with the queue's button to stop."""
    progress = NodeProgress(node.hidden.unique_id)
    return ScanContext(
        video,
        allowed=allowed,
        progress=lambda done, total, name: progress.bar(done, total),
        should_stop=mm.processing_interrupted,
        known=known,
    )


def _review(dataset: Dataset, video: VideoProcess, cache: LatentCache) -> DatasetReview:
    """Epochs, speed, copies and size; what it hashes is known to CacheLatents."""
    space = space_of(dataset)
    return dataset_review(
        dataset,
        video=video,
        digest_of=lambda path: cache.files.digest(path, mm.processing_interrupted),
        space=space,
        seconds_per_megapixel=cache.entries.seconds_per_megapixel(space.name),
        known=cache.files,
    )


def space_of(dataset: Dataset) -> LatentSpace:
    """Returns the latent space of the model the dataset was cut for, which its size multiple tells."""
    multiple = dataset.parts[0].config.size_multiple
    return next((space for space in LATENT_SPACES if space.size_multiple == multiple), WAN21_LATENTS)
