"""Wan Video Dataset: a folder of clips or stills with captions, cut to what the model needs. Trains nothing."""

from __future__ import annotations

from pathlib import Path

import folder_paths
import torch
from comfy import model_management as mm
from comfy_api.latest import io, ui

from ..wan_core.data import (
    Dataset,
    DatasetConfig,
    EncodingSpeed,
    allowed_folder,
    condition_kind,
    contact_sheet,
    dataset_review,
    folder_fingerprint,
    list_folders,
    read_roots,
    scan_folder,
)
from ..wan_core.errors import WanTrainerError
from ..wan_core.video import VideoProcess
from . import folders
from .cache_latents import space_of
from .interrupts import stops_become_interrupts
from .progress import NodeProgress
from .types import CATEGORY, ModelHandle, WanDataset, WanTrainModel
from .widgets import combo, flag, number, text, whole


class WanVideoDataset(io.ComfyNode):
    """An output node, so that "run selected" scans a folder without training."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanVideoDataset",
            display_name="Wan Video Dataset",
            category=CATEGORY,
            description="Scans a folder of clips (or stills) with a caption file beside each, and says what will be "
            "trained: which frames, at which size, and what was left out and why.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id],
            inputs=[
                WanTrainModel.Input("model", tooltip="Tells the frame rate and the size grid. From LoadWanModel."),
                combo(
                    "folder",
                    dataset_folders(),
                    "A folder in ComfyUI's input folder, or in a root listed in user/wan_trainer/roots.json.",
                ),
                text(
                    "trigger_word",
                    "",
                    "Put in front of every caption that lacks it; the whole caption of files without one.",
                ),
                text("caption_extension", ".txt", "Of the caption file beside each clip: clip.mp4 and clip.txt."),
                whole(
                    "width", 832, 16, 4096, "Pixels. Clips of other shapes keep their shape in the same area.", step=16
                ),
                whole("height", 480, 16, 4096, "Pixels.", step=16),
                whole(
                    "num_frames", 33, 1, 1001, "Frames from the start of each clip: 4n+1. 1 trains on stills.", step=4
                ),
                number(
                    "force_rate", 0.0, 0.0, 120.0, "Frames per second clips are resampled to. 0 = the model's own rate."
                ),
                whole("num_repeats", 1, 1, 10_000, "How often each file is seen in one epoch."),
                flag("enable_bucket", True, "Keep each clip's shape. Off: crop everything to width x height."),
                WanDataset.Input("append_to", optional=True, tooltip="Another dataset, to train on both."),
            ],
            outputs=[
                WanDataset.Output(display_name="dataset", tooltip="For CacheLatents."),
                io.String.Output(display_name="report", tooltip="What was found, and what was left out and why."),
                io.Image.Output(display_name="contact_sheet", tooltip="The first frame of up to 48 files."),
            ],
        )

    @classmethod
    def validate_inputs(cls, folder: str | None = None) -> bool | str:
        """Refuses a folder before anything runs; naming it here also lets a folder in that was made a moment ago."""
        if folder is None:  # linked: known only when it runs
            return True
        try:
            _folder(folder)
        except WanTrainerError as error:
            return str(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, folder: str | None = None, **_: object) -> str:
        return folder_fingerprint(_folder(folder))

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        folder: str | None = None,
        trigger_word: str = "",
        caption_extension: str = ".txt",
        width: int = 832,
        height: int = 480,
        num_frames: int = 33,
        force_rate: float = 0.0,
        num_repeats: int = 1,
        enable_bucket: bool = True,
        append_to: Dataset | None = None,
    ) -> io.NodeOutput:
        config = DatasetConfig(
            folder=_reference(folder),
            trigger_word=trigger_word,
            caption_extension=caption_extension,
            width=width,
            height=height,
            num_frames=num_frames,
            fps=force_rate or model.variant.fps,
            num_repeats=num_repeats,
            enable_bucket=enable_bucket,
            size_multiple=model.variant.size_multiple,
            conditioning=condition_kind(
                model.variant.task, model.variant.shape.image_dim, model.variant.shape.condition_channels
            ).name,
        )
        progress = NodeProgress(cls.hidden.unique_id)
        with stops_become_interrupts(), VideoProcess(mm.processing_interrupted) as video:
            scanned = scan_folder(
                config,
                _folder(folder),
                video,
                allowed=_allowed(),
                progress=lambda done, total, name: progress.bar(done, total),
                should_stop=mm.processing_interrupted,
            )
            dataset = Dataset((*(append_to.parts if append_to is not None else ()), scanned))
            sheet = torch.tensor(contact_sheet(dataset, video)).float()[None] / 255
            report = f"{dataset.report()}\n\n{cls._review(dataset, video)}"
        shown = ui.PreviewImage(sheet, cls=cls).as_dict()
        return io.NodeOutput(dataset, report, sheet, ui={**shown, "text": [report]})

    @staticmethod
    def _review(dataset: Dataset, video: VideoProcess) -> str:
        """Epochs, speed, copies and size; what it hashes is remembered for CacheLatents."""
        cache, space = folders.cache(), space_of(dataset)
        try:
            return dataset_review(
                dataset,
                video=video,
                digest_of=lambda path: cache.digest_of(path, mm.processing_interrupted),
                space=space,
                seconds_per_megapixel=EncodingSpeed(cache.root).seconds_per_megapixel(space.name),
            )
        finally:
            cache.save_digests()


def dataset_folders() -> list[str]:
    """References for the menu; a broken roots file shows up when the node runs."""
    try:
        return list_folders(_input(), read_roots(folders.user_roots_file()))
    except WanTrainerError:
        return list_folders(_input(), [])


def _input() -> Path:
    return Path(folder_paths.get_input_directory())


def _allowed() -> tuple[Path, ...]:
    """Where the files of a dataset may lie: ComfyUI's input folder and the roots of the server-side file."""
    return (_input(), *read_roots(folders.user_roots_file()))


def _reference(folder: str | None) -> str:
    """The folder asked for; the first of the menu where a queued graph leaves it out."""
    return next(iter(dataset_folders()), "") if folder is None else folder


def _folder(folder: str | None) -> Path:
    input_root, *extra_roots = _allowed()
    return allowed_folder(_reference(folder), input_root=input_root, extra_roots=extra_roots)
