"""Wan Clip Frames: frames of clips for a captioner. Wan Save Captions: writes its answers beside the clips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from comfy import model_management as mm
from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..wan_core.dataset import (
    CaptionRules,
    Dataset,
    Found,
    answers_of,
    clips_by_name,
    frames_to_look_at,
    with_new_captions,
)
from ..wan_core.errors import DatasetError
from ..wan_core.video import VideoProcess
from ..wan_core.words import counted, listed, logger
from .bridge.progress import NodeProgress
from .bridge.scanning import SCANS, edits_of, scanned_output
from .bridge.types import WanDataset
from .bridge.widgets import advanced, combo, flag, in_menu, judged_when_it_runs, one_of, text, whole

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
            **in_menu("caption, captioner, video frames, describe clips, tagging"),
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
        with VideoProcess(mm.processing_interrupted) as video:
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


_log = logger(__name__)

_NONE = ("",)
"""value of an input that is not connected; a connected input is a list"""
_LISTS = {
    "captions": "List of captions from the captioner, one for each clip. It runs only if a caption is written.",
    "names": "The names of these clips, from Wan Clip Frames.",
}


class WanSaveCaptions(io.ComfyNode):
    """An output node, so that captions are saved without training."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanSaveCaptions",
            display_name="Wan Save Captions",
            **in_menu("captioner, auto caption, write txt, tagging"),
            description="Saves captions in text files next to the clips, and outputs the dataset with them. "
            "Existing captions are kept. If no caption is missing, the captioner is not loaded.",
            is_input_list=True,
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                WanDataset.Input("dataset", tooltip="The same dataset as for Wan Clip Frames."),
                *(
                    io.String.Input(name, lazy=True, force_input=True, optional=True, default="", tooltip=tooltip)
                    for name, tooltip in _LISTS.items()
                ),
                text(
                    "trigger_word",
                    "",
                    "Word in front of each new caption that lacks it. Leave it empty if Wan Video Dataset has it.",
                ),
                text(
                    "prefix",
                    "",
                    "Text in front of each new caption, such as a style. Set it to name a style in all captions.",
                ),
                flag(
                    "clean_up",
                    True,
                    'Remove openings such as "The video shows", quotation marks and the reasoning of a model. Turn it '
                    "off to keep every word.",
                ),
                whole(
                    "replace_captions",
                    0,
                    0,
                    1000000,
                    "Number of existing captions to replace. 0 = none: only missing captions are written. A wrong "
                    "number is refused, so that no caption is lost by mistake. Set it to the number that the error "
                    "message names.",
                ),
            ],
            outputs=[
                WanDataset.Output(
                    display_name="dataset", tooltip="The dataset with the new captions, for Cache Latents + Captions."
                ),
                io.String.Output(display_name="report", tooltip="Report of the written captions and their lengths."),
            ],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def check_lazy_status(
        cls,
        dataset: Sequence[Dataset],
        captions: Sequence[str | None] = _NONE,
        names: Sequence[str | None] = _NONE,
        replace_captions: Sequence[int] = (0,),
        **_: object,
    ) -> list[str]:
        clips = clips_by_name(edits_of(dataset[0]))
        if not replace_captions[0] and all(one.caption for one in clips.values()):
            return []
        if _NONE in (captions, names):
            raise DatasetError(
                "Captions are missing, and no captioner is connected. Connect names of Wan Clip Frames, and captions "
                "of a node that writes texts about its frames."
            )
        if names[0] is None:
            return ["names"]
        return ["captions"] if _to_write(clips, names, replace_captions[0]) and captions[0] is None else []

    @classmethod
    def execute(
        cls,
        dataset: Sequence[Dataset],
        captions: Sequence[str | None] = _NONE,
        names: Sequence[str | None] = _NONE,
        trigger_word: Sequence[str] = ("",),
        prefix: Sequence[str] = ("",),
        clean_up: Sequence[bool] = (True,),
        replace_captions: Sequence[int] = (0,),
    ) -> io.NodeOutput:
        edits = edits_of(dataset[0])
        scan = SCANS.add(edits)
        clips = clips_by_name(edits)
        to_write = _to_write(clips, names, replace_captions[0])
        if not to_write:
            report = f"{counted(sum(bool(one.caption) for one in clips.values()), 'caption')} kept, none written"
            return io.NodeOutput(dataset[0], report, ui={"text": [report]})
        rules = CaptionRules(trigger_word=trigger_word[0], prefix=prefix[0], clean_up=clean_up[0])
        answers = answers_of([str(name) for name in names], [str(one or "") for one in captions], rules)
        new = {
            clips[name].clip: (clips[name].caption, said) for name, said in answers.captions.items() if name in to_write
        }
        done = edits.write_all((clip, before, said) for clip, (before, said) in new.items())
        paths = [edits.path_of(clip) for clip in new]
        made = scanned_output(cls, None, lambda context: with_new_captions(dataset[0], paths, context))
        found, report, _ = made.args
        shown: Any = made.ui
        problems = [*answers.unusable, *done.refused]
        left = [name for name, one in clips.items() if not one.caption and name not in to_write]
        if problems and not left and any(part.captionless for part in found.parts):
            raise DatasetError(
                "{problems} The other captions are saved ({count}). Write the missing ones on the dataset node, or "
                "press Run again with another prompt.",
                problems=" ".join(problems),
                count=done.clips,
            )
        lines = [f"{counted(done.clips, 'caption')} written: {answers.lengths()}", *problems]
        lines += [f"{counted(len(left), 'clip')} without a caption: press Run again for the next ones."] if left else []
        _log.info("%s", "; ".join(lines))
        ui: dict[str, Any] = {**shown, "text": ["\n".join([*lines, "", report])]}
        ui["wan_dataset"][0]["undo"] = {"scan": scan, "change": done.change}
        return io.NodeOutput(ExecutionBlocker(None) if left else found, ui["text"][0], ui=ui)


def _to_write(clips: dict[str, Found], names: Sequence[str | None], replace: int) -> list[str]:
    """Returns the names of clips to caption. Raises DatasetError for an unknown name, or another number than `replace`
    of captions that are replaced."""
    given = [name for name in names if name]
    if unknown := [name for name in given if name not in clips]:
        raise DatasetError(
            "No clip of this dataset is called {names}. Connect names of Wan Clip Frames, and connect the same "
            "dataset to both nodes.",
            names=listed(unknown),
        )
    existing = [name for name in given if clips[name].caption]
    if not replace:
        return [name for name in given if name not in existing]
    if len(existing) != replace:
        raise DatasetError(
            "{existing} of these {clips} clips have a caption already. To replace them, set replace_captions to "
            "{existing}, and back to 0 afterwards; to write others, set clips of Wan Clip Frames to all.",
            existing=len(existing),
            clips=len(given),
        )
    return given
