"""The rows of a text: those that differ, the last of which stands for itself and for all that are missing of Wan's 512.

Wan pads every text with zero rows, and attends to them. Rows that are equal stay equal through every layer that looks
at one row alone, so they are computed once, and repeated where attention reads them (ADR 29).
"""

from __future__ import annotations

import torch
from torch import Tensor

TEXT_LENGTH = 512
"""umT5 tokens Wan was trained with (Wan configs: text_len); zero rows pad a text to them and take part in attention"""
TEXT_STEP = 16
"""a text has a multiple of these rows: few sizes, each of which kernels take well"""


def lengthened(rows: Tensor, count: int) -> Tensor:
    """Returns rows (B, L, D) with the last one again until there are `count`, or as they are where there are."""
    missing = count - rows.shape[1]
    if missing <= 0:
        return rows
    return torch.cat([rows, rows[:, -1:].expand(-1, missing, -1)], dim=1)
