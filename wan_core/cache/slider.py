"""Sliders: pairs of prompts as a set without clips. Only prompts are encoded. Latents are synthetic entries, which
set the size of the samples."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, setting
from ..dataset import DatasetConfig
from ..dataset.conditioning import DEFAULT_NEGATIVE_PROMPT
from ..errors import ConfigError
from ..model import ConditionKind, LatentSpace
from .cache_set import CacheItem, CacheSet
from .keys import text_key
from .synthetic import synthetic_key

_SLIDER = "slider"
"""used in place of the VAE's identity"""


@dataclass(frozen=True, kw_only=True)
class SliderConfig(Config):
    """Prompts and size of a slider."""

    prompts: str = setting(
        "",
        "Prompts that the slider acts on, one per line, such as: a person. Write several to cover more scenes.",
    )
    positive: str = setting(
        "",
        "What strength 1 moves towards, with one line for each line of prompts, such as: a person smiling. Describe "
        "only what "
        "should change.",
    )
    negative: str = setting(
        "",
        "What strength -1 moves towards, with one line for each line of prompts, such as: a person frowning. Write the "
        "opposite of positive.",
    )
    slider_scale: float = setting(
        2.0,
        "How far strength 1 moves: a multiple of the difference between positive and negative. Raise it when the "
        "slider does too little, lower it when clips break.",
        within=(0.1, 20.0),
        step=0.5,
    )
    width: int = setting(480, "Training width in pixels. Lower it when memory is short.", offered=(16, 4096), step=16)
    height: int = setting(
        480, "Training height in pixels. Lower it together with the width.", offered=(16, 4096), step=16
    )
    num_frames: int = setting(
        1,
        "Number of frames that are trained: 4n+1. 1 trains stills, which is enough for a change of appearance. "
        "Raise it for a change of motion.",
        offered=(1, 1001),
        step=4,
    )

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        """Prompt, positive and negative prompt of each line; ConfigError if their numbers of lines differ."""
        columns = [
            [line.strip() for line in text.splitlines() if line.strip()]
            for text in (self.prompts, self.positive, self.negative)
        ]
        counts = [len(column) for column in columns]
        if not counts[0] or len(set(counts)) != 1:
            raise ConfigError(
                f"prompts, positive and negative have {counts[0]}, {counts[1]} and {counts[2]} lines. Write one "
                "line for each prompt in all three."
            )
        return list(zip(*columns, strict=True))  # type: ignore[arg-type]


def slider_set(
    config: SliderConfig, *, text_identity: str, space: LatentSpace, size_multiple: int, kind: ConditionKind, fps: float
) -> CacheSet:
    """Returns the set of a slider for a model. Writes nothing; ConfigError for a model with other inputs than text."""
    if kind.tensors:
        raise ConfigError(
            "A slider is trained from prompts alone, and this model also reads images or videos. Choose a "
            "text-to-video model in Load Wan Model."
        )
    # This config is built only for its checks, so that wrong sizes get the same errors as for clips.
    DatasetConfig(
        width=config.width, height=config.height, num_frames=config.num_frames, fps=fps, size_multiple=size_multiple
    )
    size = (space.latent_frames(config.num_frames), config.height // space.spatial_stride)
    latent = synthetic_key("latent", (space.channels, *size, config.width // space.spatial_stride), 0, endless=False)
    items = [
        CacheItem(
            latent_key=latent,
            text_key=text_key(prompt, text_identity),
            num_frames=config.num_frames,
            height=config.height,
            width=config.width,
            name=prompt,
            caption=prompt,
            slider=config.slider_scale,
            slider_keys=tuple(text_key(text, text_identity) for text in (positive, negative)),
            slider_prompts=(positive, negative),
        )
        for prompt, positive, negative in config.lines
    ]
    return CacheSet(
        items=tuple(items),
        empty_text_key=text_key("", text_identity),
        negative_text_key=text_key(DEFAULT_NEGATIVE_PROMPT, text_identity),
        latent_space=space.name,
        fps=fps,
        vae_identity=_SLIDER,
        text_identity=text_identity,
        conditioning=kind.name,
    )
