"""Widgets for frozen LoRA files: one for a model, or one for each expert of a pair."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ...wan_core.errors import ConfigError
from ...wan_core.files import file_mark, sampled_digest
from ...wan_core.lora import FrozenLora, holds_both_experts
from . import folders
from .widgets import combo, file_of, flag, number

NONE = "none"


def lora_widgets() -> list[io.Input]:
    known = [NONE, *folders.file_names("loras")]
    return [
        combo(
            "lora",
            known,
            "A LoRA in models/loras, from any trainer. For a Wan 2.2 A14B pair, the high-noise file, or a file with "
            "both experts.",
        ),
        number(
            "strength",
            1.0,
            -100.0,
            100.0,
            "Strength of the LoRA. 1.0 = as trained, 0 = no effect. Lower it when its effect is too strong.",
        ),
        combo(
            "low_noise_lora",
            known,
            "The LoRA file for the low-noise model of a Wan 2.2 A14B pair. none: no LoRA on that model. Choose it when "
            "the LoRA of a pair is two files.",
        ),
        number(
            "strength_low_noise",
            1.0,
            -100.0,
            100.0,
            "Strength of the low-noise LoRA. 1.0 = as trained, 0 = no effect. Lower it when its effect is too strong.",
        ),
        flag(
            "only_what_fits",
            False,
            "Skip keys that do not fit this model, such as those of a text encoder or of a layer of another size; the "
            "log names them. Off: such a file is refused. Turn it on when the keys that do not fit are unimportant.",
        ),
    ]


def frozen_lora(
    lora: str, strength: float, low_noise_lora: str, strength_low_noise: float, only_what_fits: bool
) -> FrozenLora:
    """Returns the frozen LoRA of the widgets. Raises ConfigError if no file is chosen."""
    file, low = (_reference(name, value) for name, value in (("lora", lora), ("low_noise_lora", low_noise_lora)))
    if not file and not low:
        raise ConfigError("lora and low_noise_lora are both none. Choose a LoRA, or remove the node.")
    # A file with the LoRAs of both experts acts on both at one strength.
    if file and not low and holds_both_experts(folders.roots().resolve(file)):
        low, strength_low_noise = file, strength
    digests = ["" if not one else sampled_digest(folders.roots().resolve(one)) for one in (file, low)]
    return FrozenLora(
        file=file,
        strength=strength,
        low_noise_file=low,
        low_noise_strength=strength_low_noise,
        digest=digests[0],
        low_noise_digest=digests[1],
        only_what_fits=only_what_fits,
    )


def lora_marks(lora: Any, low_noise_lora: Any) -> list[object]:
    """Returns marks that change with the files, without paths, because ComfyUI writes them into image metadata."""
    known = folders.file_names("loras")
    named = [name for name in (lora, low_noise_lora) if name in known]
    return [file_mark(folders.roots().resolve(folders.model_reference("loras", name))) for name in named]


def _reference(widget: str, name: str) -> str:
    if name == NONE:
        return ""
    file_of(widget, name, folders.file_names("loras"), "loras")
    return folders.model_reference("loras", name)
