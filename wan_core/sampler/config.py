"""How validation clips are sampled."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, nearest
from ..errors import ConfigError

__all__ = ["PRESETS", "SampleConfig", "SamplingPreset"]


@dataclass(frozen=True)
class SamplingPreset:
    """Steps, guidance and shift that belong together."""

    steps: int
    guidance_scale: float
    shift: float


PRESETS = {
    # The Wan templates ComfyUI ships: what people generate with.
    "ComfyUI template": SamplingPreset(20, 6.0, 8.0),
    # Wan2.1 README for T2V-1.3B; the other models' configs say shift 5, guidance 5.
    "official": SamplingPreset(50, 5.0, 5.0),
}
_RETIRED = {"4-step LoRA": SamplingPreset(4, 1.0, 5.0)}
"""readable in stored runs; without the LoRA it was meant for, which previews cannot load, clips end in noise"""


@dataclass(frozen=True, kw_only=True)
class SampleConfig(Config):
    """One preview request. Prompts are texts already in the cache; an empty list previews the first caption."""

    prompts: tuple[str, ...] = ()
    negative_prompt: str | None = None
    """None: the default negative prompt of Wan"""
    prompt_keys: tuple[str, ...] = ()
    """cache keys of the prompts' encodings, one per prompt; the worker reads these and never encodes text"""
    negative_key: str = ""
    """cache key of the negative prompt; empty: that of the cache set"""
    condition_key: str = ""
    """cache key of what image-to-video previews are conditioned on, at their size; empty: what the first clip is"""
    first_frame_key: str = ""
    """TI2V-5B: cache key of the latent of one start image, at the size of the preview; empty: see Previewer"""
    start_image: str = ""
    """name of a picture in the cache; whoever has the VAE makes the keys above from it"""
    end_image: str = ""
    vision_key: str = ""
    """cache key of the image tokens of these pictures"""
    sampling: str = "ComfyUI template"
    """ComfyUI template, official or custom"""
    width: int = 0
    """pixels; 0 takes the size of the first training clip"""
    height: int = 0
    num_frames: int = 0
    """4n+1; 0 takes the length of the first training clip"""
    steps: int = 0
    """sampling steps; 0 = preset"""
    cfg: float = 0.0
    """guidance scale; 0 = preset, 1 = off"""
    shift: float = 0.0
    """sampling shift; 0 = preset"""
    seed: int = 42

    def __post_init__(self) -> None:
        if self.sampling != "custom" and self.sampling not in PRESETS | _RETIRED:
            raise ConfigError(f'sampling "{self.sampling}" is unknown.{nearest(self.sampling, [*PRESETS, "custom"])}')
        for name, value, high in (
            ("width", self.width, 16384),
            ("height", self.height, 16384),
            ("num_frames", self.num_frames, 10_001),
            ("steps", self.steps, 1000),
            ("cfg", self.cfg, 100.0),
            ("shift", self.shift, 1000.0),
            ("seed", self.seed, 2**64 - 1),
        ):
            if not 0 <= value <= high:
                raise ConfigError(f"{name} {value} is out of range. Use 0 to {high}.")
        if self.num_frames and self.num_frames % 4 != 1:
            low = self.num_frames - (self.num_frames - 1) % 4
            raise ConfigError(f"num_frames {self.num_frames} is not 4n+1. Set it to {low} or {low + 4}.")
        for name, value in (("width", self.width), ("height", self.height)):
            if value % 16:
                raise ConfigError(f"{name} {value} is not a multiple of 16. Set it to {value // 16 * 16 or 16}.")

    def resolved(self) -> SamplingPreset:
        """Steps, guidance and shift with every 0 filled in."""
        preset = (PRESETS | _RETIRED).get(self.sampling, PRESETS["ComfyUI template"])
        return SamplingPreset(self.steps or preset.steps, self.cfg or preset.guidance_scale, self.shift or preset.shift)
