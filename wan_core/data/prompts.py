"""The negative prompt Wan was tuned with: cached with every dataset, used by previews."""

from __future__ import annotations

__all__ = ["DEFAULT_NEGATIVE_PROMPT", "name_of"]

DEFAULT_NEGATIVE_PROMPT = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，"
    "丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，"
    "静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走"
)
"""Wan configs: sample_neg_prompt; ComfyUI's Wan templates use the same text."""

_NAMES = {"": "the empty prompt", DEFAULT_NEGATIVE_PROMPT: "the negative prompt"}


def name_of(prompt: str) -> str:
    """What progress calls a text: its first words; those every cache has are named instead."""
    return _NAMES.get(prompt, prompt[:60])
