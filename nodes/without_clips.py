"""Wan Slider Prompts, pairs of prompts, and Wan Synthetic Dataset, random tensors: caches without clips."""

from __future__ import annotations

from typing import Any

from comfy import model_management as mm
from comfy_api.latest import io

from ..wan_core.cache import (
    Encoders,
    EncodingPlan,
    SliderConfig,
    SyntheticConfig,
    encode_missing,
    plan_prompts,
    report_of,
    slider_set,
    synthetic_note,
    synthetic_set,
)
from ..wan_core.video import VideoProcess
from .bridge import folders
from .bridge.handed import cache_state, hand_cache
from .bridge.sockets import ComfyTextEncoder, encoder_identity
from .bridge.types import ModelHandle, WanCache, WanTrainModel
from .bridge.widgets import advanced, in_menu, widget, widgets


class WanSliderPrompts(io.ComfyNode):
    """Returns a cache set without clips; only prompts are encoded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanSliderPrompts",
            display_name="Wan Slider Prompts",
            **in_menu("slider lora, concept slider, contrast pair, positive negative prompts"),
            description="Trains a slider LoRA from pairs of prompts, without clips: strength 1 moves what the prompts "
            "show towards positive, strength -1 towards negative. For text-to-video models.",
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            inputs=[
                WanTrainModel.Input("model", tooltip="The model to train. From Load Wan Model."),
                io.Clip.Input("clip", lazy=True, tooltip="Load CLIP with umt5_xxl, type wan. Loaded only when needed."),
                *(widget(SliderConfig, name, multiline=True) for name in ("prompts", "positive", "negative")),
                *widgets(SliderConfig, "slider_scale width height num_frames"),
            ],
            outputs=[
                WanCache.Output(
                    display_name="cache", tooltip="For Train Wan LoRA, instead of Cache Latents + Captions."
                ),
                io.String.Output(display_name="report", tooltip="Report of what is trained."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return cache_state()

    @classmethod
    def check_lazy_status(cls, model: ModelHandle, clip: Any = None, **values: Any) -> list[str]:
        identity = encoder_identity(cls.hidden, "clip", clip)
        needed = identity is None or cls._plan(model, identity, values).missing_texts
        return ["clip"] if needed and clip is None else []

    @classmethod
    def execute(cls, model: ModelHandle, clip: Any = None, **values: Any) -> io.NodeOutput:
        identity = str(encoder_identity(cls.hidden, "clip", clip))
        plan = cls._plan(model, identity, values)
        with VideoProcess(mm.processing_interrupted) as video:
            encoder = ComfyTextEncoder(clip, identity) if plan.missing_texts else None
            encoders = Encoders(codec=None, text_encoder=encoder, video=video, should_stop=mm.processing_interrupted)
            report = encode_missing(plan, folders.cache(), encoders)
        lines = [f'"{item.caption}": "{" | ".join(item.slider_prompts)}"' for item in plan.cache_set.items]
        text = "\n".join(["slider, without clips (prompt: positive | negative)", *lines])
        return io.NodeOutput(hand_cache(report, plan.cache_set), text, ui={"text": [text]})

    @classmethod
    def _plan(cls, model: ModelHandle, identity: str, values: dict[str, Any]) -> EncodingPlan:
        variant = model.variant
        made = slider_set(
            SliderConfig(**values),
            text_identity=identity,
            space=variant.latents,
            size_multiple=variant.size_multiple,
            kind=variant.conditioning,
            fps=variant.fps,
        )
        return plan_prompts(made, folders.cache())


class WanSyntheticDataset(io.ComfyNode):
    """Returns a cache set whose entries the trainer draws when it reads them; only their list is on disk."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanSyntheticDataset",
            display_name="Wan Synthetic Dataset (benchmark)",
            **in_menu("random data, dummy data, smoke test"),
            description="Random latents and captions for benchmarks and smoke tests: no clip, no VAE, no text "
            "encoder. A LoRA trained on them learns nothing, and its file says so.",
            inputs=[
                WanTrainModel.Input(
                    "model",
                    tooltip="The model to train, from Load Wan Model. It determines the channels, the size multiple "
                    "and the conditioning.",
                ),
                *widgets(SyntheticConfig, "count width height num_frames"),
                *advanced(
                    widget(SyntheticConfig, "text_length"),
                    widget(SyntheticConfig, "seed", control_after_generate=False),
                ),
            ],
            outputs=[
                WanCache.Output(
                    display_name="cache", tooltip="For Train Wan LoRA, instead of Cache Latents + Captions."
                ),
                io.String.Output(display_name="report", tooltip="Report of what will be drawn."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return cache_state()

    @classmethod
    def execute(cls, model: ModelHandle, **values: Any) -> io.NodeOutput:
        config = SyntheticConfig(**values)
        shape = model.variant.shape
        made = synthetic_set(
            config,
            space=model.variant.latents,
            size_multiple=model.variant.size_multiple,
            kind=model.variant.conditioning,
            condition_channels=shape.vace_channels if shape.vace_layers else shape.condition_channels,
            fps=model.variant.fps,
        )
        endless = "endless random clips, none twice"
        clips = f"{config.count} random clips, the same in every epoch" if config.count else endless
        text = (
            f"{clips}: {config.width}x{config.height}, {config.num_frames} frames, {config.text_length} tokens; "
            f"nothing is encoded and no clip is written\n{synthetic_note(made)}"
        )
        report = report_of(made, folders.cache().write_set(made), 0.0, {}, {})
        handle = hand_cache(report, made)
        return io.NodeOutput(handle, text, ui={"text": [text]})
