"""Rotary position embedding over (frame, row, column), as Wan defines it.

Tables are built in float64 (unless the policy asks for less) and handed to the blocks as plain tensors: never buffers,
so neither `.to(dtype)` nor a sharding wrapper can round them. The last few are kept: a run has few grids, and meets
each thousands of times.
"""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

from ..accelerator import has_float64
from .fused import fused_rotate, rotation_alone_fuses


def rope_table(
    grid: tuple[int, int, int],
    head_dim: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    built_in: torch.dtype = torch.float64,
    context: tuple[tuple[int, int, int], ...] = (),
) -> tuple[Tensor, Tensor]:
    """cos and sin, each (N, 1, head_dim / 2) in `dtype`, for a token grid (frames, rows, columns), N row-major.

    The same tensors for the same question, so read them only. Rows and columns take 2 * (head_dim // 6) channels each,
    time the rest; frequencies 10000^(-2j / axis channels) (Wan2.1 model.py: rope_params). Frequencies and angles are
    computed and rounded in `built_in`, then to `dtype`; on the CPU for a device without float64. `context`: grids of
    further tokens behind them, each turned by one more id: its number from 1, at frequencies of all channels.
    """
    key = (grid, head_dim, dtype, device, built_in, context)
    # Fake tensors must not outlive their mode, and a count of memory on meta tensors must include their allocation.
    real = type(torch.empty(0, device=device)) is Tensor and device.type != "meta"
    with _lock:  # copies of a model on several cards ask at once
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
"""How many grids are kept, over all devices; one takes 39 MiB for 14B at 1280x720, 81 frames."""
_Grid = tuple[int, int, int]
_Key = tuple[_Grid, int, torch.dtype, torch.device, torch.dtype, tuple[_Grid, ...]]
_tables: dict[_Key, tuple[Tensor, Tensor]] = {}
_lock = Lock()


def _build(
    grid: _Grid,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    built_in: torch.dtype,
    context: tuple[_Grid, ...],
) -> tuple[Tensor, Tensor]:
    where = device if has_float64(device) else torch.device("cpu")
    table = torch.cat([_angles(one, head_dim, where, built_in, id) for id, one in enumerate((grid, *context))])
    return table.cos().to(dtype).to(device), table.sin().to(dtype).to(device)


def _angles(grid: _Grid, head_dim: int, where: torch.device, built_in: torch.dtype, id: int) -> Tensor:
    """Returns the angles (N, 1, head_dim / 2) of a grid in `built_in`, on `where`."""
    space = 2 * (head_dim // 6)
    widths = (head_dim - 2 * space, space, space)
    angles = []
    for axis, (length, width) in enumerate(zip(grid, widths, strict=True)):
        powers = torch.arange(0, width, 2, dtype=torch.float64, device=where) / width
        places = torch.arange(length, dtype=torch.float64, device=where).to(built_in)
        angle = torch.outer(places, (10000.0**-powers).to(built_in))
        shape = [1, 1, 1, width // 2]
        shape[axis] = length
        angles.append(angle.view(shape).expand(*grid, width // 2))
    table = torch.cat(angles, dim=-1).reshape(-1, 1, head_dim // 2)
    if not id:
        return table
    powers = torch.arange(0, head_dim, 2, dtype=torch.float64, device=where) / head_dim
    return table + id * (10000.0**-powers).to(built_in)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent channel pairs (2j, 2j+1) of x (B, N, heads, head_dim); the product is in the table's dtype."""
    if rotation_alone_fuses(x, cos):
        return fused_rotate(x.flatten(2), cos, sin).view(x.shape)
    pairs = x.to(cos.dtype).unflatten(-1, (-1, 2))
    # As complex numbers it is one pass, and one back, without a copy per half: 4x faster on a CPU, the same bits.
    # torch has no complex product of 16-bit numbers, and its compiler fuses the other form.
    if cos.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling():
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin))
    else:
        even, odd = pairs.unbind(-1)
        rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return rotated.flatten(-2).to(x.dtype)
