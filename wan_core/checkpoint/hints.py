"""What the name of a file and of its folder say, where keys and shapes cannot: high or low noise, 480P or 720P, 2.2."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["HIGH", "LOW", "expert_said", "file_words"]

HIGH, LOW = "high_noise", "low_noise"
_EXPERTS = ((HIGH, "high|hn"), (LOW, "low|ln"))
_OTHER_MEANING = r"(?!_?(quality|res|def|detail|motion|speed|vram|contrast|step))"
"""high_quality or low_vram speaks of something else"""
_ONE_MODEL = re.compile(r"(^|_|wan)v?2[._]?1(_|$)")
"""Wan 2.1 has no experts, so a bare "low" or "high" in such a name is about something else: a learning rate, say"""
_NAMELESS = re.compile(
    r"(diffusion_pytorch_model|model|pytorch_model)(_\d+_of_\d+)?|transformer(_2)?|(high|low)_noise_model"
)


def file_words(path: Path) -> str:
    """The words a file is called by, lower case, joined by underscores; with its folders' where its own say nothing."""
    words = _spelled(path.stem if path.suffix in (".safetensors", ".gguf", ".sft") else path.name)
    if _NAMELESS.fullmatch(words) and path.parent.name:
        return f"{file_words(path.parent)}_{words}"
    return f"{_spelled(path.parent.name)}/{words}"


def expert_said(path: Path) -> str | None:
    """high_noise, low_noise, or None when the name says neither.

    In a diffusers pipeline `transformer` holds the high-noise expert and `transformer_2` the low-noise one; a folder
    `transformer` alone says nothing.
    """
    if path.name == "transformer_2":
        return LOW
    if path.name == "transformer" and (path.parent / "transformer_2").is_dir():
        return HIGH
    folder, _, own = file_words(path).rpartition("/")
    for expert, short in _EXPERTS:
        said = expert.replace("_", "_?")
        if not _ONE_MODEL.search(own):
            said += rf"|(^|_|\d)({short})(_|$){_OTHER_MEANING}"
        if re.search(said, own):
            return expert
    return next((e for e, _ in _EXPERTS if re.search(rf"{e.replace('_', '_?')}|^{e.split('_')[0]}$", folder)), None)


def _spelled(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_")
