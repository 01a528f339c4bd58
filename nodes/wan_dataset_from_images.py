"""Wan Dataset from Images: makes a dataset of IMAGEs or VIDEOs of other nodes, with captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comfy import model_management as mm
from comfy_api.latest import io
from torch import Tensor

from ..wan_core.dataset import Dataset, DatasetConfig, dataset_report
from ..wan_core.errors import WanTrainerError
from ..wan_core.importers import Pixels, match_captions, scan_pixels
from ..wan_core.video import VideoProcess, require_pyav
from .bridge import folders
from .bridge.handed import CACHE
from .bridge.progress import announced
from .bridge.scanning import dataset_input, scan_context
from .bridge.types import ModelHandle, WanDataset
from .bridge.widgets import advanced, combo, in_menu, number, one_of, text, widget

_BATCH_IS = ["clip", "stills"]


class WanDatasetFromImages(io.ComfyNode):
    """Separate from WanVideoDataset, because `is_input_list` turns every widget into a list."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanDatasetFromImages",
            display_name="Wan Dataset from Images",
            **in_menu("image dataset, video list, stills, photos, training data"),
            description="Builds a dataset from images of the graph. They are stored without loss in the cache folder, "
            "so training and resuming do not need the graph again; pressing Run again writes and encodes nothing.",
            is_input_list=True,
            hidden=[io.Hidden.unique_id],
            inputs=[
                dataset_input("model"),
                io.MultiType.Input(
                    "images",
                    [io.Image, io.Video],
                    tooltip="A list: one IMAGE or VIDEO for each clip; or stills, single or in batches.",
                ),
                text(
                    "captions",
                    "",
                    "One caption for each clip or still: a list of texts, or one text with one line for each.",
                    multiline=True,
                ),
                combo(
                    "batch_is",
                    _BATCH_IS,
                    "What an image batch is. clip: each IMAGE is one clip. stills: each frame is a picture. Choose "
                    "stills for batches of single pictures.",
                ),
                *advanced(
                    number(
                        "fps",
                        0.0,
                        0.0,
                        120.0,
                        "Frames per second of the clips. 0 = a VIDEO's own rate; for an IMAGE, the model's. Set it "
                        "when this rate is wrong.",
                    )
                ),
                widget(DatasetConfig, "width"),
                widget(DatasetConfig, "height"),
                widget(
                    DatasetConfig,
                    "num_frames",
                    tooltip="Frames per clip, from its start: 4n+1. Raise it for longer motion, which takes more "
                    "memory and time.",
                ),
                *advanced(
                    widget(
                        DatasetConfig,
                        "num_repeats",
                        tooltip="How often each clip is trained in one epoch. Raise it for a small dataset that is "
                        "trained with a large one.",
                    ),
                    widget(DatasetConfig, "enable_bucket"),
                ),
                dataset_input("append_to"),
            ],
            outputs=[
                WanDataset.Output(display_name="dataset", tooltip="For Cache Latents + Captions."),
                io.String.Output(display_name="report", tooltip="Report of what will be trained."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return CACHE.losses()

    @classmethod
    def validate_inputs(cls) -> bool | str:
        """Refuses a PyAV without lossless encoding."""
        try:
            require_pyav()
        except WanTrainerError as error:
            return announced(error)
        return True

    @classmethod
    def execute(
        cls,
        model: list[ModelHandle],
        images: list[Any],
        captions: Sequence[str] = ("",),
        batch_is: Sequence[str] = ("clip",),
        fps: Sequence[float] = (0.0,),
        append_to: Sequence[Dataset | None] = (None,),
        **values: Sequence[Any],
    ) -> io.NodeOutput:
        variant = model[0].variant
        stills = one_of("batch_is", batch_is[0], _BATCH_IS) == "stills"
        config = DatasetConfig(
            folder="images of the graph",
            fps=variant.fps,
            **{name: value[0] for name, value in values.items()},
            size_multiple=variant.size_multiple,
            conditioning=variant.conditioning.name,
        )
        with VideoProcess(mm.processing_interrupted) as video:
            rates = _rates(images, fps, variant.fps)
            clips = match_captions([_pixels(one) for one in images], captions, rates, stills=stills)
            cache_root = folders.cache().root
            scanned = scan_pixels(config, clips, scan_context(cls, video), stills=stills, cache_root=cache_root)
        CACHE.note(f"images of {cls.hidden.unique_id}", {sample.path for sample in scanned.samples})
        before = append_to[0]
        dataset = Dataset((*(before.parts if before is not None else ()), scanned))
        report = dataset_report(dataset)
        return io.NodeOutput(dataset, report, ui={"text": [report]})


def _pixels(image: Any) -> Pixels:
    """Returns the frames of an IMAGE, or a function that decodes a VIDEO, so that one clip at a time is in memory."""
    return image if isinstance(image, Tensor) else lambda: image.get_components().images


def _rates(images: Sequence[Any], fps: Sequence[float], usual: float) -> list[float]:
    """Returns the frames per second of each clip. `fps`: one value for all or for each; 0: the clip's own rate."""
    given = [fps[0]] * len(images) if len(fps) == 1 else list(fps)
    if len(given) != len(images):
        return given  # match_captions refuses another number of values
    return [rate or _own_rate(image, usual) for rate, image in zip(given, images, strict=True)]


def _own_rate(image: Any, usual: float) -> float:
    if isinstance(image, Tensor):
        return usual
    known = getattr(image, "get_frame_rate", None)  # missing in ComfyUI 0.3.75: the clip must be decoded there
    return float(known() if known is not None else image.get_components().frame_rate)
