"""The settings of preview clips: content, size and sampling."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..config import Config, counted, internal, setting
from ..errors import ConfigError
from ..families import SMALL, Template
from ..kernels import PREVIEW_ATTENTIONS
from ..lora import FrozenLora
from .guidance import Guidance
from .prompts import TRIGGER, PreviewPrompt, file_name_of
from .schedules import SCHEDULERS
from .solvers import SOLVERS

_AS_SAMPLING = "as sampling says"
_AS_FIRST_CLIP, AS_TEMPLATE = "clip", "template"
"""menu of preview_size"""
_SKIPS = ("off", "extra pass", "negative pass")


@dataclass(frozen=True)
class SamplingPreset:
    """A named combination of sampler settings."""

    steps: int
    guidance_scale: float
    shift: float
    sampler_name: str = "euler"
    scheduler: str = "simple"
    guidance: Guidance = Guidance()
    low_noise_guidance: float | None = None
    """guidance scale of the low_noise expert; None: `guidance_scale`"""


FEW_STEPS = "4-step LoRA"
"""preset for LoRAs that are distilled for few steps; without such a LoRA, clips are noise"""
OFFICIAL = "official"
"""preset with the model's official settings, `Template.official`; with `official_of_all` the settings in PRESETS"""
PRESETS = {
    "ComfyUI template": SamplingPreset(20, 6.0, 8.0),
    OFFICIAL: SamplingPreset(50, 5.0, 5.0),
    FEW_STEPS: SamplingPreset(4, 1.0, 5.0),
}


@dataclass(frozen=True, kw_only=True)
class SampleConfig(Config):
    """One preview request. Prompts are texts in the cache; an empty list previews the first caption."""

    prompts: tuple[str, ...] = counted(
        (),
        "One prompt per line; each makes one clip. Or JSON with a name for each prompt. Options after a prompt apply "
        "to it alone: --w width, --h height, --f frames, --s steps, --l cfg, --d seed, --n negative prompt. Empty: "
        "the first cached caption. Write prompts as you will when you generate, with the trigger word.",
    )
    negative_prompt: str | None = counted(
        None,
        "What the clips should not show. Change it when previews show something unwanted. The default is Wan's own "
        "text.",
    )
    """the negative prompt; None: Wan's default negative prompt"""
    prompt_keys: tuple[str, ...] = ()
    """cache keys of the encoded prompts; the worker never encodes text"""
    prompt_settings: tuple[PreviewPrompt, ...] = internal((), "changed")
    """settings of each prompt; empty if no prompt has any"""
    negative_key: str = ""
    """cache key of the negative prompt; "": the negative prompt of the cache set"""
    default_negative_key: str = internal("", "never")
    """cache key of Wan's negative prompt, for clips without a run and thus without a cache set"""
    condition_key: str = ""
    """cache key of the image-to-video condition at preview size; "": the condition of the first clip"""
    first_frame_key: str = ""
    """TI2V-5B: cache key of a start image's latent at preview size; "": see Previewer"""
    start_image: str = ""
    """name of a picture in the cache, from which the nodes encode the entries of condition_key and first_frame_key"""
    end_image: str = ""
    vision_key: str = ""
    """cache key of the picture's image tokens"""
    sampling: str = counted(
        "auto",
        "Preset of the sampling settings. auto: those of ComfyUI's own template for the model. Wan 2.1 text-to-video: "
        "30 steps, cfg 6, shift 8, uni_pc. Its other models: 20 steps, cfg 6, shift 8, uni_pc, but first and last "
        "frame cfg 3, Fun-Control shift 5. TI2V-5B: 20 steps, cfg 5, shift 8, uni_pc. A pair of 2.2 A14B: 20 steps, "
        "cfg 3.5, shift 5, euler, but Fun-Control and Fun-Camera shift 8. ComfyUI template: 20 steps, cfg 6, shift 8, "
        "euler. official: the numbers of the model's own config, uni_pc. Wan 2.1 text-to-video and TI2V-5B: 50 steps, "
        "cfg 5, shift 5. Wan 2.1 image-to-video: 40 steps, cfg 5, shift 5, at 480p shift 3. FLF2V and VACE: 50 steps, "
        "cfg 5, shift 16. A pair for text-to-video: 40 steps, cfg 4, low noise 3, shift 12. Another pair: 40 steps, "
        "cfg 3.5, shift 5. 4-step LoRA: 4 steps, cfg 1, shift 5, euler, with a distilled LoRA at loras. custom: the "
        "numbers below. Change it to sample as you will when you generate.",
        choices=("auto", *PRESETS, "custom"),
    )
    width: int = counted(
        0,
        "Width of previews in pixels. 0 = set by preview_size. Enter a smaller one when previews take too long.",
        within=(0, 16384),
        offered=(0, 4096),
        step=16,
    )
    height: int = counted(
        0,
        "Height of previews in pixels. 0 = set by preview_size. Enter a smaller one when previews take too long.",
        within=(0, 16384),
        offered=(0, 4096),
        step=16,
    )
    num_frames: int = counted(
        0,
        "Frames of each preview clip: 4n+1. 0 = set by preview_size. Enter fewer when previews take too long.",
        within=(0, 10_001),
        offered=(0, 1001),
    )
    steps: int = counted(
        0, "Sampling steps. 0 = those of the preset above. Enter fewer when previews take too long.", low=0, high=1000
    )
    cfg: float = counted(
        0.0,
        "Guidance scale (classifier-free guidance). 0 = that of the preset above. 1 = no guidance. Change it to match "
        "the workflow that you generate with.",
        within=(0, 100.0),
        step=0.1,
    )
    shift: float = counted(
        0.0,
        "Sampling shift. 0 = that of the preset above. Change it to match the workflow that you generate with.",
        within=(0, 1000.0),
        offered=(0.0, 100.0),
        step=0.1,
    )
    trigger_word: str = setting(
        "",
        f"Replaces {TRIGGER} in prompts: the trigger word of your dataset. Empty: none. Set it when your prompts "
        "contain this placeholder.",
    )
    seed: int = counted(
        42,
        "Seed of the preview noise. It is the same at every saved step, so that clips can be compared. Change it when "
        "its clips are not typical.",
        within=(0, 2**64 - 1),
        offered=(0, 2**63 - 1),
    )

    sampler_name: str = setting(
        _AS_SAMPLING,
        "The sampler, by its name in KSampler. as sampling says: the preset's sampler. Change it to match the workflow "
        "that you generate with.",
        choices=(_AS_SAMPLING, *SOLVERS),
    )
    scheduler: str = setting(
        _AS_SAMPLING,
        "The scheduler, by its name in KSampler. as sampling says: the preset's scheduler. Change it to match the "
        "workflow that you generate with.",
        choices=(_AS_SAMPLING, *SCHEDULERS),
    )
    cfg_low_noise: float = setting(
        0.0,
        "Guidance scale of the low-noise expert of a Wan 2.2 pair. 0 = same as the high-noise expert; with sampling "
        "official and cfg 0, the model's own. 1 = no guidance. Change it to match the workflow that you generate with.",
        within=(0, 100.0),
        step=0.1,
    )
    cfg_passes: str = setting(
        "in turn",
        "How guidance is computed. in turn: prompt and negative prompt in two passes. batched: in one pass, a little "
        "faster, with more memory. Choose batched when memory is free.",
        choices=("in turn", "batched"),
    )
    cfg_zero_star: bool = setting(
        False,
        "CFG-Zero*: scales the negative prediction to fit the positive one, like ComfyUI's node CFGZeroStar. Turn it "
        "on when the workflow that you generate with uses it.",
    )
    skip_layer_guidance: str = setting(
        "off",
        "Skip-layer guidance. off: none. extra pass: steers away from a third pass without skip_layers "
        "(SkipLayerGuidanceDiT). negative pass: skips them in the negative pass (SkipLayerGuidanceDiTSimple). Change "
        "it to match the workflow that you generate with.",
        choices=_SKIPS,
    )
    skip_layers: str = setting(
        "7, 8, 9",
        "Blocks that skip-layer guidance skips, counted from 0. Change it to match the workflow that you generate "
        "with.",
    )
    skip_layer_scale: float = setting(
        3.0,
        "Strength of the extra pass of skip-layer guidance. 0 = no effect. Change it to match the workflow that you "
        "generate with.",
        within=(0, 100.0),
        offered=(0, 10),
        step=0.1,
    )
    skip_layer_start: float = setting(
        0.01,
        "Share of sampling at which skip-layer guidance begins. 0 = from the start. Change it to match the workflow "
        "that you generate with.",
        within=(0, 1),
        step=0.01,
    )
    skip_layer_end: float = setting(
        0.15,
        "Share of sampling at which skip-layer guidance ends. 1 = at the end of sampling. Change it to match the "
        "workflow that you generate with.",
        within=(0, 1),
        step=0.01,
    )

    loras: tuple[FrozenLora, ...] = internal((), "changed")
    """frozen LoRAs that act in previews only, such as a few-step LoRA"""

    official_of_all: bool = internal(False, "never")
    """True in older runs, in which "official" means the same settings for all models"""
    preview_size: str = counted(
        _AS_FIRST_CLIP,
        "Size of previews whose width, height or num_frames is 0. clip: the size of the first training clip. template: "
        "the size in ComfyUI's own template (832x480x33 for 2.1 text-to-video, 512x512x33 for image-to-video, "
        "1280x704x121 for TI2V-5B, 640x640x81 for a pair of 2.2 A14B), with as many frames as fit during training; "
        "Train Wan LoRA says how many. Without a GPU, and for image-to-video without a start_image, it means clip. "
        "Choose template to see clips as you will generate them.",
        choices=(_AS_FIRST_CLIP, AS_TEMPLATE),
    )
    attention: str = setting(
        PREVIEW_ATTENTIONS[0],
        "Attention backend of previews; training does not use it. as in training: the backend of Load Wan Model. sage: "
        "SageAttention, which quantizes queries and keys: faster on long clips, and a clip may differ slightly. It "
        "needs the package sageattention. Change it when previews take too long.",
        choices=PREVIEW_ATTENTIONS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_frames and self.num_frames % 4 != 1:
            low = self.num_frames - (self.num_frames - 1) % 4
            raise ConfigError(f"num_frames {self.num_frames} is not 4n+1. Set it to {low} or {low + 4}.")
        if self.prompt_settings and len(self.prompt_settings) != len(self.prompts):
            raise ConfigError(
                f"There are {len(self.prompts)} prompts and prompt_settings for {len(self.prompt_settings)}. "
                "Give each prompt one, or leave prompt_settings out."
            )
        for name, value in (("width", self.width), ("height", self.height)):
            if value % 16:
                raise ConfigError(f"{name} {value} is not a multiple of 16. Set it to {value // 16 * 16 or 16}.")
        blocks = re.fullmatch(r"\s*\d{1,3}(\s*,\s*\d{1,3})*\s*", self.skip_layers)
        if self.skip_layer_guidance != "off" and not blocks:
            raise ConfigError(
                f'skip_layers "{self.skip_layers[:40]}" is not a list of block numbers. Write them as 7, 8, 9.'
            )

    def of_prompt(self, index: int) -> SampleConfig:
        """Returns the settings of one prompt: its own, and the common ones where it has none."""
        if not self.prompt_settings:
            return self
        return replace(self, prompt_settings=(), **self.prompt_settings[index].settings())

    def clip_name(self, variant: str, index: int) -> str:
        """Returns the clip id of a prompt, also its file name: step-000250_p0, or step-000250_p0_nickname."""
        name = file_name_of(self.prompt_settings[index].name) if self.prompt_settings else ""
        return f"{variant}_p{index}_{name}" if name else f"{variant}_p{index}"

    def resolved(self, template: Template | None = None, pixels: int = 0) -> SamplingPreset:
        """Returns all sampling settings, with a value in place of every 0. `template`: the model's template, for "auto"
        and "official".

        `pixels`: width x height of the clip, if the config does not set them.
        """
        preset = PRESETS.get(self.sampling) or (template if self.sampling == "auto" else None)
        preset, low = preset or PRESETS["ComfyUI template"], None
        if template is not None and self.sampling == OFFICIAL and not self.official_of_all:
            own, pixels = template.official, self.width * self.height or pixels
            shift = own.small_shift if own.small_shift and 0 < pixels <= SMALL else own.shift
            preset = SamplingPreset(own.steps, own.guidance_scale, shift, own.sampler_name)
            low = None if self.cfg else own.low_noise_guidance
        return SamplingPreset(
            steps=self.steps or preset.steps,
            guidance_scale=self.cfg or preset.guidance_scale,
            shift=self.shift or preset.shift,
            sampler_name=preset.sampler_name if self.sampler_name == _AS_SAMPLING else self.sampler_name,
            scheduler=preset.scheduler if self.scheduler == _AS_SAMPLING else self.scheduler,
            guidance=self._guidance(),
            low_noise_guidance=self.cfg_low_noise or low,
        )

    def _guidance(self) -> Guidance:
        skips = self.skip_layer_guidance != "off"
        return Guidance(
            batched=self.cfg_passes == "batched",
            zero_star=self.cfg_zero_star,
            skip_layers=tuple(int(number) for number in re.findall(r"\d+", self.skip_layers)) if skips else (),
            skip_in_negative=self.skip_layer_guidance == "negative pass",
            skip_scale=self.skip_layer_scale,
            skip_from=self.skip_layer_start,
            skip_to=self.skip_layer_end,
        )
