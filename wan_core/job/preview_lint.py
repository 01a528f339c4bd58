"""Notes on preview settings that do not suit the model, before the first preview is rendered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..cache import CacheSet
from ..checkpoint import WanVariant
from ..dataset import TOKEN_LIMIT
from ..dataset.captions import estimated_tokens
from ..families import official_of
from ..sampler import FEW_STEPS, SampleConfig
from ..train import preview_shape
from ..words import filled, shortened

_MUCH_LARGER, _MUCH_SMALLER = 1.1, 0.5
"""limits on pixels, as multiples of the model's largest and smallest official size"""
_USUAL_GUIDANCE = (0.6, 1.6)
"""usual range, as multiples of the official guidance scale; it includes ComfyUI's templates"""
_FEW_TOKENS = 8
"""estimated tokens of a short prompt, with the end token: five or six words"""


def preview_remarks(variant: WanVariant, clips: CacheSet, config: SampleConfig) -> list[str]:
    """Returns at most one note of each kind on the previews of a released model: size, frames, cfg, prompts."""
    if not variant.is_full_size or not (clips.items or config.num_frames):
        return []
    each = [config.of_prompt(index) for index in range(len(config.prompts))] or [config]
    found = ([check(variant, clips, one) for one in each] for check in (_size, _length, _guidance))
    notes = [next(filter(None, of_a_kind), "") for of_a_kind in found]
    return [*filter(None, notes), *_prompts(config.prompts, clips.trigger_words)]


def _size(variant: WanVariant, clips: CacheSet, config: SampleConfig) -> str:
    stride = clips.space.spatial_stride
    height, width = (side * stride for side in preview_shape(clips, config)[2:])
    made_for = official_of(variant.name)
    if made_for.pixels[0] * _MUCH_SMALLER <= width * height <= made_for.pixels[1] * _MUCH_LARGER:
        return ""
    return filled(
        "Previews are {width}x{height}, a size {name} was not made for ({sizes}), so they look worse than its clips. "
        "Set width and height of Wan Preview Settings.",
        width=width,
        height=height,
        name=variant.name,
        sizes=made_for.sizes,
    )


def _length(variant: WanVariant, clips: CacheSet, config: SampleConfig) -> str:
    frames, most = config.num_frames or clips.items[0].num_frames, official_of(variant.name).frames
    if frames <= most:
        return ""
    return filled(
        "Previews have {frames} frames, and {name} was made for up to {most}: longer clips repeat or drift. Set "
        "num_frames of Wan Preview Settings.",
        frames=frames,
        name=variant.name,
        most=most,
    )


def _guidance(variant: WanVariant, _clips: CacheSet, config: SampleConfig) -> str:
    usual, given = official_of(variant.name).guidance_scale, config.resolved(variant.template).guidance_scale
    low, high = (share * usual for share in _USUAL_GUIDANCE)
    if low <= given <= high or config.sampling == FEW_STEPS or (config.loras and given < low):
        return ""
    return filled(
        "Previews have cfg {cfg}; {name} is usually sampled with about {usual}. Set cfg of Wan Preview Settings to 0, "
        "or use a few-step LoRA with cfg 1.",
        cfg=f"{given:g}",
        name=variant.name,
        usual=f"{usual:g}",
    )


def _prompts(prompts: Iterable[str], words: Sequence[str]) -> Iterator[str]:
    tokens = {prompt: estimated_tokens(prompt) for prompt in prompts}
    if short := next((prompt for prompt, count in tokens.items() if count < _FEW_TOKENS), ""):
        said = "A preview prompt is very short ({prompt}); Wan follows sentences that name subject, motion and setting."
        yield filled(said, prompt=shortened(short, 60))
    if long := next((prompt for prompt, count in tokens.items() if count > TOKEN_LIMIT), ""):
        said = "A preview prompt has more than {limit} tokens ({prompt}); the tokens after these are ignored."
        yield filled(said, limit=TOKEN_LIMIT, prompt=shortened(long, 60))
    if tokens and words and not any(word.lower() in prompt.lower() for word in words for prompt in tokens):
        yield filled(
            "No preview prompt has the trigger word of the captions ({words}), so previews may not show what is "
            "trained. Put it into a prompt.",
            words=shortened(", ".join(words), 60),
        )
