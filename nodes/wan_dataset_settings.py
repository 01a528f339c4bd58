"""Wan Dataset Settings: what WanVideoDataset has no widget for. Leave it out to use the defaults."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.data import CROPS, FLIPS, FRAME_EXTRACTIONS, FRAME_ROUNDINGS, DatasetConfig
from ..wan_core.errors import ConfigError
from .types import CATEGORY, DatasetSettingsHandle, WanDatasetSettingsType
from .widgets import combo, flag, number, one_of, text, whole

_defaults = DatasetConfig()
_CHOICES: dict[str, tuple[str, ...]] = {
    "frame_extraction": FRAME_EXTRACTIONS,
    "frame_rounding": FRAME_ROUNDINGS,
    "crop": CROPS,
    "horizontal_flip": FLIPS,
}


class WanDatasetSettings(io.ComfyNode):
    """Checked here, used in WanVideoDataset."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanDatasetSettings",
            display_name="Wan Dataset Settings",
            category=CATEGORY,
            description="Which parts of each clip are trained on, and which part of the picture. Optional: "
            "WanVideoDataset works without it.",
            inputs=[
                combo(
                    "frame_extraction",
                    list(FRAME_EXTRACTIONS),
                    "Which windows of num_frames are taken. head: the first. chunk: one after the other. slide: one "
                    "every frame_stride frames. uniform: frame_sample, evenly spread. full: the whole clip, up to "
                    "num_frames. random: another place each epoch, of `variants`.",
                    _defaults.frame_extraction,
                ),
                whole(
                    "frame_stride",
                    _defaults.frame_stride,
                    1,
                    10_000,
                    "slide: frames from the beginning of one window to that of the next, at the model's frame rate.",
                ),
                whole("frame_sample", _defaults.frame_sample, 1, 1000, "uniform: windows per clip."),
                text(
                    "frame_buckets",
                    "",
                    "Lengths in place of num_frames, such as 17, 33, 81: each window gets the longest it fills.",
                ),
                combo(
                    "frame_rounding",
                    list(FRAME_ROUNDINGS),
                    "What happens to a frame count that is not 4n+1, such as 75.",
                    _defaults.frame_rounding,
                ),
                combo(
                    "crop",
                    list(CROPS),
                    "Of pictures with another shape than their bucket. center: the middle. random: another place each "
                    "epoch, of `variants`. none: each clip keeps its own size (never above width x height in area).",
                    _defaults.crop,
                ),
                combo(
                    "horizontal_flip",
                    list(FLIPS),
                    "both: every clip also mirrored. turns: mirrored in every second epoch.",
                    _defaults.horizontal_flip,
                ),
                whole(
                    "variants",
                    _defaults.variants,
                    1,
                    1000,
                    "Random windows and crops cached per clip; they take turns, one per epoch.",
                ),
                flag(
                    "split_scenes",
                    _defaults.split_scenes,
                    "Find the cuts in each clip, so that no window crosses one. Needs the package scenedetect.",
                ),
                number(
                    "scene_threshold",
                    _defaults.scene_threshold,
                    1.0,
                    255.0,
                    "How different two frames must be to be a cut. Lower finds more.",
                    step=0.5,
                ),
            ],
            outputs=[WanDatasetSettingsType.Output(display_name="settings", tooltip="For WanVideoDataset.")],
        )

    @classmethod
    def execute(cls, frame_buckets: str = "", **values: Any) -> io.NodeOutput:
        for name, known in _CHOICES.items():
            if name in values:
                one_of(name, values[name], known)
        values["frame_buckets"] = _lengths(frame_buckets)
        # num_frames and the rest come from WanVideoDataset; what can be checked without them is checked here.
        DatasetConfig.from_dict(values)
        return io.NodeOutput(DatasetSettingsHandle(tuple(values.items())))


def _lengths(listed: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in listed.replace(",", " ").split())
    except ValueError as error:
        raise ConfigError(f'frame_buckets "{listed[:100]}" is not a list of lengths. Example: 17, 33, 81') from error
