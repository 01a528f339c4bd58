"""Fits the three constants of a card to measured steps.

    seconds = FLOP / flops_per_s + bytes / bytes_per_s + kernels * kernel_s

or, if the host is slower than the card, kernels * host_s (`plan/step_time.py`).

The fit is a least squares of the relative errors. Similar steps do not determine how their time divides among the three
terms, so a weak penalty draws each constant to its assumed value, after all three were scaled to the measured times.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..plan import Card, CardCost, Constants, card_named, unknown_card

_FEWEST = 3
"""smallest number of steps for a fit, one per constant"""
_OF_CARD = 2
"""smallest number of card-bound steps if other steps are host-bound"""
_PULL = 1e-3
"""weight of the penalty for a known card, relative to the squared relative error of a step"""
_PULL_UNKNOWN = 1e-4
"""weight of the penalty for an unknown card, whose assumed constants are unreliable"""
_WITHIN = (0.1, 10.0)
"""bounds of a constant, relative to its scaled assumed value"""
_HIDDEN = 0.02
"""largest share of a step's time by which copies may outlast the card's work; other steps are not used"""
_CLOSE = 0.05
"""largest relative error of a fit to card-bound steps"""


class Fit(NamedTuple):
    """The fitted constants of a card and its host, with their error."""

    flops_per_s: float
    bytes_per_s: float
    kernel_s: float
    off: float
    """largest relative error of the card-bound steps"""

    host_s: float = 0.0
    """upper bound of the host's seconds per kernel; 0 if unknown"""

    of_host: tuple[int, ...] = ()
    """indices of the host-bound steps"""


def fitted_constants(machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Constants | None:
    """Returns the constants of the machine's card, from the figures of measured rows; None if there are too few."""
    steps = [
        (CardCost(**figures["work"]), figures["median_s"])
        for figures in rows
        if (figures["copies_s"] or 0.0) <= _HIDDEN * (figures["predicted_s"] or 1.0)
    ]
    if len(steps) < _FEWEST:
        return None
    device = str(machine["device"])
    found = fit(steps, card_named(device) or unknown_card(device))
    return Constants(
        card=device,
        torch=str(machine["torch"]),
        date=datetime.date.today().isoformat(),
        rows=len(steps) - len(found.of_host),
        off=round(found.off, 4),
        flops_per_s=found.flops_per_s,
        bytes_per_s=found.bytes_per_s,
        kernel_s=found.kernel_s,
        host_s=found.host_s,
    )


def fit(steps: Sequence[tuple[CardCost, float]], assumed: Card) -> Fit:
    """Returns the constants; `steps`: (cost, measured seconds).

    Host-bound steps have the least time per kernel, and are slower than the card's constants predict. The smallest
    number of such steps is excluded so that the others fit; the excluded ones give the host's constant. Without such
    steps, the step with the least time per kernel bounds that constant.
    """
    fastest = sorted(range(len(steps)), key=lambda i: steps[i][1] / max(steps[i][0].kernels, 1.0))
    all_of_card = _fit_card(steps, assumed)
    for count in range(1, len(steps) - _OF_CARD + 1) if all_of_card.off > _CLOSE else ():
        of_host, kept = fastest[:count], [steps[i] for i in sorted(fastest[count:])]
        found = _fit_card(kept, assumed)
        slower = [steps[i][1] > (1 + _CLOSE) * _seconds(steps[i][0], found) for i in of_host]
        if found.off <= _CLOSE and all(slower):
            each = sorted(steps[i][1] / steps[i][0].kernels for i in of_host)
            return found._replace(host_s=each[len(each) // 2], of_host=tuple(sorted(of_host)))
    least = min(seconds / max(work.kernels, 1.0) for work, seconds in steps)
    return all_of_card._replace(host_s=least if least < assumed.host_s else 0.0)


def _seconds(work: CardCost, found: Fit) -> float:
    return work.flop / found.flops_per_s + work.bytes / found.bytes_per_s + work.kernels * found.kernel_s


def _fit_card(steps: Sequence[tuple[CardCost, float]], assumed: Card) -> Fit:
    """Returns the constants of the card from card-bound steps. No speed exceeds the maker's figure."""
    start = (1 / assumed.flops_per_s, 1 / assumed.bytes_per_s, assumed.kernel_s)
    amounts = torch.tensor([[work.flop, work.bytes, work.kernels] for work, _ in steps], dtype=torch.float64)
    seconds = torch.tensor([seconds for _, seconds in steps], dtype=torch.float64)
    shares = amounts * torch.tensor(start, dtype=torch.float64) / seconds[:, None]
    alike = float(shares.sum(1).sum() / shares.sum(1).square().sum())
    shares *= alike
    known = assumed.gibibytes > 0
    pull = (_PULL if known else _PULL_UNKNOWN) ** 0.5 * torch.eye(3, dtype=torch.float64)
    left = torch.cat([shares, pull])
    right = torch.cat([torch.ones(len(steps), dtype=torch.float64), pull.diagonal()])
    least, most = torch.full((3,), _WITHIN[0], dtype=torch.float64), torch.full((3,), _WITHIN[1], dtype=torch.float64)
    if known:  # Peak figures are known, which bound the constants.
        peaks = torch.tensor([1 / assumed.bf16 / start[0], 1 / assumed.bandwidth / start[1], 0.0], dtype=torch.float64)
        least = torch.maximum(least, peaks / alike)
        most = torch.maximum(most, least)
    found = _bounded(left, right, least, most)
    off = float((shares @ found - 1).abs().max())
    flop_s, byte_s, kernel_s = (alike * one * float(share) for one, share in zip(start, found, strict=True))
    return Fit(1 / flop_s, 1 / byte_s, kernel_s, off)


def _bounded(left: torch.Tensor, right: torch.Tensor, least: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Returns the least squares solution within bounds. A value outside is fixed at its bound."""
    found, free = torch.ones(3, dtype=torch.float64), [0, 1, 2]
    while free:
        bound = [i for i in range(3) if i not in free]
        rest = right - left[:, bound] @ found[bound]
        found[free] = torch.linalg.lstsq(left[:, free], rest[:, None]).solution[:, 0]
        beyond = [i for i in free if not least[i] <= found[i] <= most[i]]
        found = torch.minimum(torch.maximum(found, least), most)
        if not beyond:
            break
        free = [i for i in free if i not in beyond]
    return found
