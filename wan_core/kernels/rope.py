"""Rotary position embedding over (frame, row, column), as Wan defines it.

Tables are built in float64, unless the precision policy has another dtype, and passed to the blocks as plain tensors:
`.to(dtype)` or a sharding wrapper would round buffers. The last few are cached, because a run has few grids.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from ..accelerator import has_float64


class Span(NamedTuple):
    """Positions of a grid of tokens: token (i, j, k) has position start + step * (i, j, k)."""

    grid: tuple[int, int, int]
    """frames, rows, columns"""
    start: tuple[float, float, float] = (0.0, 0.0, 0.0)
    step: tuple[float, float, float] = (1.0, 1.0, 1.0)
    id: int = 0
    """id of a context stream (Bernini-R): adds id times a frequency to every angle"""


def rope_of(
    spans: tuple[Span, ...],
    head_dim: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    built_in: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """cos and sin, each (N, 1, head_dim / 2) in `dtype`, of all tokens of `spans` in order, each span row-major.

    The tensors are cached and read-only. Rows and columns have 2 * (head_dim // 6) channels each, frames the others;
    frequencies are 10000^(-2j / channels of the axis) (Wan2.1 model.py: rope_params). Frequencies and angles are
    rounded to `built_in`, then to `dtype`; a device without float64 gets them from the CPU.
    """
    key = (spans, head_dim, dtype, device, built_in)
    # Only real tensors are cached: fake ones must not outlive their mode, and a trace must count the allocation.
    real = type(torch.empty(0, device=device)) is Tensor and device.type != "meta"
    with _lock:  # A thread for each card may call this.
        if real and (found := _tables.pop(key, None)) is not None:
            _tables[key] = found
            return found
    # A table made under inference mode could not take part in a backward pass later.
    with torch.inference_mode(False), torch.no_grad():
        table = _build(*key)
    if real:
        with _lock:
            _tables[key] = table
            while len(_tables) > _KEPT_TABLES:
                del _tables[next(iter(_tables))]
    return table


_KEPT_TABLES = 4
"""number of cached tables of all devices; one of a 14B model at 1280x720 and 81 frames has 39 MiB"""
_Key = tuple[tuple[Span, ...], int, torch.dtype, torch.device, torch.dtype]
_tables: dict[_Key, tuple[Tensor, Tensor]] = {}
_lock = Lock()


def _build(
    spans: tuple[Span, ...], head_dim: int, dtype: torch.dtype, device: torch.device, built_in: torch.dtype
) -> tuple[Tensor, Tensor]:
    where = device if has_float64(device) else torch.device("cpu")
    table = torch.cat([_angles(span, head_dim, where, built_in) for span in spans])
    return table.cos().to(dtype).to(device), table.sin().to(dtype).to(device)


def _angles(span: Span, head_dim: int, where: torch.device, built_in: torch.dtype) -> Tensor:
    """Returns the angles (N, 1, head_dim / 2) of a span in `built_in`, on `where`."""
    space = 2 * (head_dim // 6)
    angles = []
    for axis, (length, width) in enumerate(zip(span.grid, (head_dim - 2 * space, space, space), strict=True)):
        powers = torch.arange(0, width, 2, dtype=torch.float64, device=where) / width
        places = torch.arange(length, dtype=torch.float64, device=where) * span.step[axis] + span.start[axis]
        angle = torch.outer(places.to(built_in), (10000.0**-powers).to(built_in))
        shape = [1, 1, 1, width // 2]
        shape[axis] = length
        angles.append(angle.view(shape).expand(*span.grid, width // 2))
    table = torch.cat(angles, dim=-1).reshape(-1, 1, head_dim // 2)
    if not span.id:
        return table
    powers = torch.arange(0, head_dim, 2, dtype=torch.float64, device=where) / head_dim
    return table + span.id * (10000.0**-powers).to(built_in)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x (B, N, heads, head_dim) with channel pairs (2j, 2j+1) rotated in the table's dtype, in x's dtype."""
    pairs = x.to(cos.dtype).unflatten(-1, (-1, 2))
    # A complex product takes one kernel in each pass: 4x faster on a CPU, with the same bits. torch has no complex
    # product of 16-bit numbers, and its compiler fuses the other form.
    if cos.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling():
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin))
    else:
        even, odd = pairs.unbind(-1)
        rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return rotated.flatten(-2).to(x.dtype)
