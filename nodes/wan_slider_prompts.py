"""Wan Slider Prompts: pairs of prompts, in place of clips, for a LoRA that moves one property both ways."""

from __future__ import annotations

from typing import Any

from comfy import model_management as mm
from comfy_api.latest import io

from ..wan_core.cache import Encoders, EncodingPlan, SliderConfig, encode_missing, plan_prompts, slider_set
from ..wan_core.video import VideoProcess
from .bridge import folders
from .bridge.handed import cache_state, hand_cache
from .bridge.interrupts import stops_become_interrupts
from .bridge.sockets import ComfyTextEncoder, encoder_identity
from .bridge.types import CATEGORY, ModelHandle, WanCache, WanTrainModel
from .bridge.widgets import searched_as, widget


class WanSliderPrompts(io.ComfyNode):
    """Returns a cache set without clips; only prompts are encoded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanSliderPrompts",
            display_name="Wan Slider Prompts",
            category=CATEGORY,
            **searched_as("slider lora", "concept slider", "contrast pair", "positive negative prompts"),
            description="Trains a slider LoRA from pairs of prompts, without clips: strength 1 moves what the prompts "
            "show towards positive, strength -1 towards negative. For text-to-video models.",
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            inputs=[
                WanTrainModel.Input("model", tooltip="The model to train. From Load Wan Model."),
                io.Clip.Input("clip", lazy=True, tooltip="Load CLIP with umt5_xxl, type wan. Loaded only when needed."),
                *(widget(SliderConfig, name, multiline=True) for name in ("prompts", "positive", "negative")),
                *(widget(SliderConfig, name) for name in ("slider_scale", "width", "height", "num_frames")),
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
        with stops_become_interrupts():
            identity = cls._identity(clip)
            needed = identity is None or cls._plan(model, identity, values).missing_texts
        return ["clip"] if needed and clip is None else []

    @classmethod
    def execute(cls, model: ModelHandle, clip: Any = None, **values: Any) -> io.NodeOutput:
        with stops_become_interrupts(), VideoProcess(mm.processing_interrupted) as video:
            identity = str(cls._identity(clip))
            plan = cls._plan(model, identity, values)
            encoder = ComfyTextEncoder(clip, identity) if plan.missing_texts else None
            encoders = Encoders(codec=None, text_encoder=encoder, video=video, should_stop=mm.processing_interrupted)
            report = encode_missing(plan, folders.cache(), encoders)
        lines = [f'"{item.caption}": "{" | ".join(item.slider_prompts)}"' for item in plan.cache_set.items]
        text = "\n".join(["slider, without clips (prompt: positive | negative)", *lines])
        return io.NodeOutput(hand_cache(report, plan.cache_set), text, ui={"text": [text]})

    @classmethod
    def _identity(cls, clip: Any) -> str | None:
        return encoder_identity(cls.hidden.dynprompt, cls.hidden.unique_id, "clip", clip, folders.cache())

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
