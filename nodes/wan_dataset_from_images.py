"""Wan Dataset from Images: clips or stills that other nodes made, with their captions, as a dataset."""

from __future__ import annotations

from collections.abc import Sequence

from comfy import model_management as mm
from comfy_api.latest import io
from torch import Tensor

from ..wan_core.dataset import Dataset, DatasetConfig, condition_kind, dataset_report
from ..wan_core.errors import WanTrainerError
from ..wan_core.importers import match_captions, scan_pixels
from ..wan_core.video import VideoProcess, require_pyav
from .bridge import folders
from .bridge.interrupts import stops_become_interrupts
from .bridge.scanning import scan_context
from .bridge.types import CATEGORY, ModelHandle, WanDataset, WanTrainModel
from .bridge.widgets import combo, number, one_of, searched_as, text, widget

BATCH_IS = ["clip", "stills"]


class WanDatasetFromImages(io.ComfyNode):
    """A node of its own beside WanVideoDataset, because taking lists turns every widget into a list."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanDatasetFromImages",
            display_name="Wan Dataset from Images",
            category=CATEGORY,
            **searched_as("image dataset", "stills", "photos", "training data"),
            description="A dataset of images from the graph. They are kept without loss in the cache folder, so "
            "training, resuming and caching need the graph no more; queueing again writes and encodes nothing.",
            is_input_list=True,
            hidden=[io.Hidden.unique_id],
            inputs=[
                WanTrainModel.Input("model", tooltip="Tells the frame rate and the size grid. From LoadWanModel."),
                io.Image.Input("images", tooltip="A list: one IMAGE for each clip, or stills, alone or in batches."),
                text(
                    "captions",
                    "",
                    "One for each clip or still: a list of texts, or one text with a line for each.",
                    multiline=True,
                ),
                combo("batch_is", BATCH_IS, "clip: each IMAGE is one clip. stills: each frame is a picture."),
                number("fps", 0.0, 0.0, 120.0, "Frames per second the clips were made for. 0 = the model's own rate."),
                widget(DatasetConfig, "width"),
                widget(DatasetConfig, "height"),
                widget(DatasetConfig, "num_frames", tooltip="Frames from the start of each clip: 4n+1."),
                widget(DatasetConfig, "num_repeats", tooltip="How often each clip is seen in one epoch."),
                widget(DatasetConfig, "enable_bucket"),
                WanDataset.Input("append_to", optional=True, tooltip="Another dataset, to train on both."),
            ],
            outputs=[
                WanDataset.Output(display_name="dataset", tooltip="For CacheLatents."),
                io.String.Output(display_name="report", tooltip="What will be trained."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        """Returns a mark that changes when somebody deletes what was kept, so that it is written again."""
        parts = (folders.cache().root / name for name in ("clips", "pictures"))
        return [part.stat().st_ino if part.is_dir() else 0 for part in parts]

    @classmethod
    def validate_inputs(cls) -> bool | str:
        """Refuses a PyAV that would keep the clips inexactly."""
        try:
            require_pyav()
        except WanTrainerError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls,
        model: list[ModelHandle],
        images: list[Tensor],
        captions: Sequence[str] = ("",),
        batch_is: Sequence[str] = ("clip",),
        fps: Sequence[float] = (0.0,),
        width: Sequence[int] = (DatasetConfig.width,),
        height: Sequence[int] = (DatasetConfig.height,),
        num_frames: Sequence[int] = (DatasetConfig.num_frames,),
        num_repeats: Sequence[int] = (DatasetConfig.num_repeats,),
        enable_bucket: Sequence[bool] = (DatasetConfig.enable_bucket,),
        append_to: Sequence[Dataset | None] = (None,),
    ) -> io.NodeOutput:
        variant = model[0].variant
        stills = one_of("batch_is", batch_is[0], BATCH_IS) == "stills"
        config = DatasetConfig(
            folder="images of the graph",
            width=width[0],
            height=height[0],
            num_frames=num_frames[0],
            fps=variant.fps,
            num_repeats=num_repeats[0],
            enable_bucket=enable_bucket[0],
            size_multiple=variant.size_multiple,
            conditioning=condition_kind(variant.task, variant.shape.image_dim, variant.shape.condition_channels).name,
        )
        clips = match_captions(images, captions, stills=stills)
        with stops_become_interrupts(), VideoProcess(mm.processing_interrupted) as video:
            scanned = scan_pixels(
                config,
                clips,
                scan_context(cls, video),
                stills=stills,
                fps=fps[0] or variant.fps,
                cache_root=folders.cache().root,
            )
        before = append_to[0]
        dataset = Dataset((*(before.parts if before is not None else ()), scanned))
        report = dataset_report(dataset)
        return io.NodeOutput(dataset, report, ui={"text": [report]})
