"""Wan Dataset Settings: what WanVideoDataset has no widget for. Leave it out to use the defaults."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.dataset import (
    CROPS,
    FLIPS,
    FRAME_EXTRACTIONS,
    FRAME_ROUNDINGS,
    MASK_USES,
    MISSING_CAPTIONS,
    DatasetConfig,
)
from ..wan_core.errors import ConfigError
from .bridge.types import CATEGORY, DatasetSettingsHandle, WanDatasetSettingsType
from .bridge.widgets import combo, flag, number, one_of, searched_as, text, whole

_defaults = DatasetConfig()
_CHOICES: dict[str, tuple[str, ...]] = {
    "frame_extraction": FRAME_EXTRACTIONS,
    "frame_rounding": FRAME_ROUNDINGS,
    "crop": CROPS,
    "horizontal_flip": FLIPS,
    "missing_captions": MISSING_CAPTIONS,
    "mask_use": MASK_USES,
    "latent_dtype": ("bf16", "fp16"),
    "cache_compression": ("none", "zstd"),
}


class WanDatasetSettings(io.ComfyNode):
    """Checked here, used in WanVideoDataset."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanDatasetSettings",
            display_name="Wan Dataset Settings",
            category=CATEGORY,
            **searched_as("frame extraction", "frame buckets", "crop", "flip", "scene cuts", "held out clips", "masks"),
            description="Which parts of each clip are trained on, and which part of the picture. Optional: "
            "WanVideoDataset works without it.",
            inputs=[
                combo(
                    "frame_extraction",
                    list(FRAME_EXTRACTIONS),
                    "Which windows of num_frames are taken. head: the first. chunk: one after the other. slide: one "
                    "every frame_stride frames. uniform: frame_sample, evenly spread. full: the whole clip, up to "
                    "num_frames. random: another place each epoch, of as many as variants says.",
                    _defaults.frame_extraction,
                ),
                whole(
                    "frame_stride",
                    _defaults.frame_stride,
                    1,
                    10_000,
                    "For slide: frames from the beginning of one window to that of the next, at the model's frame "
                    "rate.",
                ),
                whole("frame_sample", _defaults.frame_sample, 1, 1000, "For uniform: windows per clip."),
                text(
                    "frame_buckets",
                    "",
                    "Lengths in place of num_frames, such as 17, 33, 81: each window gets the longest it fills. Empty: "
                    "num_frames.",
                ),
                combo(
                    "frame_rounding",
                    list(FRAME_ROUNDINGS),
                    "What happens to a frame count that is not 4n+1, such as 75. refuse: stop. down: 73. nearest: the "
                    "nearer one.",
                    _defaults.frame_rounding,
                ),
                combo(
                    "crop",
                    list(CROPS),
                    "Which part stays of pictures that have another shape than the training size. center: the middle. "
                    "random: another place each epoch, of as many as variants says. none: each clip keeps its own size "
                    "(never above width x height in area).",
                    _defaults.crop,
                ),
                combo(
                    "horizontal_flip",
                    list(FLIPS),
                    "off: never. both: every clip also mirrored. turns: mirrored in every second epoch.",
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
                    "How different two frames must be to count as a cut (1 to 255). Lower finds more cuts.",
                    step=0.5,
                ),
                flag(
                    "recursive",
                    _defaults.recursive,
                    "Subfolders too. One named like 10_walk is seen ten times as often.",
                ),
                number(
                    "weight",
                    _defaults.weight,
                    0.0001,
                    10_000.0,
                    "How often the clips of this dataset are seen beside those of others; 0.5 is every second epoch.",
                ),
                text(
                    "caption_prefix",
                    "",
                    "Put in front of every caption, before the trigger word is looked for. Empty: none.",
                ),
                whole(
                    "caption_shuffles",
                    _defaults.caption_shuffles,
                    0,
                    64,
                    "Orders of comma-separated tags that are cached and take turns, one per epoch. 0 = as written.",
                ),
                whole(
                    "keep_tokens",
                    _defaults.keep_tokens,
                    0,
                    1000,
                    "For caption_shuffles: tags at the start that stay there.",
                ),
                combo(
                    "missing_captions",
                    list(MISSING_CAPTIONS),
                    "What happens to files without a caption, when there is no trigger word either. refuse: the scan "
                    "names them, nothing is encoded.",
                    _defaults.missing_captions,
                ),
                combo(
                    "mask_use",
                    list(MASK_USES),
                    "What is done with mask/clip.* or clip_mask.* (white = inside). off: nothing. loss: only white is "
                    "trained; known to make Wan worse. condition: VACE and Fun-InP paint inside it.",
                    _defaults.mask_use,
                ),
                number(
                    "held_out_ratio",
                    _defaults.held_out_ratio,
                    0.0,
                    0.9,
                    "Share of files (0 to 0.9) that is not trained but evaluated, chosen by content: adding clips "
                    "moves no other.",
                ),
                text(
                    "held_out",
                    "",
                    "Names of files to evaluate instead of training on, one per line; or a folder below the dataset, "
                    "ending in /.",
                    multiline=True,
                ),
                combo(
                    "latent_dtype",
                    list(_CHOICES["latent_dtype"]),
                    "Number format of cached latents. fp16 keeps three more bits of each value.",
                    _defaults.latent_dtype,
                ),
                combo(
                    "cache_compression",
                    list(_CHOICES["cache_compression"]),
                    "none: as they are. zstd: new cache entries are about a third smaller; nothing is lost. Needs the "
                    "package zstandard.",
                    _defaults.cache_compression,
                ),
                number(
                    "cache_limit_gb",
                    _defaults.cache_limit_gb,
                    0.0,
                    1_000_000.0,
                    "GiB the whole cache may take: what was used longest ago goes, never what an unfinished run needs. "
                    "0 = no limit.",
                    step=1.0,
                ),
            ],
            outputs=[
                WanDatasetSettingsType.Output(
                    display_name="settings", tooltip="For WanVideoDataset and WanDatasetFromFile."
                )
            ],
        )

    @classmethod
    def execute(cls, frame_buckets: str = "", held_out: str = "", **values: Any) -> io.NodeOutput:
        for name, known in _CHOICES.items():
            if name in values:
                one_of(name, values[name], known)
        values["frame_buckets"] = _lengths(frame_buckets)
        values |= _held_out([line.strip() for line in held_out.splitlines() if line.strip()])
        # num_frames and the rest come from WanVideoDataset; what can be checked without them is checked here.
        DatasetConfig.from_dict(values)
        return io.NodeOutput(DatasetSettingsHandle(tuple(values.items())))


def _held_out(names: list[str]) -> dict[str, Any]:
    """The settings that lines of file names, and at most one folder ending in /, stand for."""
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
