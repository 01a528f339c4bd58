"""The settings of one dataset: its folder, and the size, length and crop of its samples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from ..config import Config, setting
from ..errors import ConfigError
from ..model import ConditionKind, condition_named
from .bucket import frames_sentence, is_frame_count
from .windows import FRAME_EXTRACTIONS, FRAME_ROUNDINGS, round_frames

_MISSING_CAPTIONS = ("refuse", "skip the file", "empty caption")
MOST_FRAMES = 1001
_LONGEST_TRIGGER = 1000
"""characters of a trigger word; limited, because a caption may contain [trigger] many times"""
_BETWEEN = "{name} is {short}. Set it between {low} and {high}"
_SIDE = "{name} is {value}. Set it between {size_multiple} and {high}."
"""error for a width or height; the lowest value is the model's size multiple"""


class Reading(Enum):
    """Cut and size of a companion file."""

    ALIKE = 1
    """like its clip, at the same size"""
    IMAGE = 2
    """one frame, cropped at the centre to the size of the clip; for Bernini-R in its own aspect ratio"""
    SQUARE = 3
    """like its clip, cropped at the centre to the square size of face videos"""
    FREE = 4
    """a video from the start of the cut to its own end, in its own aspect ratio"""


@dataclass(frozen=True)
class Role:
    """A kind of companion that lies next to its clip."""

    said: str
    reading: Reading = Reading.ALIKE


ROLES = {
    "source": Role("source video"),
    "refvideo": Role("reference video", Reading.FREE),
    **{f"ref{number}": Role("reference image", Reading.IMAGE) for number in range(1, 9)},
    "pose": Role("pose video"),
    "face": Role("face video", Reading.SQUARE),
    "ref1_mask": Role("identity mask of the reference image", Reading.IMAGE),
    "pose_mask": Role("identity mask of the pose video"),
}
"""name endings of companions next to their clip (pose: clip_pose.mp4), in the order in which they are read"""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """The settings of one dataset folder."""

    folder: str = ""
    """root:relative, such as "input:clips" """
    trigger_word: str = setting(
        "",
        "Word that is added to the start of every caption that lacks it. A file without a caption gets this word as "
        "its caption. Empty: none. Set a rare word when you train one subject or style.",
    )
    caption_extension: str = setting(
        ".txt",
        "File extension of captions: clip.mp4 has its caption in clip.txt. Change it when your caption files end "
        "differently.",
    )
    width: int = setting(
        832,
        "Training width in pixels. Lower it when memory is short or a step takes too long. Clips of another aspect "
        "ratio keep theirs, at the same area.",
        high=4096,
        offered=(16, 4096),
        step=16,
        refusal=_SIDE,
    )
    height: int = setting(
        480,
        "Training height in pixels. Lower it together with the width.",
        high=4096,
        offered=(16, 4096),
        step=16,
        refusal=_SIDE,
    )
    num_frames: int = setting(
        33,
        "Frames per clip, from its start: 4n+1. Raise it for longer motion, which takes more memory and time; shorter "
        "clips are skipped. 1 trains on stills.",
        offered=(1, MOST_FRAMES),
        step=4,
    )
    """per window; stills always have 1"""
    fps: float = setting(
        16.0,
        "Frames per second clips are resampled to.",
        within=(1, 120),
        refusal=_BETWEEN + "; Wan was trained at 16, TI2V-5B at 24.",
    )
    num_repeats: int = setting(
        1,
        "How often each file is trained in one epoch. Raise it for a small dataset that is trained with a large one.",
        within=(1, 10_000),
    )
    enable_bucket: bool = setting(
        True,
        "Aspect ratio buckets: each clip keeps its aspect ratio. Off: everything is cropped to width x height. Turn it "
        "off when all clips must have exactly this size.",
    )
    """same pixel area, aspect ratio of the clip"""
    read_fps: float = setting(
        0.0,
        "Frames per second clips are read at where that is not fps, so that motion plays at another speed. 0 = fps.",
        within=(1, 120),
        also=(0,),
        refusal=_BETWEEN + ", or to 0 for fps.",
    )
    every_frame: bool = False
    """True reads every frame of a clip once, ignoring timestamps, like some trainers"""
    size_multiple: int = 16
    """both sides are multiples of this: 16, or 32 for TI2V-5B"""
    conditioning: str = "none"
    """ConditionKind.name; a scan that finds no files for "context" makes it "none" """
    # Sources and captions.
    recursive: bool = setting(
        False,
        "Also scan subfolders. A folder named like 10_walk is repeated ten times. Turn it on when your clips are in "
        "subfolders.",
    )
    weight: float = setting(
        1.0,
        "How often clips of this dataset are trained relative to other datasets. 0.5 is every second epoch. Lower it "
        "when this dataset dominates the others.",
        within=(0.0001, 10_000),
        refusal=_BETWEEN + "; 1 is every file once.",
    )
    prior_preservation: float = setting(
        0.0,
        "Weight of prior preservation in the loss: clips of this dataset are trained towards the base model's own "
        "prediction, so that the model keeps what it knows. Set it on a second dataset of other subjects; 5 is a good "
        "value. 0 = off.",
        within=(0.0, 1000.0),
        step=1.0,
    )
    """one more forward pass of the base model per clip"""
    class_preservation: float = setting(
        0.0,
        "Weight of prior preservation by a class word. Each clip is also trained towards the base model's own "
        "prediction for its caption with class_word in place of trigger_word. This keeps other subjects of that "
        "class as they are. No second dataset is needed; a step takes twice as long. 0 = off. Set it to 1 when the "
        "LoRA changes more than its subject.",
        within=(0.0, 1000.0),
        step=0.5,
    )
    class_word: str = setting(
        "",
        "For class_preservation: the class of your subject, such as person. In those captions it replaces the "
        "trigger word. Empty: the trigger word is only removed. Set it when captions make no sense without a word "
        "there.",
    )
    caption_prefix: str = setting(
        "",
        "Text added to the start of every caption, before the trigger word is checked. Empty: none. Set it for words "
        "that all captions need.",
    )
    caption_shuffles: int = setting(
        0,
        "Number of shuffled orders of comma-separated tags that are cached. One is used per epoch, in turn. 0 = as "
        "written. Raise it when captions are lists of tags.",
        within=(0, 64),
        refusal="{name} is {value}. Set it between {low} (as written) and {high}.",
    )
    keep_tokens: int = setting(
        0,
        "For caption_shuffles: number of tags at the start that are not shuffled. Raise it to keep a trigger word in "
        "front.",
        within=(0, 1000),
    )
    missing_captions: str = setting(
        "refuse",
        "What happens to files without a caption when no trigger word is set. refuse: the scan lists them and nothing "
        "is encoded. Choose empty caption to train without them.",
        choices=_MISSING_CAPTIONS,
        refusal="{name} is {quoted}. Choose one of " + ", ".join(f'"{choice}"' for choice in _MISSING_CAPTIONS) + ".",
    )

    # frames: which stretches of a clip, and which part of its picture
    frame_extraction: str = setting(
        "head",
        "Which windows of num_frames are cut from a clip. head: the first. chunk: one after the other. slide: one "
        "every frame_stride frames. uniform: frame_sample windows, evenly spaced. full: the complete clip, up to "
        "num_frames. random: another place each epoch; variants sets how many. Change it when the motion is not at the "
        "start of your clips.",
        choices=FRAME_EXTRACTIONS,
    )
    frame_stride: int = setting(
        16,
        "For slide: frames between the starts of two windows, at the model's frame rate. Lower it for more windows per "
        "clip.",
        within=(1, 10_000),
    )
    frame_sample: int = setting(4, "For uniform: windows per clip. Raise it for long clips.", low=1, high=1000)
    """per scene with split_scenes"""
    variants: int = setting(
        4,
        "Number of random windows and crops cached per clip. One is used per epoch, in turn. Raise it for more "
        "variety; the cache grows with it.",
        within=(1, 1000),
    )
    frame_buckets: tuple[int, ...] = setting(
        (),
        "Lengths instead of num_frames, such as 17, 33, 81: each window gets the longest one it fills. Empty: "
        "num_frames. Set it when your clips differ in length.",
    )
    """each 4n+1"""
    frame_rounding: str = setting(
        "refuse",
        "What happens to a frame count that is not 4n+1, such as 75. refuse: an error. down: 73. nearest: the nearer "
        "one. Change it when your numbers come from another trainer.",
        choices=FRAME_ROUNDINGS,
    )
    crop: str = setting(
        "center",
        "Which part of a picture is kept when its aspect ratio is not the training size's. center: the middle. random: "
        "another place each epoch; variants sets how many. none: each clip keeps its own size (never above width x "
        "height in area). Change it when the subject is not in the middle.",
        choices=("center", "random", "none"),
    )
    horizontal_flip: str = setting(
        "off",
        "Mirrored copies of clips. off: never. both: every clip is also trained mirrored. turns: mirrored in every "
        "second epoch. Use it for few clips, unless left and right matter, as in text.",
        choices=("off", "both", "turns"),
    )
    split_scenes: bool = setting(
        False,
        "Detect cuts in each clip, so that no window crosses one. Turn it on when your clips contain cuts.",
    )
    scene_threshold: float = setting(
        27.0,
        "How different two frames must be to count as a cut (1 to 255). Lower it when cuts are missed.",
        within=(1, 255),
        step=0.5,
        refusal=_BETWEEN + "; 27 is usual.",
    )
    """as in PySceneDetect's ContentDetector"""

    # masks
    mask_use: str = setting(
        "off",
        "How masks (mask/clip.* or clip_mask.*, white = inside) are used. off: not at all. loss: only white areas "
        "are trained; this often makes a Wan LoRA worse. condition: VACE and Fun-InP paint inside the mask. Choose "
        "condition "
        "for a model that takes masks.",
        choices=("off", "loss", "condition", "both"),
        refusal="{name} is {quoted}. Use one of: {known}.",
    )
    # cache
    latent_dtype: str = setting(
        "bf16",
        "Dtype of cached latents. fp16 stores three more bits of each value. Choose fp16 for latents that are closer "
        "to the VAE's output.",
        choices=("bf16", "fp16"),
        refusal='{name} "{value}" is unknown. Use bf16 or fp16.',
    )
    """also of conditioning; each dtype is another cache entry"""
    cache_compression: str = setting(
        "none",
        "Compression of the cache. none: uncompressed. zstd: new cache entries are about a third smaller, without "
        "loss. Needs the package zstandard. Change it when disk space is short.",
        choices=("none", "zstd"),
        refusal='{name} "{value}" is unknown. Use none or zstd.',
    )
    cache_limit_gb: float = setting(
        0.0,
        "Size limit of the complete cache in GiB. The least recently used entries are deleted first, never those an "
        "unfinished run needs. 0 = no limit. Set it when disk space is short.",
        within=(0, 1_000_000),
        step=1.0,
        refusal="{name} is {short}. Set it to 0 (no limit) or the GiB to keep.",
    )
    held_out: tuple[str, ...] = setting(
        (),
        "Names of files used for validation instead of training, one per line; or a subfolder of the dataset, ending "
        "in /. Set it to choose these files yourself.",
    )
    held_out_ratio: float = setting(
        0.0,
        "Share of files (0 to 0.9) used for validation (evaluation loss) and not for training. The choice depends on "
        "file content, so adding clips changes no other choice. -1: one in ten of 20 files or more, 3 to 8 of them. "
        "Raise it for a more exact evaluation loss; 0 trains all files.",
        within=(-1, 0.9),
        refusal=_BETWEEN + "; 0.1 is usual.",
    )
    held_out_folder: str = ""
    """a subfolder whose files are held out"""

    _refusals = (_BETWEEN + ".", '{name} "{start}" is not a choice. Known: {known}.')

    def __post_init__(self) -> None:
        super().__post_init__()
        if (kind := condition_named(self.conditioning)).of_graph:
            name, node = ("HuMo", "WanHuMo") if "whisper" in kind.tensors else ("S2V", "WanSound")
            raise ConfigError(
                f"{name} reads the sound of each clip, which a folder dataset does not encode. Send clips, sound and "
                f"reference image through {node}ImageToVideo in a graph, then into Wan Cache from Latents."
            )
        if len(self.trigger_word) > _LONGEST_TRIGGER:
            raise ConfigError(
                f"trigger_word has {len(self.trigger_word):,} characters. Use at most {_LONGEST_TRIGGER}."
            )
        if -1 < self.held_out_ratio < 0:
            raise ConfigError(f"held_out_ratio is {self.held_out_ratio:g}. Use 0 to 0.9, or -1 for a few.")
        if self.class_preservation and self.prior_preservation:
            raise ConfigError(
                "class_preservation and prior_preservation are both set, and clips of prior_preservation teach nothing "
                "new. Set one of them to 0."
            )
        self._check_frames()
        for name in ("width", "height"):
            value, multiple = getattr(self, name), self.size_multiple
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


def kind_of(config: DatasetConfig) -> ConditionKind:
    """Returns the conditioning of a dataset with these settings."""
    kind = condition_named(config.conditioning)
    return condition_named(kind.masked) if config.masks_condition and kind.masked else kind


def wanted_companions(config: DatasetConfig) -> tuple[str, ...]:
    """Returns the companion files in use: "control", "mask", "camera", and ROLES."""
    kind = kind_of(config)
    masks = config.masks_loss or (config.masks_condition and kind.reads("mask"))
    used = {"control": kind.reads("control"), "mask": masks}
    used |= {name: kind.reads(name) for name in ("camera", *ROLES)}
    return tuple(name for name in used if used[name])
