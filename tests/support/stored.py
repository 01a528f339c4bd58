"""Quantized weights of every layout with random bits, as `dequantise` takes them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from wan_core.checkpoint.dequantise import MXFP8, NVFP4
from wan_core.checkpoint.ggml import BLOCKS

KINDS = (*BLOCKS, NVFP4, MXFP8, "float8_e4m3fn", "float8_e5m2", "int8")


def stored(kind: str, rows: int = 6, width: int = 512) -> tuple[Tensor, Tensor | None, Tensor | None, str]:
    """Returns weight, scale, whole scale and layout of `width` values a row, a multiple of 256; of 8-bit floats every
    one there is."""
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randint, generator=generator, dtype=torch.uint8)
    if kind in BLOCKS:
        known = BLOCKS[kind]
        weight = draw(0, 255, (rows, width // known.values * known.size_bytes))
        blocks = weight.view(-1, known.size_bytes)
        for at in known.scales:  # random bits may be no finite number
            blocks[:, at : at + 2] = torch.rand(len(blocks), 1, generator=generator).half().view(torch.uint8)
        return weight, None, None, kind
    if kind == NVFP4:
        scale = torch.rand(rows, width // 16, generator=generator).to(torch.float8_e4m3fn)
        return draw(0, 255, (rows, width // 2)), scale, torch.rand((), generator=generator), kind
    if kind == "int8":
        return draw(0, 255, (rows, width)).view(torch.int8), torch.rand(rows, 1, generator=generator), None, ""
    every = torch.arange(256, dtype=torch.uint8).repeat(rows, width // 256)
    if kind == MXFP8:
        return every.view(torch.float8_e4m3fn), draw(100, 140, (rows, width // 32)), None, kind
    return every.view(getattr(torch, kind)), torch.rand(rows, 4, generator=generator), None, ""
