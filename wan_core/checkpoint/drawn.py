"""Model files without weights: a safetensors header alone; loading draws random weights on the device.

Speed and memory can be measured without trained weights, which would be 28 GB to download, write and read. Only
`wan_core.measure` writes such files, and no menu of models lists their suffix.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import atomic_write_bytes
from .header import DRAWN, framed_header

_SPREAD = 0.1
"""standard deviation of biases and norm weights"""


def write_drawn(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """Writes the header of a bf16 model with weights of these names and shapes; returns the file, `path` with DRAWN."""
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    path = path.with_suffix(DRAWN)
    atomic_write_bytes(path, framed_header(json.dumps(header).encode()))
    return path


def draw(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the weight `name`, drawn on `device` with a seed from its name.

    Matrices keep the variance of their input; norm weights are near 1.
    """
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    spread = math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else _SPREAD
    mean = 1.0 if ".norm" in name and name.endswith("weight") else 0.0
    return torch.empty(shape, dtype=dtype, device=device).normal_(mean, spread, generator=generator)
