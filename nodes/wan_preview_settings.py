"""Wan Preview Settings: prompts and sampling of the preview clips."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io
from torch import Tensor

from ..wan_core.cache import picture_path
from ..wan_core.dataset import DEFAULT_NEGATIVE_PROMPT
from ..wan_core.errors import ConfigError
from ..wan_core.lora import FrozenLora
from ..wan_core.sampler import FEW_STEPS, PreviewPrompt, SampleConfig, read_prompts
from .bridge import folders
from .bridge.handed import CACHE, cache_folders, cache_state
from .bridge.progress import NodeProgress
from .bridge.sockets import ComfyImageEncoder, encoder_identity, is_linked, needs_clip, text_keys
from .bridge.start_images import keep_picture, vision_tokens_key, write_vision_tokens
from .bridge.types import WanLoras, WanValidation
from .bridge.widgets import advanced, check_menus, in_menu, judged_when_it_runs, widget, widgets


class WanPreviewSettings(io.ComfyNode):
    """Encodes the prompts into the cache, so that the training process needs no text encoder."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanPreviewSettings",
            display_name="Wan Preview Settings",
            **in_menu("sample prompts, sample video, validation prompt"),
            description="Prompts and sampling settings of preview clips. Optional: without it Train Wan LoRA previews "
            "the first caption, sampled like ComfyUI's own Wan template.",
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            inputs=[
                io.Clip.Input(
                    "clip", lazy=True, tooltip="Load CLIP with umt5_xxl, type wan. Loaded only for new prompts."
                ),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    lazy=True,
                    tooltip="Only for Wan 2.1 image-to-video with a start image: Load CLIP Vision with clip_vision_h.",
                ),
                io.Image.Input(
                    "start_image",
                    optional=True,
                    tooltip="First frame of previews of image-to-video models. Unconnected: the first frame of the "
                    "first training clip.",
                ),
                io.Image.Input(
                    "end_image", optional=True, tooltip="Last frame, for models that use a first and a last frame."
                ),
                WanLoras.Input(
                    "loras",
                    optional=True,
                    tooltip="LoRAs used only in previews, from Wan LoRA File. Sampling 4-step LoRA needs a 4-step LoRA "
                    "here.",
                ),
                widget(SampleConfig, "prompts", multiline=True),
                *advanced(widget(SampleConfig, "negative_prompt", default=DEFAULT_NEGATIVE_PROMPT, multiline=True)),
                *widgets(SampleConfig, "sampling width height num_frames"),
                *advanced(
                    *widgets(SampleConfig, "steps cfg shift"),
                    widget(SampleConfig, "seed", control_after_generate=False),
                    *widgets(
                        SampleConfig,
                        "sampler_name scheduler cfg_low_noise cfg_passes cfg_zero_star skip_layer_guidance skip_layers "
                        "skip_layer_scale skip_layer_start skip_layer_end trigger_word preview_size attention",
                    ),
                ),
            ],
            outputs=[WanValidation.Output(display_name="validation", tooltip="For Train Wan LoRA and Validate Video.")],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return cache_state()

    @classmethod
    def check_lazy_status(
        cls,
        clip: Any = None,
        clip_vision: Any = None,
        start_image: Tensor | None = None,
        end_image: Tensor | None = None,
        prompts: str = "",
        negative_prompt: str = DEFAULT_NEGATIVE_PROMPT,
        trigger_word: str = "",
        **_: object,
    ) -> list[str]:
        texts = _texts(read_prompts(prompts, trigger_word), negative_prompt)
        needed = ["clip"] if texts and needs_clip(cls.hidden, clip, texts) else []
        given = start_image is not None or end_image is not None
        if clip_vision is None and given and is_linked(cls.hidden, "clip_vision"):
            identity, cache = encoder_identity(cls.hidden, "clip_vision", None), folders.cache()
            kept = (keep_picture(cache, start_image, 0), keep_picture(cache, end_image, -1))
            pictures = [name for name in kept if name]
            if identity is None or not cache.is_sound("condition", vision_tokens_key(pictures, identity)):
                needed.append("clip_vision")
        return needed

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls,
        clip: Any = None,
        clip_vision: Any = None,
        start_image: Tensor | None = None,
        end_image: Tensor | None = None,
        loras: tuple[FrozenLora, ...] = (),
        prompts: str = "",
        negative_prompt: str = DEFAULT_NEGATIVE_PROMPT,
        **values: Any,
    ) -> io.NodeOutput:
        check_menus(SampleConfig, values)
        if values.get("sampling") == FEW_STEPS and not loras:
            raise ConfigError(
                'sampling "{sampling}" is for a LoRA that was made for 4 steps; without it clips are noise. Connect '
                "one to loras (Wan LoRA File), or set sampling to auto.",
                sampling=FEW_STEPS,
            )
        cache = folders.cache()
        library = read_prompts(prompts, values.get("trigger_word", ""))
        says_more = any(own != PreviewPrompt() for _, own in library)
        config = SampleConfig(
            **values,
            loras=loras,
            prompts=tuple(prompt for prompt, _ in library),
            prompt_settings=tuple(own for _, own in library) if says_more else (),
            negative_prompt=None if _is_default(negative_prompt) else negative_prompt,
            start_image=keep_picture(cache, start_image, 0),
            end_image=keep_picture(cache, end_image, -1),
        )
        for index, own in enumerate(config.prompt_settings):
            try:
                config.of_prompt(index)  # raises for invalid settings of a prompt
            except ConfigError as error:
                raise ConfigError(f'prompts, "{own.name or config.prompts[index][:40]}": {error}') from error
        texts, progress = _texts(library, negative_prompt), NodeProgress(cls.hidden.unique_id)
        keys = text_keys(cls.hidden, clip, texts, progress) if texts else {}
        data = config.to_dict()
        data["prompt_keys"] = [keys[prompt] for prompt in config.prompts]
        pictures = [name for name in (config.start_image, config.end_image) if name]
        data["vision_key"] = cls._encode_pictures(clip_vision, pictures)
        data["negative_key"] = keys.get(negative_prompt, "") if config.negative_prompt is not None else ""
        data["default_negative_key"] = keys.get(DEFAULT_NEGATIVE_PROMPT, "")
        for own in data["prompt_settings"]:
            own["negative_key"] = keys.get(own["negative_prompt"], "")
        stored = [picture_path(cache.root, name) for name in pictures]
        CACHE.note(f"previews of {cls.hidden.unique_id}", [*stored, *cache_folders()])
        return io.NodeOutput(SampleConfig.from_dict(data))

    @classmethod
    def _encode_pictures(cls, clip_vision: Any, pictures: list[str]) -> str:
        """Returns the cache key of the pictures' image tokens, encoded on a miss; "" without pictures or encoder."""
        if not pictures or not is_linked(cls.hidden, "clip_vision"):
            return ""
        cache, identity = folders.cache(), str(encoder_identity(cls.hidden, "clip_vision", clip_vision))
        key = vision_tokens_key(pictures, identity)
        if not cache.is_sound("condition", key):
            write_vision_tokens(cache, key, pictures, ComfyImageEncoder(clip_vision, identity))
        return key


def _is_default(negative_prompt: str) -> bool:
    return negative_prompt.strip() == DEFAULT_NEGATIVE_PROMPT


def _texts(library: list[tuple[str, PreviewPrompt]], negative_prompt: str) -> list[str]:
    """Returns the texts to encode, with Wan's negative prompt, because a rendering without a run has no cache set."""
    negatives = [own.negative_prompt for _, own in library if own.negative_prompt is not None]
    wanted = [*(prompt for prompt, _ in library), *negatives]
    if not _is_default(negative_prompt):
        return list(dict.fromkeys([*wanted, negative_prompt]))
    return list(dict.fromkeys([*wanted, DEFAULT_NEGATIVE_PROMPT] if wanted else []))
