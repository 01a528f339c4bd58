"""What of a folder is trained on, and at which size: the settings of one dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...config import Config
from ...errors import ConfigError
from ..bucket import frames_sentence, is_frame_count
from ..conditioning import condition_named

__all__ = ["DatasetConfig"]


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
    """frames taken from the start of each clip, 4n+1; stills are always 1"""
    fps: float = 16.0
    """frames per second clips are resampled to: 16, or 24 for TI2V-5B"""
    num_repeats: int = 1
    """how often each file is seen in one epoch"""
    enable_bucket: bool = True
    """keep each clip's shape in the same number of pixels; otherwise everything is cropped to width
    x height
    """
    size_multiple: int = 16
    """both sides are multiples of this: 16, or 32 for TI2V-5B"""
    conditioning: str = "none"
    """what the model reads beside latent and caption: ConditionKind.name"""
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
        if not is_frame_count(self.num_frames):
            raise ConfigError(f"num_frames is {self.num_frames}; Wan needs 4n+1. {frames_sentence(self.num_frames)}")
        if self.num_frames > 1001:
            raise ConfigError(f"num_frames is {self.num_frames}; the most is 1001. Set num_frames to 81 or less.")
        for name in ("width", "height"):
            self._check_side(name, getattr(self, name))
        if not 1 <= self.fps <= 120:
            raise ConfigError(f"fps is {self.fps:g}. Set it between 1 and 120; Wan was trained at 16, TI2V-5B at 24.")
        if not 1 <= self.num_repeats <= 10_000:
            raise ConfigError(f"num_repeats is {self.num_repeats}. Set it between 1 and 10000.")
        self._check_cache()
        if not re.fullmatch(r"\.[A-Za-z0-9_.-]{1,20}", self.caption_extension):
            raise ConfigError(f'caption_extension is {self.caption_extension[:40]!r}. Use one such as ".txt".')

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
