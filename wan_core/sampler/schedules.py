"""Sigma schedules with the names and values of ComfyUI's schedulers for Wan.

Every schedule falls from 1, pure noise, to 0. The shift is `flow.shift_sigma`, ComfyUI's ModelSamplingSD3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..flow import shift_sigma, simple_sigmas

_GRID = 1000
"""ComfyUI has a table of the shifted sigmas of k / 1000, k = 1 .. 1000"""


def schedule(name: str, steps: int, shift: float, *, skips_last: bool = False) -> Tensor:
    """Returns (steps + 1,) float32 sigmas from 1 to 0 of the scheduler `name`, a key of SCHEDULERS.

    `beta` omits duplicates, which occur from about 300 steps on. `skips_last`: computes the schedule with an additional
    step and omits the sigma before 0, as ComfyUI does for samplers that are unstable near 0 (uni_pc).
    """
    sigmas = SCHEDULERS[name](steps + skips_last, shift)
    return torch.cat([sigmas[:-2], sigmas[-1:]]) if skips_last else sigmas


def _normal(steps: int, shift: float, more: int = 0) -> Tensor:
    """Returns evenly spaced sigmas from 1 to the lowest shifted sigma, then shifted as in ComfyUI."""
    lowest = float(shift_sigma(torch.tensor(1 / _GRID).double(), shift))
    return _shifted_to_zero(torch.linspace(1.0, lowest, steps + more, dtype=torch.float64)[:steps], shift)


def _beta(steps: int, shift: float) -> Tensor:
    """Returns quantiles of Beta(0.6, 0.6), which are dense at both ends (arXiv 2407.12173)."""
    from scipy.special import betaincinv  # of ComfyUI's requirements

    places = [round(float(betaincinv(0.6, 0.6, 1 - index / steps)) * (_GRID - 1)) for index in range(steps)]
    return _shifted_to_zero((torch.tensor(list(dict.fromkeys(places))).double() + 1) / _GRID, shift)


def _linear_quadratic(steps: int, _shift: float) -> Tensor:
    """Falls linearly by 0.025 in the first half of the steps, then as a parabola to 0 (Mochi); ignores the shift."""
    if steps == 1:
        return torch.tensor([1.0, 0.0])
    even, threshold = steps // 2, 0.025
    bend = (1 - threshold * steps / even) / (steps - even) ** 2
    index = torch.arange(steps + 1, dtype=torch.float64)
    removed = threshold * index / even + bend * (index - even).clamp_min(0) ** 2
    return torch.cat([1 - removed[:-1], torch.zeros(1, dtype=torch.float64)]).float()


SCHEDULERS: dict[str, Callable[[int, float], Tensor]] = {
    "simple": simple_sigmas,
    "normal": _normal,
    "beta": _beta,
    "linear_quadratic": _linear_quadratic,
    "sgm_uniform": partial(_normal, more=1),
}
"""names of ComfyUI's KSampler"""


def _shifted_to_zero(sigmas: Tensor, shift: float) -> Tensor:
    return torch.cat([shift_sigma(sigmas, shift), sigmas.new_zeros(1)]).float()
