"""Sigma schedules with the names and values of ComfyUI's schedulers for Wan.

Every schedule falls from 1, pure noise, to 0. The shift is `flow.shift_sigma`, ComfyUI's ModelSamplingSD3.
"""

from __future__ import annotations

from collections.abc import Callable

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


def _normal(steps: int, shift: float) -> Tensor:
    """Returns evenly spaced sigmas from 1 to the lowest shifted sigma, then shifted as in ComfyUI."""
    lowest = float(_shifted(torch.tensor([1 / _GRID]), shift))
    return _to_zero(_shifted(torch.linspace(1.0, lowest, steps, dtype=torch.float64), shift))


def _sgm_uniform(steps: int, shift: float) -> Tensor:
    """Returns `_normal` with an additional step, without its last sigma above 0."""
    lowest = float(_shifted(torch.tensor([1 / _GRID]), shift))
    return _to_zero(_shifted(torch.linspace(1.0, lowest, steps + 1, dtype=torch.float64)[:-1], shift))


def _beta(steps: int, shift: float) -> Tensor:
    """Returns quantiles of Beta(0.6, 0.6), which are dense at both ends (arXiv 2407.12173)."""
    places = [round(_beta_quantile(1 - index / steps) * (_GRID - 1)) for index in range(steps)]
    distinct = torch.tensor(list(dict.fromkeys(places)), dtype=torch.float64)
    return _to_zero(_shifted((distinct + 1) / _GRID, shift))


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
    "sgm_uniform": _sgm_uniform,
}
"""names of ComfyUI's KSampler"""


def _shifted(sigma: Tensor, shift: float) -> Tensor:
    return shift_sigma(sigma.double(), shift)


def _to_zero(sigmas: Tensor) -> Tensor:
    return torch.cat([sigmas, sigmas.new_zeros(1)]).float()


def _beta_quantile(share: float, power: float = 0.6) -> float:
    """Returns x with I_x(power, power) = share, by bisection."""
    if share > 0.5:  # by symmetry, because the series converges fast below one half
        return 1 - _beta_quantile(1 - share, power)
    low, high = 0.0, 0.5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _incomplete_beta(middle, power) < share else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, power: float) -> float:
    """Returns the regularised I_x(power, power) for x <= 1/2: x^p (1-x)^p / (p B) * sum of (2p)_n / (p+1)_n x^n."""
    term = total = 1.0
    for n in range(200):
        term *= (2 * power + n) / (power + 1 + n) * x
        total += term
    front = (x * (1 - x)) ** power
    whole = torch.lgamma(torch.tensor([power, 2 * power], dtype=torch.float64))
    beta = float((2 * whole[0] - whole[1]).exp())
    return front / (power * beta) * total
