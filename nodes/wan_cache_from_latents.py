"""Wan Cache from Latents: stores LATENTs and CONDITIONINGs of core nodes as a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comfy import model_management as mm
from comfy_api.latest import io

from ..wan_core.cache import LatentCache, context_note
from ..wan_core.dataset import DEFAULT_NEGATIVE_PROMPT
from ..wan_core.errors import ConfigError
from ..wan_core.importers import PromptKeys, store_clips, store_text
from .bridge import folders
from .bridge.core_tensors import kind_given, read_clips, text_features
from .bridge.handed import cache_state, hand_cache
from .bridge.sockets import encoder_identity, is_linked, needs_clip, text_keys
from .bridge.types import ModelHandle, WanCache, WanTrainModel
from .bridge.widgets import in_menu

_PROMPTS = {"empty": "", "negative": DEFAULT_NEGATIVE_PROMPT}
"""the prompts of every cache set"""


class WanCacheFromLatents(io.ComfyNode):
    """Takes lists, such as those of core MakeTrainingDataset."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanCacheFromLatents",
            display_name="Wan Cache from Latents",
            **in_menu("latent dataset, conditioning dataset, make training dataset"),
            description="Stores latents and text features from core nodes as a cache for Train Wan LoRA. It expects "
            "latents as VAEEncode outputs them and normalises them. Cached entries are not written again.",
            is_input_list=True,
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            inputs=[
                WanTrainModel.Input(
                    "model",
                    tooltip="Sets the channels, the frame rate and the conditioning inputs. From Load Wan Model.",
                ),
                io.Latent.Input(
                    "latents", tooltip="A list of latents from VAEEncode with a Wan VAE. A batch is several clips."
                ),
                io.Conditioning.Input(
                    "conditioning",
                    tooltip="A list, one for each latent, from CLIPTextEncode with umT5. For an image-to-video model, "
                    "through WanImageToVideo; for Bernini-R, through BerniniConditioning.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    lazy=True,
                    tooltip="Encodes the empty and the default negative prompt, once. From Load CLIP with "
                    "umt5_xxl, type wan. Leave it unconnected when both prompts are connected below.",
                ),
                io.Conditioning.Input(
                    "empty",
                    optional=True,
                    tooltip="The encoded empty prompt, instead of clip. Used for caption dropout.",
                ),
                io.Conditioning.Input(
                    "negative",
                    optional=True,
                    tooltip="The encoded negative prompt, instead of clip. Used for previews.",
                ),
            ],
            outputs=[
                WanCache.Output(display_name="cache", tooltip="For Train Wan LoRA."),
                io.String.Output(display_name="report", tooltip="Report of what was stored."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return cache_state()

    @classmethod
    def check_lazy_status(
        cls,
        clip: Sequence[Any] = (None,),
        empty: Sequence[Any] = (None,),
        negative: Sequence[Any] = (None,),
        **_: object,
    ) -> list[str]:
        given = {"empty": empty[0], "negative": negative[0]}  # is_input_list: every input is a list
        texts = [_PROMPTS[name] for name, value in given.items() if value is None and not is_linked(cls.hidden, name)]
        lacks = texts and is_linked(cls.hidden, "clip") and needs_clip(cls.hidden, clip[0], texts)
        return ["clip"] if lacks else []

    @classmethod
    def execute(
        cls,
        model: list[ModelHandle],
        latents: list[Any],
        conditioning: list[Any],
        clip: Sequence[Any] = (None,),
        empty: Sequence[Any] = (None,),
        negative: Sequence[Any] = (None,),
    ) -> io.NodeOutput:
        variant, cache = model[0].variant, folders.cache()
        clips = read_clips(latents, conditioning, variant)
        cache_set, report = store_clips(
            clips,
            cache,
            prompts=PromptKeys(
                cls._key_of("empty", empty[0], clip[0], cache), cls._key_of("negative", negative[0], clip[0], cache)
            ),
            space=variant.latents,
            kind=kind_given(conditioning, variant),
            fps=variant.fps,
            should_stop=mm.processing_interrupted,
        )
        text = (
            f"{report.clips} items, {report.frames} frames\n"
            f"latents: {report.latents_encoded} normalised and stored, {report.latents_reused} there already\n"
            f"texts: {report.texts_encoded} stored, {report.texts_reused} there already"
        )
        if note := context_note(cache_set):
            text += f"\n{note}"
        return io.NodeOutput(hand_cache(report, cache_set), text, ui={"text": [text]})

    @classmethod
    def _key_of(cls, name: str, given: Any, clip: Any, cache: LatentCache) -> str:
        if given is not None:
            return store_text(cache, text_features(given, f"the {name} prompt"), f"the {name} prompt")
        if encoder_identity(cls.hidden, "clip", clip) is None:
            raise ConfigError(
                "Training also needs the empty and the negative prompt. Connect clip (Load CLIP, umt5_xxl, type wan), "
                "or both empty and negative (CLIPTextEncode)."
            )
        return text_keys(cls.hidden, clip, [_PROMPTS[name]])[_PROMPTS[name]]
