"""Wan Clip Frames: frames of a dataset's clips for a captioner."""

from __future__ import annotations

import numpy as np
import torch
from comfy import model_management as mm
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..wan_core.dataset import Dataset, clips_by_name, frames_to_look_at
from ..wan_core.errors import DatasetError
from ..wan_core.video import VideoProcess
from .bridge.interrupts import stops_become_interrupts
from .bridge.progress import NodeProgress
from .bridge.scanning import edits_of
from .bridge.types import CATEGORY, WanDataset
from .bridge.widgets import advanced, combo, judged_when_it_runs, one_of, searched_as, whole

_CLIPS = ["without a caption", "all"]
_FRAMES_AS = ["batch", "strip"]
_CLIPS_THIS_QUEUE = 20


class WanClipFrames(io.ComfyNode):
    """Separate from Wan Save Captions, so that any captioner can be placed between both nodes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanClipFrames",
            display_name="Wan Clip Frames",
            category=CATEGORY,
            **searched_as("caption", "captioner", "video frames", "describe clips", "tagging"),
            description="Frames of the clips of a dataset, one IMAGE for each clip, for a node that writes captions: "
            "core's Generate Text, or any other. Its captions go to Wan Save Captions.",
            hidden=[io.Hidden.unique_id],
            inputs=[
                WanDataset.Input("dataset", tooltip="From Wan Video Dataset, or another dataset node."),
                combo(
                    "clips",
                    _CLIPS,
                    "Clips to output: all, or those without a caption. Choose all to replace captions; then set "
                    "replace_captions of Wan Save Captions too.",
                ),
                whole(
                    "clips_this_queue",
                    _CLIPS_THIS_QUEUE,
                    0,
                    100000,
                    "Largest number of clips per Run; their captions are saved together, after the last of them. 0 "
                    "= all clips. "
                    "Lower it to lose less when you cancel.",
                ),
                whole(
                    "frames",
                    6,
                    1,
                    64,
                    "Number of frames of each clip, evenly spaced over the part that is trained. Raise it for motion "
                    "that changes; the captioner then takes more memory and time.",
                ),
                combo(
                    "frames_as",
                    _FRAMES_AS,
                    "batch: the frames of a clip are one IMAGE batch. strip: the frames are side by side in one "
                    "picture. "
                    "Choose strip for a captioner that reads single pictures.",
                ),
                *advanced(
                    whole(
                        "longest_side",
                        512,
                        64,
                        2048,
                        "Longest side of a frame in pixels. Raise it for small details, such as text on a sign.",
                        step=8,
                    )
                ),
            ],
            outputs=[
                io.Image.Output(
                    display_name="frames", is_output_list=True, tooltip="One IMAGE for each clip, for a captioner."
                ),
                io.String.Output(
                    display_name="names", is_output_list=True, tooltip="Names of these clips, for Wan Save Captions."
                ),
            ],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls,
        dataset: Dataset,
        clips: str = _CLIPS[0],
        clips_this_queue: int = _CLIPS_THIS_QUEUE,
        frames: int = 6,
        frames_as: str = _FRAMES_AS[0],
        longest_side: int = 512,
    ) -> io.NodeOutput:
        every = one_of("clips", clips, _CLIPS) == "all"
        strip = one_of("frames_as", frames_as, _FRAMES_AS) == "strip"
        edits = edits_of(dataset)
        found = {name: one.clip for name, one in clips_by_name(edits).items() if every or not one.caption}
        names = list(found)[: clips_this_queue or None]
        if not names:  # An empty list is not returned, because ComfyUI would run a captioner without a picture.
            return io.NodeOutput([ExecutionBlocker(None)], [""])
        progress, images, unread = NodeProgress(cls.hidden.unique_id), dict[str, torch.Tensor](), list[str]()
        with stops_become_interrupts(), VideoProcess(mm.processing_interrupted) as video:
            shots = [edits.shot_of(found[name]) for name in names]
            looked = frames_to_look_at(dataset, shots, video, frames, longest_side)
            for number, (name, pixels) in enumerate(zip(names, looked, strict=True), 1):
                mm.throw_exception_if_processing_interrupted()
                progress.bar(number, len(names))
                if isinstance(pixels, str):
                    unread.append(pixels)
                else:
                    picture = np.concatenate(list(pixels), 1)[None] if strip else pixels
                    images[name] = torch.from_numpy(picture).float() / 255
        if not images:
            raise DatasetError("None of the clips can be read. {reason}", reason=unread[0])
        text = "\n".join([f"frames of {len(images)} of {len(found)} clips", *unread])
        return io.NodeOutput(list(images.values()), list(images), ui={"text": [text]})
