"""The published Wan models: which sizes each has, and the words its file names carry where sizes cannot tell.

Names say what keys and shapes cannot: high or low noise, 480P or 720P, 2.2. Sources: Wan2.1 and Wan2.2 configs; the
PAI Fun models' configs as ComfyUI's and DiffSynth's detection spell them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
    """Returns high_noise, low_noise, or None when the name says neither.

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


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published model, or a pair of experts."""

    name: str
    task: str
    dim: int
    in_channels: int = 16
    clip: bool = False
    """reads CLIP vision tokens"""
    reference: bool = False
    """has ref_conv, which prepends one latent frame"""
    words: tuple[str, ...] = ()
    """expressions its file names carry and those of its look-alikes do not"""
    boundary: float | None = None
    """sigma between the two experts; None for a single model"""
    fps: float = 16.0

    def names(self) -> dict[str, str | None]:
        """Returns the variant names a file of it can have, each with its expert."""
        if self.boundary is None:
            return {self.name: None}
        return {f"{self.name} high noise": HIGH, f"{self.name} low noise": LOW}


_CHANNELS_OF_5B = 48
_FUN = (r"fun|inp(_|$)",)
_PUBLISHED = (
    Published(name="2.1 T2V-1.3B", task="t2v", dim=1536),
    Published(name="2.1 T2V-14B", task="t2v", dim=5120),
    Published(name="2.2 T2V-A14B", task="t2v", dim=5120, words=("2[._]?2|a14b",), boundary=0.875),
    Published(name="2.1 I2V-14B-480P", task="i2v", dim=5120, in_channels=36, clip=True, words=("480",)),
    Published(name="2.1 I2V-14B-720P", task="i2v", dim=5120, in_channels=36, clip=True, words=("720",)),
    Published(name="2.1 Fun-14B-InP", task="i2v", dim=5120, in_channels=36, clip=True, words=_FUN),
    Published(name="2.1 Fun-1.3B-InP", task="i2v", dim=1536, in_channels=36, clip=True),
    Published(name="2.2 I2V-A14B", task="i2v", dim=5120, in_channels=36, boundary=0.9),
    Published(name="2.2 Fun-A14B-InP", task="i2v", dim=5120, in_channels=36, words=_FUN, boundary=0.9),
    Published(name="2.2 Fun-5B-InP", task="i2v", dim=3072, in_channels=100, fps=24.0),
    Published(name="2.1 FLF2V-14B", task="flf2v", dim=5120, in_channels=36, clip=True),
    Published(name="2.2 TI2V-5B", task="ti2v", dim=3072, in_channels=48, fps=24.0),
    Published(name="2.1 VACE-1.3B", task="vace", dim=1536),
    Published(name="2.1 VACE-14B", task="vace", dim=5120),
    Published(name="2.2 VACE-Fun-A14B", task="vace", dim=5120, words=("fun|2[._]?2|a14b",), boundary=0.875),
    Published(name="2.1 Fun-1.3B-Control", task="control", dim=1536, in_channels=48, clip=True),
    Published(name="2.1 Fun-14B-Control", task="control", dim=5120, in_channels=48, clip=True),
    Published(name="2.1 Fun-V1.1-1.3B-Control", task="control", dim=1536, in_channels=48, clip=True, reference=True),
    Published(name="2.1 Fun-V1.1-14B-Control", task="control", dim=5120, in_channels=48, clip=True, reference=True),
    Published(name="2.2 Fun-A14B-Control", task="control", dim=5120, in_channels=52, reference=True, boundary=0.9),
    Published(name="2.2 Fun-5B-Control", task="control", dim=3072, in_channels=148, reference=True, fps=24.0),
    Published(name="2.1 Fun-V1.1-1.3B-Control-Camera", task="camera", dim=1536, in_channels=32, clip=True),
    Published(name="2.1 Fun-V1.1-14B-Control-Camera", task="camera", dim=5120, in_channels=32, clip=True),
    Published(name="2.2 Fun-A14B-Control-Camera", task="camera", dim=5120, in_channels=36, boundary=0.9),
    Published(name="2.2 S2V-14B", task="s2v", dim=5120),
    Published(name="2.2 Animate-14B", task="animate", dim=5120, in_channels=36, clip=True, fps=30.0),
    Published(name="2.1 Wan-Dancer-14B", task="dancer", dim=5120, in_channels=36, clip=True, reference=True, fps=7.5),
    Published(name="2.1 HuMo-14B", task="humo", dim=5120, in_channels=36),
)


def published(*, task: str, dim: int, in_channels: int, clip: bool, reference: bool) -> tuple[Published, ...]:
    """All published models with exactly these sizes and parts; none for a model nobody published."""
    wanted = (task, dim, in_channels, clip, reference)
    return tuple(p for p in _PUBLISHED if (p.task, p.dim, p.in_channels, p.clip, p.reference) == wanted)


def guess(look_alikes: tuple[Published, ...], words: str, expert: str | None) -> Published:
    """Returns the one whose own words the file name carries and whose words it does not lack.

    Returns the first when none stands out.

    `words` is the file name in lower case; `expert` what it says about high or low noise.
    """

    def score(model: Published) -> int:
        own = sum(1 if re.search(word, words) else -1 for word in model.words)
        return own + (0 if expert is None else 1 if model.boundary else -1)

    return max(look_alikes, key=score)


def usual_shift(task: str, boundary: float | None, latent_channels: int) -> float:
    """Returns the training shift of a model, single (`boundary` None) or one of a pair.

    Experts are trained where they are sampled, with the shift of Wan's own configs: 12 for text-to-video, 5 for
    image-to-video. With 3 the high-noise expert of T2V-A14B would see noise levels above 0.97, where layout and motion
    are decided and 36 to 42 % of its sampling steps lie, in 4 % of its training. A model of its own covers the whole
    range with 3; benchmarks/results/learning_recipes_CPU_2026-11.md compares.
    """
    if boundary is not None:
        return 12.0 if task in ("t2v", "vace") else 5.0
    return 5.0 if latent_channels == _CHANNELS_OF_5B else 3.0


def _ambiguous() -> tuple[str, ...]:
    found: list[str] = []
    for model in _PUBLISHED:
        same = published(
            task=model.task,
            dim=model.dim,
            in_channels=model.in_channels,
            clip=model.clip,
            reference=model.reference,
        )
        if len(same) > 1 or model.boundary:
            found += model.names()
    return tuple(found)


AMBIGUOUS_NAMES = _ambiguous()
"""Every name that another model's file could bear: what a user may have to choose between."""

PAIR_BOUNDARIES = {name: model.boundary for model in _PUBLISHED if model.boundary for name in model.names()}
"""Name of every expert -> the sigma where its half of the noise range ends."""
