"""Predictor and corrector of UniPC (Zhao et al. 2023, arXiv 2302.04867) with B(h) = h, in expected clean clips.

`known` lists (sigma, D) of the last steps, oldest first, one per order. lambda = -log(sigma), h is the step in lambda,
r_i = (lambda_i - lambda_0) / h.

As in ComfyUI, coefficients are float32, and lambda is computed from alpha = 1 / sqrt(1 + sigma^2). In very short steps,
such as the first ones of `linear_quadratic`, this rounding matters: in float64, clips differ by 0.03 from ComfyUI's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Known = Sequence[tuple[float, Tensor]]


def predict(x: Tensor, known: Known, following: float) -> Tensor:
    """Returns x at sigma `following` (UniP), from the newest D and its differences to older ones."""
    length, places = _places(known, following)
    order = len(known)
    # A single weight is 1/2, its limit for short steps, instead of the solution of the linear system.
    weights = [0.5] if order == 2 else _weights(length, places)
    return _moved(x, known, following) + length * _differences(known, places, weights)


def correct(x: Tensor, known: Known, following: float, clean: Tensor) -> Tensor:
    """Returns x at sigma `following` (UniC), given D there: `clean`, of x's shape."""
    length, places = _places(known, following)
    weights = [0.5] if len(known) == 1 else _weights(length, [*places, 1.0])
    newest = weights[-1] * (clean - known[-1][1])
    return _moved(x, known, following) + length * (_differences(known, places, weights[:-1]) + newest)


def _moved(x: Tensor, known: Known, following: float) -> Tensor:
    """Returns x at `following` for constant D."""
    sigma, clean = known[-1]
    kept = following / sigma
    return kept * x + (1 - kept) * clean


def _places(known: Known, following: float) -> tuple[float, list[float]]:
    """Returns h, and r_i of all known sigmas except the newest, the newer ones first."""
    here = _log_ratio(known[-1][0])
    length = _log_ratio(following) - here
    return float(length), [float((_log_ratio(older) - here) / length) for older, _ in reversed(known[:-1])]


def _log_ratio(sigma: float) -> Tensor:
    """Returns lambda = log(alpha / sqrt(1 - alpha^2)), a float32 scalar."""
    level = torch.tensor(sigma, dtype=torch.float32)
    log_alpha = 0.5 * torch.log(1 / (level * level + 1))
    return log_alpha - 0.5 * torch.log(1 - torch.exp(2 * log_alpha))


def _differences(known: Known, places: list[float], weights: list[float]) -> Tensor | float:
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
