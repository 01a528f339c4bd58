"""Wan Dataset Settings: dataset settings without a widget on WanVideoDataset. Optional."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.dataset import DatasetConfig
from ..wan_core.errors import ConfigError
from .bridge.types import CATEGORY, DatasetSettingsHandle, WanDatasetSettingsType
from .bridge.widgets import advanced, check_menus, searched_as, widget

_NEW_HELD_OUT_RATIO = -1.0
"""default of a new node: a few files, if there are enough; a queued graph without the widget means 0"""


class WanDatasetSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanDatasetSettings",
            display_name="Wan Dataset Settings",
            category=CATEGORY,
            **searched_as("frame extraction", "frame buckets", "crop", "flip", "scene cuts", "held out clips", "masks"),
            description="Sets which frames and which part of the picture are trained. Optional: Wan Video Dataset "
            "works without it.",
            inputs=[
                widget(DatasetConfig, "frame_extraction"),
                *_advanced("frame_stride", "frame_sample", "frame_buckets", "frame_rounding"),
                widget(DatasetConfig, "crop"),
                widget(DatasetConfig, "horizontal_flip"),
                *_advanced("variants", "split_scenes", "scene_threshold", "recursive", "weight", "caption_prefix"),
                *_advanced("caption_shuffles", "keep_tokens"),
                widget(DatasetConfig, "missing_captions"),
                *_advanced("mask_use"),
                widget(DatasetConfig, "held_out_ratio", default=_NEW_HELD_OUT_RATIO),
                *advanced(widget(DatasetConfig, "held_out", multiline=True)),
                *_advanced("latent_dtype", "cache_compression", "cache_limit_gb", "prior_preservation"),
                *_advanced("class_preservation", "class_word"),
            ],
            outputs=[
                WanDatasetSettingsType.Output(
                    display_name="settings", tooltip="For Wan Video Dataset and Wan Dataset From File."
                )
            ],
        )

    @classmethod
    def execute(cls, frame_buckets: str = "", held_out: str = "", **values: Any) -> io.NodeOutput:
        check_menus(DatasetConfig, values)
        values["frame_buckets"] = _lengths(frame_buckets)
        values |= _held_out([line.strip() for line in held_out.splitlines() if line.strip()])
        # A check without num_frames and other settings of WanVideoDataset.
        DatasetConfig.from_dict(values)
        return io.NodeOutput(DatasetSettingsHandle(tuple(values.items())))


def _advanced(*names: str) -> list[io.Input]:
    return advanced(*(widget(DatasetConfig, name) for name in names))


def _held_out(names: list[str]) -> dict[str, Any]:
    """Returns the settings of lines of file names and at most one folder, which ends in /."""
    files = tuple(name for name in names if not name.endswith("/"))
    folders = [name.rstrip("/") for name in names if name.endswith("/")]
    if len(folders) > 1:
        raise ConfigError(
            f"held_out names {len(folders)} folders ({', '.join(folders)[:200]}). Name one, or the files."
        )
    return ({"held_out": files} if files else {}) | ({"held_out_folder": folders[0]} if folders else {})


def _lengths(listed: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in listed.replace(",", " ").split())
    except ValueError as error:
        raise ConfigError(f'frame_buckets "{listed[:100]}" is not a list of lengths. Example: 17, 33, 81') from error
