"""Fits the three constants of a card to steps that it was measured on.

    seconds = FLOP / flops_per_s + bytes / bytes_per_s + kernels * kernel_s

Least squares of the relative errors. Steps of like work say little on how their time divides among the three, so each
constant is drawn weakly to its assumed share, all three scaled alike to the measured times first.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..plan import Card, Constants, Work, card_named, unknown_card

_FEWEST = 3
"""steps, as many as there are constants"""
_PULL = 1e-4
"""of a relative deviation of a constant from its assumed share, against that of a step"""
_WITHIN = (0.1, 10.0)
"""the least and the most of a constant's assumed share, scaled to the measured times"""
_HIDDEN = 0.02
"""of a step: copies that take more beyond the card's own work leave it out"""


def fitted_constants(machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Constants | None:
    """Returns the constants of the machine's card by the figures of measured rows; None where too few can say them."""
    steps = [
        (Work(**figures["work"]), figures["median_s"])
        for figures in rows
        if (figures["copies_s"] or 0.0) <= _HIDDEN * (figures["predicted_s"] or 1.0)
    ]
    if len(steps) < _FEWEST:
        return None
    device = str(machine["device"])
    flops_per_s, bytes_per_s, kernel_s, off = fit(steps, card_named(device) or unknown_card(device))
    return Constants(
        card=device,
        torch=str(machine["torch"]),
        date=datetime.date.today().isoformat(),
        rows=len(steps),
        off=round(off, 4),
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        kernel_s=kernel_s,
    )


def fit(steps: Sequence[tuple[Work, float]], assumed: Card) -> tuple[float, float, float, float]:
    """Returns FLOP/s, bytes/s and seconds a kernel by (work, measured seconds), and the largest relative error."""
    start = (1 / assumed.flops_per_s, 1 / assumed.bytes_per_s, assumed.kernel_s)
    amounts = torch.tensor([[work.flop, work.bytes, work.kernels] for work, _ in steps], dtype=torch.float64)
    seconds = torch.tensor([seconds for _, seconds in steps], dtype=torch.float64)
    shares = amounts * torch.tensor(start, dtype=torch.float64) / seconds[:, None]
    alike = float(shares.sum(1).sum() / shares.sum(1).square().sum())
    shares *= alike
    pull = _PULL**0.5 * torch.eye(3, dtype=torch.float64)
    left = torch.cat([shares, pull])
    right = torch.cat([torch.ones(len(steps), dtype=torch.float64), pull.diagonal()])
    found = _bounded(left, right)
    off = float((shares @ found - 1).abs().max())
    flop_s, byte_s, kernel_s = (alike * one * float(share) for one, share in zip(start, found, strict=True))
    return 1 / flop_s, 1 / byte_s, kernel_s, off


def _bounded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns the least squares solution with each value within bounds: one beyond them stays at its bound."""
    least, most = _WITHIN
    found, free = torch.ones(3, dtype=torch.float64), [0, 1, 2]
    while free:
        bound = [i for i in range(3) if i not in free]
        rest = right - left[:, bound] @ found[bound]
        found[free] = torch.linalg.lstsq(left[:, free], rest[:, None]).solution[:, 0]
        beyond = [i for i in free if not least <= float(found[i]) <= most]
        found.clamp_(least, most)
        if not beyond:
            break
        free = [i for i in free if i not in beyond]
    return found
