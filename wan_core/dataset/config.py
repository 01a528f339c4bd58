"""What of a folder is trained on, and at which size: the settings of one dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..config import Config
from ..errors import ConfigError
from .bucket import frames_sentence, is_frame_count
from .conditioning import ConditionKind, condition_named, masked_kind
from .windows import FRAME_EXTRACTIONS, FRAME_ROUNDINGS, round_frames

__all__ = [
    "CROPS",
    "FLIPS",
    "MASK_USES",
    "MISSING_CAPTIONS",
    "DatasetConfig",
    "kind_of",
    "wanted_companions",
]

MISSING_CAPTIONS = ("refuse", "skip the file", "empty caption")
CROPS = ("center", "random", "none")
FLIPS = ("off", "both", "turns")
_FRAME_CHOICES = {
    "frame_extraction": FRAME_EXTRACTIONS,
    "frame_rounding": FRAME_ROUNDINGS,
    "crop": CROPS,
    "horizontal_flip": FLIPS,
}
MASK_USES = ("off", "loss", "condition", "both")


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """One folder of clips or stills, and how it is cut."""

    folder: str = ""
    """root:relative, such as "input:clips" """
    trigger_word: str = ""
    """put in front of captions that lack it; the whole caption of files that have none"""
    caption_extension: str = ".txt"
    """of the caption file beside clip.mp4: clip.txt"""
    width: int = 832
    """pixels"""
    height: int = 480
    """pixels"""
    num_frames: int = 33
    """frames of each window, 4n+1; stills are always 1"""
    fps: float = 16.0
    """frames per second clips are resampled to: 16, or 24 for TI2V-5B"""
    num_repeats: int = 1
    """how often each file is seen in one epoch"""
    enable_bucket: bool = True
    """keep each clip's shape in the same number of pixels; otherwise everything is cropped to width
    x height
    """
    read_fps: float = 0.0
    """frames per second clips are read at where that is not `fps`, so that motion plays at another speed; 0 = `fps`"""
    every_frame: bool = False
    """True reads each frame of a clip once, whatever its times, as some trainers do"""
    size_multiple: int = 16
    """both sides are multiples of this: 16, or 32 for TI2V-5B"""
    conditioning: str = "none"
    """what the model reads beside latent and caption: ConditionKind.name"""
    # Sources and captions.
    recursive: bool = False
    """also take the subfolders; one named like "10_walk" is seen ten times as often"""
    weight: float = 1.0
    """scales how often the samples of this dataset are seen beside those of others"""
    caption_prefix: str = ""
    """put in front of every caption, before the trigger word is looked for"""
    caption_shuffles: int = 0
    """orders of the comma-separated tags that take turns, one an epoch; 0 = as written"""
    keep_tokens: int = 0
    """tags at the start of a caption that are not shuffled"""
    missing_captions: str = "refuse"
    """what happens to files without a caption and without a trigger word: one of MISSING_CAPTIONS"""

    # frames: which stretches of a clip, and which part of its picture
    frame_extraction: str = "head"
    """which stretches of a clip are taken, one of FRAME_EXTRACTIONS; windows.py says what each means"""
    frame_stride: int = 16
    """frames from the beginning of one window to that of the next, for "slide" """
    frame_sample: int = 4
    """windows per clip (or scene), for "uniform" """
    variants: int = 4
    """of random windows and random crops, how many per file are cached; they take turns, one per epoch"""
    frame_buckets: tuple[int, ...] = ()
    """lengths in frames, 4n+1 each, in place of num_frames: every window gets the longest it fills"""
    frame_rounding: str = "refuse"
    """what happens to a num_frames or frame bucket that is not 4n+1: "refuse", "down" or "nearest" """
    crop: str = "center"
    """which part of a picture that has another shape than its bucket: "center", "random", or "none": its own size"""
    horizontal_flip: str = "off"
    """ "off", "both" (each sample also mirrored: twice as many) or "turns" (mirrored in every second epoch)"""
    split_scenes: bool = False
    """True finds the cuts in each clip, with PySceneDetect, and lets no window cross one"""
    scene_threshold: float = 27.0
    """how different two frames must be to be a cut, as in PySceneDetect's ContentDetector"""

    # ---- given: masks beside the clips
    mask_use: str = "off"
    """off; loss: only what is white in clip_mask.* or mask/clip.* is trained; condition: VACE and Fun-InP read it as
    what they are to paint; both
    """
    # cache
    latent_dtype: str = "bf16"
    """bf16 or fp16: how latents and conditioning are stored; fp16 keeps three more bits and is another entry"""
    cache_compression: str = "none"
    """none or zstd: how new entries are stored; loses nothing, saves about a third, needs zstandard"""
    cache_limit_gb: float = 0.0
    """GiB the whole cache may take: what was used longest ago is evicted, never what this set or an unfinished run
    needs; 0 = no limit"""
    held_out: tuple[str, ...] = ()
    """names of files that are evaluated instead of trained"""
    held_out_ratio: float = 0.0
    """share of files that is held out by a hash of their content"""
    held_out_folder: str = ""
    """name of a subfolder whose files are held out"""

    def __post_init__(self) -> None:
        condition_named(self.conditioning)
        self._check_frames()
        if self.mask_use not in MASK_USES:
            raise ConfigError(f"mask_use is {self.mask_use[:40]!r}. Use one of: {', '.join(MASK_USES)}.")
        for name in ("width", "height"):
            self._check_side(name, getattr(self, name))
        if not 1 <= self.fps <= 120:
            raise ConfigError(f"fps is {self.fps:g}. Set it between 1 and 120; Wan was trained at 16, TI2V-5B at 24.")
        if self.read_fps and not 1 <= self.read_fps <= 120:
            raise ConfigError(f"read_fps is {self.read_fps:g}. Set it between 1 and 120, or to 0 for fps.")
        if not 1 <= self.num_repeats <= 10_000:
            raise ConfigError(f"num_repeats is {self.num_repeats}. Set it between 1 and 10000.")
        self._check_cache()
        if not re.fullmatch(r"\.[A-Za-z0-9_.-]{1,20}", self.caption_extension):
            raise ConfigError(f'caption_extension is {self.caption_extension[:40]!r}. Use one such as ".txt".')
        self._check_captions()
        if not 1e-4 <= self.weight <= 1e4:
            raise ConfigError(f"weight is {self.weight:g}. Set it between 0.0001 and 10000; 1 is every file once.")

    def _check_captions(self) -> None:
        if self.missing_captions not in MISSING_CAPTIONS:
            known = ", ".join(f'"{choice}"' for choice in MISSING_CAPTIONS)
            raise ConfigError(f"missing_captions is {self.missing_captions[:40]!r}. Choose one of {known}.")
        if not 0 <= self.caption_shuffles <= 64:
            raise ConfigError(f"caption_shuffles is {self.caption_shuffles}. Set it between 0 (as written) and 64.")
        if not 0 <= self.keep_tokens <= 1000:
            raise ConfigError(f"keep_tokens is {self.keep_tokens}. Set it between 0 and 1000.")

    @property
    def frame_lengths(self) -> tuple[int, ...]:
        """The lengths a window may have, in frames, rising: what is asked for, rounded as asked for."""
        if self.frame_extraction == "full":
            return tuple(range(1, round_frames(self.num_frames, self.frame_rounding) + 1, 4))
        asked = self.frame_buckets or (self.num_frames,)
        return tuple(sorted({round_frames(length, self.frame_rounding) for length in asked}))

    def _check_frames(self) -> None:
        for name, known in _FRAME_CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f'{name} "{getattr(self, name)[:40]}" is not a choice. Known: {", ".join(known)}.')
        if self.frame_buckets and self.frame_extraction == "full":
            raise ConfigError(
                'frame_buckets and frame_extraction "full" exclude each other: full makes a bucket of every length up '
                'to num_frames. Empty frame_buckets, or choose "head".'
            )
        for name, length in (("num_frames", self.num_frames), *(("frame_buckets", n) for n in self.frame_buckets)):
            if length < 1 or not is_frame_count(round_frames(length, self.frame_rounding)):
                raise ConfigError(f"{name} is {length}; Wan needs 4n+1. {frames_sentence(length, name)}")
            if length > 1001:
                raise ConfigError(f"{name} is {length}; the most is 1001. Set {name} to 81 or less.")
        for name, most in (("frame_stride", 10_000), ("frame_sample", 1000), ("variants", 1000)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}. Set it between 1 and {most}.")
        if not 1 <= self.scene_threshold <= 255:
            raise ConfigError(f"scene_threshold is {self.scene_threshold:g}. Set it between 1 and 255; 27 is usual.")

    @property
    def masks_loss(self) -> bool:
        """True when masks weigh the loss."""
        return self.mask_use in ("loss", "both")

    @property
    def masks_condition(self) -> bool:
        """True when masks are part of what the model reads."""
        return self.mask_use in ("condition", "both")

    def _check_cache(self) -> None:
        for name, known in (("latent_dtype", ("bf16", "fp16")), ("cache_compression", ("none", "zstd"))):
            if getattr(self, name) not in known:
                raise ConfigError(f'{name} "{getattr(self, name)}" is unknown. Use {" or ".join(known)}.')
        if not 0 <= self.cache_limit_gb <= 1e6:
            raise ConfigError(f"cache_limit_gb is {self.cache_limit_gb:g}. Set it to 0 (no limit) or the GiB to keep.")
        if not 0 <= self.held_out_ratio <= 0.9:
            raise ConfigError(f"held_out_ratio is {self.held_out_ratio:g}. Set it between 0 and 0.9; 0.1 is usual.")

    def _check_side(self, name: str, value: int) -> None:
        multiple = self.size_multiple
        if not multiple <= value <= 4096:
            raise ConfigError(f"{name} is {value}. Set it between {multiple} and 4096.")
        if value % multiple:
            below = value // multiple * multiple
            raise ConfigError(
                f"{name} is {value}; the model needs multiples of {multiple}. "
                f"Set {name} to {below} or {below + multiple}."
            )


def kind_of(config: DatasetConfig) -> ConditionKind:
    """What the model reads of a dataset with these settings."""
    kind = condition_named(config.conditioning)
    return masked_kind(kind) if config.masks_condition else kind


def wanted_companions(config: DatasetConfig) -> tuple[str, ...]:
    """Which files beside the clips are used: "control" and "mask"."""
    kind = kind_of(config)
    masks = config.masks_loss or (config.masks_condition and kind.reads("mask"))
    return tuple(name for name, used in (("control", "control" in kind.files), ("mask", masks)) if used)
