"""The noise levels that a run is evaluated at: those asked for, as far as this model is trained and sampled on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..flow import EVALUATION_TIMESTEPS, is_in_range

__all__ = ["evaluation_timesteps"]


def evaluation_timesteps(
    asked: Sequence[float], stored: Sequence[float], sigma_range: tuple[float, float]
) -> tuple[list[float], str]:
    """Returns the timesteps inside `sigma_range`, and a sentence for the user where they are not the ones asked for
    ("" otherwise).

    `asked` counts as it is, but for the usual four: those give way to what a held-out clip has `stored`, and an expert,
    which none or one of them may suit, is evaluated in the middles of four equal parts of its own range.
    """
    usual = tuple(asked) == EVALUATION_TIMESTEPS
    wanted = list(dict.fromkeys(stored if usual and stored else asked))
    if tuple(wanted) == EVALUATION_TIMESTEPS and sigma_range != (0.0, 1.0):
        return _spread(len(wanted), sigma_range), ""
    levels = torch.tensor(wanted, dtype=torch.float64) / 1000
    inside = [
        timestep for timestep, fits in zip(wanted, is_in_range(levels, sigma_range).tolist(), strict=True) if fits
    ]
    used = inside or _spread(len(wanted), sigma_range)
    if usual or used == wanted:
        return used, ""
    low, high = (1000 * sigma for sigma in sigma_range)
    without = ", ".join(f"{timestep:g}" for timestep in wanted if timestep not in used)
    return used, (
        f"This expert is trained on timesteps {low:g} to {high:g}: eval_timesteps {without} lie outside. "
        f"Evaluated at {', '.join(f'{timestep:g}' for timestep in used)}."
    )


def _spread(count: int, sigma_range: tuple[float, float]) -> list[float]:
    """Returns the middles of `count` equal parts of the range."""
    low, high = (1000 * sigma for sigma in sigma_range)
    return [low + (high - low) * (part + 0.5) / count for part in range(count)]
