"""The update rules of samplers: from pure noise to a clip, by the names ComfyUI's KSampler gives them.

All of them solve dx/dsigma = v, the flow of a model that predicts the velocity v. With D = x - sigma * v, the clean
clip expected at x, the same equation is dx/dsigma = (x - D) / sigma; over lambda = -log(sigma) it is solved exactly
where D is constant: x(t) = (t/s) x(s) + (1 - t/s) D. The samplers of higher order differ in how D is extrapolated.

x is (B, C, F, H, W) float32; sigmas fall from 1, or from where another model left off, to 0 or where the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from .unipc import correct, predict

_LOWEST = 0.001
"""ComfyUI's uni_pc ends at this noise level instead of 0, and scales what it has there up by 1 / (1 - 0.001)"""


@dataclass(frozen=True)
class Walk:
    """The values that a solver needs beside x."""

    sigmas: tuple[float, ...]
    """(steps + 1) noise levels, falling"""
    velocity: Callable[[Tensor, float], Tensor]
    """(x, sigma) -> v of x's shape, float32"""
    fresh_noise: Callable[[], Tensor]
    """standard normal, of x's shape"""
    stepped: Callable[[], None]
    """called after each step; may raise to stop"""

    def clean(self, x: Tensor, sigma: float) -> Tensor:
        """Returns D, the clean clip the model expects at x."""
        return x - sigma * self.velocity(x, sigma)


def _euler(walk: Walk, x: Tensor) -> Tensor:
    """Straight along the velocity."""
    for sigma, following in pairwise(walk.sigmas):
        x = x + (following - sigma) * walk.velocity(x, sigma)
        walk.stepped()
    return x


def _heun(walk: Walk, x: Tensor) -> Tensor:
    """The mean of the velocities at both ends of the step (Karras et al. 2022, algorithm 1); Euler into 0."""
    for sigma, following in pairwise(walk.sigmas):
        velocity = walk.velocity(x, sigma)
        if following > 0:
            there = x + (following - sigma) * velocity
            velocity = (velocity + walk.velocity(there, following)) / 2
        x = x + (following - sigma) * velocity
        walk.stepped()
    return x


def _dpmpp_2m(walk: Walk, x: Tensor) -> Tensor:
    """D on the line through the last two, at the middle of the step (Lu et al. 2022, DPM-Solver++(2M))."""
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
    """The line through the last two D, integrated exactly (Zhang et al. 2023, refined exponential solver)."""
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
    """Straight to the clean clip, then noised again for the next step (Luo et al. 2023)."""
    for sigma, following in pairwise(walk.sigmas):
        x = walk.clean(x, sigma)
        if following > 0:
            x = (1 - following) * x + following * walk.fresh_noise()
        walk.stepped()
    return x


def _uni_pc(walk: Walk, x: Tensor) -> Tensor:
    """UniPC of order 3, B(h) = h (Zhao et al. 2023): predicted, evaluated once, and corrected with what came out.

    The order rises over the first steps and falls over the last ones; nothing is corrected at the end.
    """
    ends_clean = walk.sigmas[-1] == 0
    levels = (*walk.sigmas[:-1], walk.sigmas[-1] or _LOWEST)
    steps = len(levels) - 1
    highest = max(1, min(3, steps - 1))
    past = [(levels[0], walk.clean(x, levels[0]))]
    for step in range(1, steps + 1):
        order, following = min(highest, step, steps + 1 - step), levels[step]
        known = past[-order:]
        guess = predict(x, known, following)
        if step == steps:
            x = guess
        else:
            clean = walk.clean(guess, following)
            x = correct(x, known, following, clean)
            past.append((following, clean))
        walk.stepped()
    return x / (1 - _LOWEST) if ends_clean else x


@dataclass(frozen=True)
class Solver:
    """An update rule, and what ComfyUI does to its schedule."""

    solve: Callable[[Walk, Tensor], Tensor]
    skips_last: bool = False
    """one step more is laid and the noise level before 0 left out"""
    passes: int = 1
    """evaluations of the model in a step, at most"""


SOLVERS = {
    "euler": Solver(_euler),
    "uni_pc": Solver(_uni_pc, skips_last=True),
    "dpmpp_2m": Solver(_dpmpp_2m),
    "heun": Solver(_heun, passes=2),
    "res_multistep": Solver(_res_multistep),
    "lcm": Solver(_lcm),
}
"""names as in ComfyUI's KSampler"""
