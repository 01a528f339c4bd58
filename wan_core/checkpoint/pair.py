"""The two experts of a Wan 2.2 A14B model as one choice: files that do not belong together are refused."""

from __future__ import annotations

from ..errors import CheckpointError
from .hints import HIGH, LOW
from .variant import WanVariant

__all__ = ["pair_names"]


def pair_names(high: WanVariant, low: WanVariant, high_file: str, low_file: str) -> tuple[str, str]:
    """Variant names of the high- and the low-noise file; CheckpointError when they are swapped, mixed or no pair."""
    if high.task != low.task or high.shape != low.shape or (high.expert and low.expert and _kin(high) != _kin(low)):
        raise CheckpointError(
            f"{high_file} is {high.name}, {low_file} is {low.name}: not the two experts of one model. "
            "Choose both files of one A14B model, or set low_noise_model to none."
        )
    if high.expert == LOW or low.expert == HIGH:
        wrong = "Both files are the same expert" if high.expert == low.expert else "The two files are swapped"
        raise CheckpointError(
            f"{wrong}: diffusion_model {high_file} is {high.name}, low_noise_model {low_file} is {low.name}. "
            "Choose the high-noise file as diffusion_model and the low-noise file as low_noise_model."
        )
    return _as_expert(high, HIGH, high_file), _as_expert(low, LOW, low_file)


def _kin(variant: WanVariant) -> str:
    """What both experts of one model are called."""
    return variant.name.replace(" high noise", "").replace(" low noise", "")


def _as_expert(variant: WanVariant, expert: str, file_name: str) -> str:
    """The name `variant` has as one half of a pair; its own where it says so, else a candidate's."""
    ending = expert.replace("_", " ")
    names = [name for name in (variant.name, *variant.candidates) if name.endswith(ending)]
    own = [name for name in names if name.startswith(variant.name)]
    if not names:
        raise CheckpointError(
            f"{file_name} is {variant.name}, which is no half of a pair. Set low_noise_model to none; "
            f"a file of a pair in miniature has {expert} in its name."
        )
    return (own or names)[0]
