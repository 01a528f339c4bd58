"""What a record says, as a number one can reckon with: files outlive programs, and people edit them."""

from __future__ import annotations

import math

__all__ = ["finite", "whole"]


def finite(value: object) -> float | None:
    """The number as a float; None for anything else: texts, truth values, NaN, infinities and what no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object) -> int | None:
    """The number of a step, 0 or more and exact in every reader of JSON; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
