"""Reads a LoRA file for one model: one expert's half, and all modules or only the fitting ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from ..errors import CheckpointError
from ..words import logger, shortened
from .frozen import fitting_modules, what_cannot_act
from .frozen_config import FrozenLora
from .source import LoraSource, is_of_a_text_encoder, read_lora

_log = logger(__name__)


def read_frozen(path: Path, lora: FrozenLora, model: nn.Module, expert: str | None) -> LoraSource:
    """Returns the LoRA of `path` for a `model`, which may be meta. CheckpointError for an unusable file.

    `expert`: high_noise or low_noise; None without a pair.
    """
    source = read_lora(path, expert, leave_out=(lambda _: True) if lora.only_what_fits else None)
    if not lora.only_what_fits:
        return source
    fits = fitting_modules(source, model)
    if not fits:
        what = what_cannot_act(source)
        why = f"is {what}" if what else "was trained for a model of another size, or for another model"
        raise CheckpointError(
            f"{source.name} contains nothing that fits this model, even with only_what_fits: it {why}. "
            "Choose a LoRA, LoKr or LoHa of this model."
        )
    if left := [*source.left_out, *(module for module in source.modules if module not in fits)]:
        _log.warning(
            "%s: %d of its %d parts do not fit this model and are left out (%s).",
            source.name, len(left), len(source.modules) + len(source.left_out), shortened(", ".join(left), 200),
        )  # fmt: skip
    return replace(source, modules=fits)


def read_start(path: Path, expert: str | None) -> LoraSource:
    """Returns the LoRA that a run starts from; text encoder keys are skipped with a warning."""
    source = read_lora(path, expert, leave_out=is_of_a_text_encoder)
    if source.left_out:
        _log.warning(
            "%s adapts a text encoder too, which is not supported here: %d keys are left out (%s).",
            source.name, len(source.left_out), shortened(", ".join(source.left_out), 200),
        )  # fmt: skip
    return source
