"""The settings of one dataset: what is trained on, and at which size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..config import Config, setting
from ..errors import ConfigError
from ..model import ConditionKind, condition_named
from .bucket import frames_sentence, is_frame_count
from .windows import FRAME_EXTRACTIONS, FRAME_ROUNDINGS, round_frames

_MISSING_CAPTIONS = ("refuse", "skip the file", "empty caption")
MOST_FRAMES = 1001
_LONGEST_TRIGGER = 1000
"""a caption may contain [trigger] many times"""
_BETWEEN = "{name} is {short}. Set it between {low} and {high}"
_SIDE = "{name} is {value}. Set it between {size_multiple} and {high}."
"""refusal of a width or height; the lowest value is the model's size multiple"""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """The settings of one dataset folder."""

    folder: str = ""
    """root:relative, such as "input:clips" """
    trigger_word: str = setting(
        "", "Put in front of every caption that lacks it; the whole caption of files without one. Empty: none."
    )
    caption_extension: str = setting(".txt", "Ending of the caption file beside each clip: clip.mp4 has clip.txt.")
    width: int = setting(
        832,
        "Width in pixels. Clips of another aspect ratio keep it, at the same area.",
        high=4096,
        offered=(16, 4096),
        step=16,
        refusal=_SIDE,
    )
    height: int = setting(480, "Height in pixels.", high=4096, offered=(16, 4096), step=16, refusal=_SIDE)
    num_frames: int = setting(
        33,
        "Frames from the start of each clip: 4n+1. 1 trains on stills.",
        offered=(1, MOST_FRAMES),
        step=4,
    )
    """per window; stills always have 1"""
    fps: float = setting(
        16.0,
        "Frames per second clips are resampled to.",
        low=1,
        high=120,
        refusal=_BETWEEN + "; Wan was trained at 16, TI2V-5B at 24.",
    )
    num_repeats: int = setting(1, "How often each file is seen in one epoch.", low=1, high=10_000)
    enable_bucket: bool = setting(True, "Keep each clip's aspect ratio. Off: crop everything to width x height.")
    """same pixel area, aspect ratio of the clip"""
    read_fps: float = setting(
        0.0,
        "Frames per second clips are read at where that is not fps, so that motion plays at another speed. 0 = fps.",
        low=1,
        high=120,
        also=(0,),
        refusal=_BETWEEN + ", or to 0 for fps.",
    )
    every_frame: bool = False
    """True reads every frame of a clip once, ignoring timestamps, like some trainers"""
    size_multiple: int = 16
    """both sides are multiples of this: 16, or 32 for TI2V-5B"""
    conditioning: str = "none"
    """ConditionKind.name"""
    # Sources and captions.
    recursive: bool = setting(False, "Subfolders too. One named like 10_walk is seen ten times as often.")
    weight: float = setting(
        1.0,
        "How often the clips of this dataset are seen beside those of others; 0.5 is every second epoch.",
        low=0.0001,
        high=10_000,
        refusal=_BETWEEN + "; 1 is every file once.",
    )
    prior_preservation: float = setting(
        0.0,
        "For clips of other things, beside the dataset that is learnt: their target is what the base model makes of "
        "them, so that what it knows stays. The number is their weight in the loss, 5 a good one. 0 = off.",
        low=0.0,
        high=1000.0,
        step=1.0,
    )
    """one more forward pass of the base model per clip"""
    caption_prefix: str = setting(
        "", "Put in front of every caption, before the trigger word is looked for. Empty: none."
    )
    caption_shuffles: int = setting(
        0,
        "Orders of comma-separated tags that are cached and take turns, one per epoch. 0 = as written.",
        low=0,
        high=64,
        refusal="{name} is {value}. Set it between {low} (as written) and {high}.",
    )
    keep_tokens: int = setting(0, "For caption_shuffles: tags at the start that stay there.", low=0, high=1000)
    missing_captions: str = setting(
        "refuse",
        "What happens to files without a caption, when there is no trigger word either. refuse: the scan "
        "names them, nothing is encoded.",
        choices=_MISSING_CAPTIONS,
        refusal="{name} is {quoted}. Choose one of " + ", ".join(f'"{choice}"' for choice in _MISSING_CAPTIONS) + ".",
    )

    # frames: which stretches of a clip, and which part of its picture
    frame_extraction: str = setting(
        "head",
        "Which windows of num_frames are taken. head: the first. chunk: one after the other. slide: one "
        "every frame_stride frames. uniform: frame_sample, evenly spread. full: the whole clip, up to "
        "num_frames. random: another place each epoch, of as many as variants says.",
        choices=FRAME_EXTRACTIONS,
    )
    frame_stride: int = setting(
        16,
        "For slide: frames from the beginning of one window to that of the next, at the model's frame rate.",
        low=1,
        high=10_000,
    )
    frame_sample: int = setting(4, "For uniform: windows per clip.", low=1, high=1000)
    """per scene with split_scenes"""
    variants: int = setting(
        4, "Random windows and crops cached per clip; they take turns, one per epoch.", low=1, high=1000
    )
    frame_buckets: tuple[int, ...] = setting(
        (),
        "Lengths in place of num_frames, such as 17, 33, 81: each window gets the longest it fills. Empty: num_frames.",
    )
    """each 4n+1"""
    frame_rounding: str = setting(
        "refuse",
        "What happens to a frame count that is not 4n+1, such as 75. refuse: stop. down: 73. nearest: the nearer one.",
        choices=FRAME_ROUNDINGS,
    )
    crop: str = setting(
        "center",
        "Which part stays of pictures that have another aspect ratio than the training size. center: the middle. "
        "random: another place each epoch, of as many as variants says. none: each clip keeps its own size "
        "(never above width x height in area).",
        choices=("center", "random", "none"),
    )
    horizontal_flip: str = setting(
        "off",
        "off: never. both: every clip also mirrored. turns: mirrored in every second epoch.",
        choices=("off", "both", "turns"),
    )
    split_scenes: bool = setting(
        False, "Find the cuts in each clip, so that no window crosses one. Needs the package scenedetect."
    )
    scene_threshold: float = setting(
        27.0,
        "How different two frames must be to count as a cut (1 to 255). Lower finds more cuts.",
        low=1,
        high=255,
        step=0.5,
        refusal=_BETWEEN + "; 27 is usual.",
    )
    """as in PySceneDetect's ContentDetector"""

    # masks
    mask_use: str = setting(
        "off",
        "What is done with mask/clip.* or clip_mask.* (white = inside). off: nothing. loss: only white is "
        "trained; known to make Wan worse. condition: VACE and Fun-InP paint inside it.",
        choices=("off", "loss", "condition", "both"),
        refusal="{name} is {quoted}. Use one of: {known}.",
    )
    # cache
    latent_dtype: str = setting(
        "bf16",
        "Dtype of cached latents. fp16 keeps three more bits of each value.",
        choices=("bf16", "fp16"),
        refusal='{name} "{value}" is unknown. Use bf16 or fp16.',
    )
    """also of conditioning; each dtype is another cache entry"""
    cache_compression: str = setting(
        "none",
        "none: as they are. zstd: new cache entries are about a third smaller; nothing is lost. Needs the "
        "package zstandard.",
        choices=("none", "zstd"),
        refusal='{name} "{value}" is unknown. Use none or zstd.',
    )
    cache_limit_gb: float = setting(
        0.0,
        "GiB the whole cache may take: what was used longest ago goes, never what an unfinished run needs. "
        "0 = no limit.",
        low=0,
        high=1_000_000,
        step=1.0,
        refusal="{name} is {short}. Set it to 0 (no limit) or the GiB to keep.",
    )
    held_out: tuple[str, ...] = setting(
        (),
        "Names of files to evaluate instead of training on, one per line; or a folder below the dataset, ending in /.",
    )
    held_out_ratio: float = setting(
        0.0,
        "Share of files (0 to 0.9) that is not trained but evaluated, chosen by content: adding clips moves no other. "
        "-1: of 20 files or more one in ten, 3 to 8 of them.",
        low=-1,
        high=0.9,
        refusal=_BETWEEN + "; 0.1 is usual.",
    )
    held_out_folder: str = ""
    """a subfolder whose files are held out"""

    _refusals = (_BETWEEN + ".", '{name} "{start}" is not a choice. Known: {known}.')

    def __post_init__(self) -> None:
        super().__post_init__()
        condition_named(self.conditioning)
        if len(self.trigger_word) > _LONGEST_TRIGGER:
            raise ConfigError(
                f"trigger_word has {len(self.trigger_word):,} characters. Use at most {_LONGEST_TRIGGER}."
            )
        if -1 < self.held_out_ratio < 0:
            raise ConfigError(f"held_out_ratio is {self.held_out_ratio:g}. Use 0 to 0.9, or -1 for a few.")
        self._check_frames()
        for name in ("width", "height"):
            self._check_side(name, getattr(self, name))
        if not re.fullmatch(r"\.[A-Za-z0-9_.-]{1,20}", self.caption_extension):
            raise ConfigError(f'caption_extension is {self.caption_extension[:40]!r}. Use one such as ".txt".')

    @property
    def frame_lengths(self) -> tuple[int, ...]:
        """Returns the rounded window lengths in frames, ascending."""
        if self.frame_extraction == "full":
            return tuple(range(1, round_frames(self.num_frames, self.frame_rounding) + 1, 4))
        asked = self.frame_buckets or (self.num_frames,)
        return tuple(sorted({round_frames(length, self.frame_rounding) for length in asked}))

    def _check_frames(self) -> None:
        if self.frame_buckets and self.frame_extraction == "full":
            raise ConfigError(
                'frame_buckets and frame_extraction "full" exclude each other: full makes a bucket of every length up '
                'to num_frames. Empty frame_buckets, or choose "head".'
            )
        for name, length in (("num_frames", self.num_frames), *(("frame_buckets", n) for n in self.frame_buckets)):
            if length < 1 or not is_frame_count(round_frames(length, self.frame_rounding)):
                raise ConfigError(
                    "{name} is {length}; Wan needs 4n+1. {fix}",
                    name=name,
                    length=length,
                    fix=frames_sentence(length, name),
                )
            if length > MOST_FRAMES:
                raise ConfigError(f"{name} is {length}; the most is {MOST_FRAMES}. Set {name} to 81 or less.")

    @property
    def masks_loss(self) -> bool:
        """True if masks weight the loss."""
        return self.mask_use in ("loss", "both")

    @property
    def masks_condition(self) -> bool:
        """True if masks condition the model."""
        return self.mask_use in ("condition", "both")

    def _check_side(self, name: str, value: int) -> None:
        multiple = self.size_multiple
        if value < multiple:
            raise self.refused(name)
        if value % multiple:
            below = value // multiple * multiple
            raise ConfigError(
                "{name} is {value}; the model needs multiples of {multiple}. Set {name} to {below} or {above}.",
                name=name,
                value=value,
                multiple=multiple,
                below=below,
                above=below + multiple,
            )


def kind_of(config: DatasetConfig) -> ConditionKind:
    """Returns the conditioning of a dataset with these settings."""
    kind = condition_named(config.conditioning)
    return condition_named(kind.masked) if config.masks_condition and kind.masked else kind


def wanted_companions(config: DatasetConfig) -> tuple[str, ...]:
    """Returns the companion files in use: "control", "mask"."""
    kind = kind_of(config)
    masks = config.masks_loss or (config.masks_condition and kind.reads("mask"))
    return tuple(name for name, used in (("control", "control" in kind.files), ("mask", masks)) if used)
