"""Wan Preview Settings: what the preview clips show, and how they are sampled."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.data import DEFAULT_NEGATIVE_PROMPT, text_key
from ..wan_core.sample import PRESETS, SampleConfig
from . import folders
from .codecs import ComfyTextEncoder
from .encoders import encoder_identity
from .interrupts import raise_if_cancelled, stops_become_interrupts
from .progress import NodeProgress
from .types import CATEGORY, WanValidation
from .widgets import combo, number, one_of, text, whole

SAMPLINGS = [*PRESETS, "custom"]


class WanPreviewSettings(io.ComfyNode):
    """Encodes the prompts into the cache, so that the training process needs no text encoder."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanPreviewSettings",
            display_name="Wan Preview Settings",
            category=CATEGORY,
            description="Prompts and sampling of the preview clips. Optional: without it TrainLoRA previews the first "
            "caption the way ComfyUI's own Wan template samples.",
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            inputs=[
                io.Clip.Input(
                    "clip", lazy=True, tooltip="CLIPLoader with umt5_xxl, type wan. Loaded only for new prompts."
                ),
                text("prompts", "", "One prompt a line, one clip each. Empty: the first caption.", multiline=True),
                text("negative_prompt", DEFAULT_NEGATIVE_PROMPT, "Wan's own by default.", multiline=True),
                combo(
                    "sampling",
                    SAMPLINGS,
                    "ComfyUI template: 20 steps, cfg 6, shift 8. official: 50 steps, cfg 5, shift 5. 4-step LoRA: no "
                    "cfg. custom: the numbers below.",
                ),
                whole("width", 0, 0, 4096, "Pixels. 0 = as the first training clip.", step=16),
                whole("height", 0, 0, 4096, "Pixels. 0 = as the first training clip.", step=16),
                whole("num_frames", 0, 0, 1001, "4n+1. 0 = as the first training clip."),
                whole("steps", 0, 0, 1000, "Sampling steps. 0 = preset."),
                number("cfg", 0.0, 0.0, 100.0, "Guidance. 0 = preset, 1 = off.", step=0.1),
                number("shift", 0.0, 0.0, 100.0, "Sampling shift. 0 = preset.", step=0.1),
                whole(
                    "seed",
                    42,
                    0,
                    2**63 - 1,
                    "Of the preview noise. The same at every step, so that clips compare.",
                    control_after_generate=False,
                ),
            ],
            outputs=[WanValidation.Output(display_name="validation", tooltip="For TrainLoRA and ValidateVideo.")],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        """Changes when somebody deletes the cache the prompts were encoded into."""
        texts = folders.cache().root / "texts"
        return texts.stat().st_ino if texts.is_dir() else 0

    @classmethod
    def check_lazy_status(
        cls,
        clip: Any = None,
        prompts: str = "",
        negative_prompt: str = DEFAULT_NEGATIVE_PROMPT,
        **_: object,
    ) -> list[str]:
        wanted = _texts(prompts, negative_prompt)
        if clip is not None or not wanted:
            return []
        with stops_become_interrupts():
            identity = cls._identity(None)
        missing = identity is None or not all(folders.cache().is_sound("text", text_key(t, identity)) for t in wanted)
        return ["clip"] if missing else []

    @classmethod
    def execute(
        cls,
        clip: Any = None,
        prompts: str = "",
        negative_prompt: str = DEFAULT_NEGATIVE_PROMPT,
        sampling: str = SAMPLINGS[0],
        width: int = 0,
        height: int = 0,
        num_frames: int = 0,
        steps: int = 0,
        cfg: float = 0.0,
        shift: float = 0.0,
        seed: int = 42,
    ) -> io.NodeOutput:
        config = SampleConfig(
            prompts=_lines(prompts),
            negative_prompt=None if _is_default(negative_prompt) else negative_prompt,
            sampling=one_of("sampling", sampling, SAMPLINGS),
            width=width,
            height=height,
            num_frames=num_frames,
            steps=steps,
            cfg=cfg,
            shift=shift,
            seed=seed,
        )
        keys = cls._encode(clip, _texts(prompts, negative_prompt))
        data = config.to_dict()
        data["prompt_keys"] = [keys[prompt] for prompt in config.prompts]
        data["negative_key"] = keys.get(negative_prompt, "") if config.negative_prompt is not None else ""
        return io.NodeOutput(SampleConfig.from_dict(data))

    @classmethod
    def _encode(cls, clip: Any, wanted: list[str]) -> dict[str, str]:
        """Cache keys of the texts, each encoded unless it is there."""
        if not wanted:
            return {}
        cache, progress = folders.cache(), NodeProgress(cls.hidden.unique_id)
        with stops_become_interrupts():
            identity = str(cls._identity(clip))
        keys = {prompt: text_key(prompt, identity) for prompt in wanted}
        for done, (prompt, key) in enumerate(keys.items(), 1):
            raise_if_cancelled()
            if not cache.is_sound("text", key):
                cache.write_text(key, ComfyTextEncoder(clip, identity).encode(prompt), prompt[:60])
            progress.bar(done, len(keys))
        return keys

    @classmethod
    def _identity(cls, clip: Any) -> str | None:
        return encoder_identity(cls.hidden.dynprompt, cls.hidden.unique_id, "clip", clip, folders.cache())


def _lines(prompts: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in prompts.splitlines() if line.strip())


def _is_default(negative_prompt: str) -> bool:
    return negative_prompt.strip() == DEFAULT_NEGATIVE_PROMPT


def _texts(prompts: str, negative_prompt: str) -> list[str]:
    """Every text that needs an encoding of its own; the default negative prompt is in every cache."""
    found = list(dict.fromkeys(_lines(prompts)))
    return found if _is_default(negative_prompt) else [*found, negative_prompt]
