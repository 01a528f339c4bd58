"""The settings of validation clips say what they show, how large they are, and how they are sampled."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, setting
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

    prompts: tuple[str, ...] = setting((), "One prompt a line, one clip each. Empty: the first cached caption.")
    negative_prompt: str | None = setting(None, "What the clips should not show. By default Wan's own text.")
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
    sampling: str = setting(
        "ComfyUI template",
        "ComfyUI template: 20 steps, cfg 6, shift 8. official: 50 steps, cfg 5, shift 5. custom: the numbers below.",
        choices=(*PRESETS, "custom"),
        also=tuple(_RETIRED),
    )
    width: int = setting(
        0, "Width in pixels. 0 = as the first training clip.", low=0, high=16384, offered=(0, 4096), step=16
    )
    height: int = setting(
        0, "Height in pixels. 0 = as the first training clip.", low=0, high=16384, offered=(0, 4096), step=16
    )
    num_frames: int = setting(
        0, "Frames of each preview clip: 4n+1. 0 = as the first training clip.", low=0, high=10_001, offered=(0, 1001)
    )
    steps: int = setting(0, "Sampling steps. 0 = as sampling says.", low=0, high=1000)
    cfg: float = setting(0.0, "Guidance scale. 0 = as sampling says. 1 = no guidance.", low=0, high=100.0, step=0.1)
    shift: float = setting(
        0.0, "Sampling shift. 0 = as sampling says.", low=0, high=1000.0, offered=(0.0, 100.0), step=0.1
    )
    seed: int = setting(
        42,
        "Seed of the preview noise. The same at every saved step, so that clips can be compared.",
        low=0,
        high=2**64 - 1,
        offered=(0, 2**63 - 1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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
