"""Samplers: from noise to a clip, with the names of ComfyUI's KSampler.

All solve dx/dsigma = v, where the model predicts the velocity v. With the expected clean clip D = x - sigma * v, this
is dx/dsigma = (x - D) / sigma. For constant D, the exact solution from sigma s to t is x(t) = (t/s) x(s) + (1 - t/s) D.
Samplers of higher order differ in how they extrapolate D.

x is (B, C, F, H, W) float32. Sigmas fall from 1 to 0; for an expert of a pair, from the previous expert's last sigma,
or to the next expert's first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

_Known = Sequence[tuple[float, Tensor]]
"""(sigma, D) of the last steps, oldest first, one per order"""
_LOWEST = 0.001
"""ComfyUI's uni_pc ends here instead of at 0, and scales the result by 1 / (1 - 0.001)"""


@dataclass(frozen=True)
class Walk:
    """The inputs of a solver in addition to x."""

    sigmas: tuple[float, ...]
    """(steps + 1) descending sigmas"""
    velocity: Callable[[Tensor, float], Tensor]
    """(x, sigma) -> v, of x's shape, float32"""

    fresh_noise: Callable[[], Tensor]
    """returns standard normal noise of x's shape"""
    stepped: Callable[[], None]
    """called after each step; may raise to stop"""

    def clean(self, x: Tensor, sigma: float) -> Tensor:
        """Returns D, the expected clean clip at x."""
        return x - sigma * self.velocity(x, sigma)


def _euler(walk: Walk, x: Tensor) -> Tensor:
    for sigma, following in pairwise(walk.sigmas):
        x = x + (following - sigma) * walk.velocity(x, sigma)
        walk.stepped()
    return x


def _heun(walk: Walk, x: Tensor) -> Tensor:
    """Uses the mean of the velocities at both ends of a step (Karras et al. 2022, algorithm 1); the last step is
    Euler's."""
    for sigma, following in pairwise(walk.sigmas):
        velocity = walk.velocity(x, sigma)
        if following > 0:
            there = x + (following - sigma) * velocity
            velocity = (velocity + walk.velocity(there, following)) / 2
        x = x + (following - sigma) * velocity
        walk.stepped()
    return x


def _dpmpp_2m(walk: Walk, x: Tensor) -> Tensor:
    """Extrapolates D linearly to the middle of the step (Lu et al. 2022, DPM-Solver++(2M))."""
    before: tuple[float, Tensor] | None = None
    for sigma, following in pairwise(walk.sigmas):
        clean = walk.clean(x, sigma)
        shown = clean
        if before is not None and following > 0:
            ratio = math.log(before[0] / sigma) / math.log(sigma / following)
            shown = clean + (clean - before[1]) / (2 * ratio)
        kept = following / sigma
        x = kept * x + (1 - kept) * shown
        before = (sigma, clean)
        walk.stepped()
    return x


def _res_multistep(walk: Walk, x: Tensor) -> Tensor:
    """Extrapolates D linearly and integrates exactly (Zhang et al. 2023, refined exponential solver)."""
    before: tuple[float, Tensor] | None = None
    for sigma, following in pairwise(walk.sigmas):
        clean = walk.clean(x, sigma)
        kept = following / sigma
        moved = kept * x + (1 - kept) * clean
        if before is not None and following > 0:
            length = math.log(sigma / following)
            phi_2 = (math.expm1(-length) / length + 1) / length
            past = math.log(before[0] / sigma) / length
            moved = moved + length * phi_2 / past * (clean - before[1])
        x = moved
        before = (sigma, clean)
        walk.stepped()
    return x


def _lcm(walk: Walk, x: Tensor) -> Tensor:
    """Jumps to the expected clean clip, then adds noise for the next step (Luo et al. 2023)."""
    for sigma, following in pairwise(walk.sigmas):
        x = walk.clean(x, sigma)
        if following > 0:
            x = (1 - following) * x + following * walk.fresh_noise()
        walk.stepped()
    return x


def _uni_pc(walk: Walk, x: Tensor) -> Tensor:
    """UniPC of order 3 with B(h) = h (Zhao et al. 2023, arXiv 2302.04867): predicts, evaluates once, corrects.

    The order rises during the first steps and falls during the last ones; the last step is not corrected. lambda =
    -log(sigma), h is the step in lambda, r_i = (lambda_i - lambda_0) / h. As in ComfyUI, coefficients are float32, and
    lambda is computed from alpha = 1 / sqrt(1 + sigma^2). In very short steps, such as the first ones of
    `linear_quadratic`, this rounding matters: in float64, clips differ by 0.03 from ComfyUI's.
    """
    ends_clean = walk.sigmas[-1] == 0
    levels = (*walk.sigmas[:-1], walk.sigmas[-1] or _LOWEST)
    steps = len(levels) - 1
    highest = max(1, min(3, steps - 1))
    past = [(levels[0], walk.clean(x, levels[0]))]
    for step in range(1, steps + 1):
        order, following = min(highest, step, steps + 1 - step), levels[step]
        known = past[-order:]
        guess = _predict(x, known, following)
        if step == steps:
            x = guess
        else:
            clean = walk.clean(guess, following)
            x = _correct(x, known, following, clean)
            past.append((following, clean))
        walk.stepped()
    return x / (1 - _LOWEST) if ends_clean else x


def _predict(x: Tensor, known: _Known, following: float) -> Tensor:
    """Returns x at sigma `following` (UniP), from the newest D and its differences to older ones."""
    length, places = _places(known, following)
    order = len(known)
    # A single weight is 1/2, its limit for short steps, instead of the solution of the linear system.
    weights = [0.5] if order == 2 else _weights(length, places)
    return _moved(x, known, following) + length * _differences(known, places, weights)


def _correct(x: Tensor, known: _Known, following: float, clean: Tensor) -> Tensor:
    """Returns x at sigma `following` (UniC), given D there: `clean`, of x's shape."""
    length, places = _places(known, following)
    weights = [0.5] if len(known) == 1 else _weights(length, [*places, 1.0])
    newest = weights[-1] * (clean - known[-1][1])
    return _moved(x, known, following) + length * (_differences(known, places, weights[:-1]) + newest)


def _moved(x: Tensor, known: _Known, following: float) -> Tensor:
    """Returns x at `following` for constant D."""
    sigma, clean = known[-1]
    kept = following / sigma
    return kept * x + (1 - kept) * clean


def _places(known: _Known, following: float) -> tuple[float, list[float]]:
    """Returns h, and r_i of all known sigmas except the newest, the newer ones first."""
    here = _log_ratio(known[-1][0])
    length = _log_ratio(following) - here
    return float(length), [float((_log_ratio(older) - here) / length) for older, _ in reversed(known[:-1])]


def _log_ratio(sigma: float) -> Tensor:
    """Returns lambda = log(alpha / sqrt(1 - alpha^2)), a float32 scalar."""
    level = torch.tensor(sigma, dtype=torch.float32)
    log_alpha = 0.5 * torch.log(1 / (level * level + 1))
    return log_alpha - 0.5 * torch.log(1 - torch.exp(2 * log_alpha))


def _differences(known: _Known, places: list[float], weights: list[float]) -> Tensor | float:
    newest = known[-1][1]
    total: Tensor | float = 0.0
    for (_, older), place, weight in zip(reversed(known[:-1]), places, weights, strict=True):
        total = total + weight / place * (older - newest)
    return total


def _weights(length: float, places: list[float]) -> list[float]:
    """Solves sum_i weight_i r_i^(k-1) = k! phi_(k+1)(-h) for k = 1 .. n."""
    if not places:
        return []
    step = -torch.tensor(length, dtype=torch.float32)
    phi = torch.expm1(step) / step  # phi_1(-h); each next one is (phi_k - 1/k!) / -h
    wanted: list[Tensor] = []
    for k in range(1, len(places) + 1):
        phi = (phi - 1 / math.factorial(k)) / step
        wanted.append(math.factorial(k) * phi)
    powers = torch.tensor([[place**k for place in places] for k in range(len(places))], dtype=torch.float32)
    return torch.linalg.solve(powers, torch.stack(wanted)).tolist()


@dataclass(frozen=True)
class Solver:
    """A sampler, and the schedule that it needs."""

    solve: Callable[[Walk, Tensor], Tensor]
    skips_last: bool = False
    """whether the solver needs `skips_last` of `schedule`"""


SOLVERS = {
    "euler": Solver(_euler),
    "uni_pc": Solver(_uni_pc, skips_last=True),
    "dpmpp_2m": Solver(_dpmpp_2m),
    "heun": Solver(_heun),
    "res_multistep": Solver(_res_multistep),
    "lcm": Solver(_lcm),
}
"""names of ComfyUI's KSampler"""
