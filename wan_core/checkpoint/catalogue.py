"""Recognises a published model by its file name, if keys and shapes do not determine expert, resolution or version."""

from __future__ import annotations

import re
from pathlib import Path

from ..families import FAMILIES, Family, Model

HIGH, LOW = "high_noise", "low_noise"
_EXPERTS = ((HIGH, "high|hn"), (LOW, "low|ln"))
_OTHER_MEANING = r"(?!_?(quality|res|def|detail|motion|speed|vram|contrast|step))"
_ONE_MODEL = re.compile(r"(^|_|wan)v?2[._]?1(_|$)")
"""names of Wan 2.1 files; Wan 2.1 has no experts, so "low" or "high" in such a name is no expert"""
_NAMELESS = re.compile(
    r"(diffusion_pytorch_model|model|pytorch_model)(_\d+_of_\d+)?|transformer(_2)?|(high|low)_noise_model"
)


def file_words(path: Path) -> str:
    """Returns "folder/file" in lower case, words joined by underscores; more folders if the file name is generic."""
    words = _spelled(path.stem if path.suffix in (".safetensors", ".gguf", ".sft") else path.name)
    if _NAMELESS.fullmatch(words) and path.parent.name:
        return f"{file_words(path.parent)}_{words}"
    return f"{_spelled(path.parent.name)}/{words}"


def expert_said(path: Path) -> str | None:
    """Returns the expert that a file name states: high_noise, low_noise, or None.

    In a diffusers pipeline, `transformer` next to `transformer_2` is the high-noise expert, and `transformer_2` the
    low-noise one.
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


def names_of(model: Model) -> dict[str, str | None]:
    """Returns the variant names of a published model, each with its expert."""
    if not model.pair:
        return {model.name: None}
    return {f"{model.name} high noise": HIGH, f"{model.name} low noise": LOW}


def look_alikes(family: Family, structure: tuple[int, int, bool, bool]) -> tuple[Model, ...]:
    """Returns the published models of a family with this `Model.structure`."""
    return tuple(model for model in family.models if model.structure == structure)


def guess(models: tuple[Model, ...], words: str, expert: str | None) -> Model:
    """Returns the model whose words fit a file name best; of equally good ones the first.

    `words`: `file_words` of the file; `expert`: `expert_said` of the file.
    """

    def score(model: Model) -> int:
        own = sum(1 if re.search(word, words) else -1 for word in model.words)
        return own + (0 if expert is None else 1 if model.pair else -1)

    return max(models, key=score)


AMBIGUOUS_NAMES = tuple(
    name
    for family in FAMILIES
    for model in family.models
    if model.pair or len(look_alikes(family, model.structure)) > 1
    for name in names_of(model)
)
"""variant names that a user may have to choose from, because keys and shapes do not distinguish them"""
