"""Reads each weight of a Wan file as it is stored: plain, in 8 or 4 bits, or GGUF. Where it lies, `locate.py` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .dequantise import MXFP8, MXFP8_BLOCK, NVFP4, NVFP4_BLOCK, block_scales_in_rows, dequantise
from .ggml import BLOCKS
from .gguf_file import GgufTensor, gguf_blocks, gguf_values, open_gguf
from .header import damaged
from .integers import INTEGERS, value_to_a_byte

__all__ = ["EIGHT_BIT", "INT8", "PLAIN", "StoredWeight", "WeightReader"]

PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
EIGHT_BIT = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
INT8 = "I8"
_OF_BLOCKS = {NVFP4: NVFP4_BLOCK, MXFP8: MXFP8_BLOCK}
"""layouts whose scales lie in tiles, a byte each, and the values that share one"""
_VALUES_AT_ONCE = 1 << 24
"""values that are float32 at one time while a tensor is dequantised: 64 MiB"""


@dataclass(frozen=True)
class StoredWeight:
    """One weight, by where it lies."""

    file: Path
    key: str
    dtype: str
    """safetensors or GGUF name of what is stored, or the layout"""
    shape: tuple[int, ...]
    """of the weight it stands for"""
    scale_key: str = ""
    """the tensor it is multiplied by; empty when there is none"""
    scales: int = 0
    """values of that tensor, where it holds one per weight, row or block, as float32"""
    whole_scale_key: str = ""
    """of nvfp4: the value the scales are multiplied by; of codes in `INTEGERS`: the levels they stand for, if any"""
    code_scale_key: str = ""
    """of those codes: their scales"""
    gguf: bool = False
    files: Mapping[str, Path] = field(default_factory=dict[str, Path], repr=False, compare=False)
    """of a model in parts, where each tensor lies: what belongs to a weight may lie in another part"""

    def file_of(self, key: str) -> Path:
        """Returns the file that holds one of its tensors."""
        return self.files.get(key, self.file)

    @property
    def can_stay(self) -> bool:
        """Whether it can stay as stored in memory: float8 with or without a scale, int8, a layout of few bits, GGUF."""
        return self.layout != "" or (not self.gguf and self.dtype in (*EIGHT_BIT, INT8))

    @property
    def is_plain(self) -> bool:
        """Whether each value is a float of 16 bits or more."""
        return self.dtype in PLAIN

    @property
    def layout(self) -> str:
        """What `dequantise` must know beside the dtype: how values share bytes, scales or a rotation; or empty."""
        if self.dtype in _OF_BLOCKS or self.dtype in INTEGERS:
            return self.dtype
        known = self.gguf and self.dtype in BLOCKS and len(self.shape) == 2
        return self.dtype if known and self.shape[1] % BLOCKS[self.dtype].values == 0 else ""

    @property
    def product_dtype(self) -> torch.dtype | None:
        """The dtype that products with it can be computed in, where its scales are one per weight or row."""
        if self.gguf or not value_to_a_byte(self.layout):
            return None
        dtypes = {"F8_E4M3": torch.float8_e4m3fn, INT8: torch.int8}
        return torch.int8 if self.layout else dtypes.get(self.dtype)

    @property
    def stored_bytes(self) -> int:
        """The bytes of the weight as it can stay, with its scales."""
        values, layout = prod(self.shape), self.layout
        if layout in BLOCKS:
            return values // BLOCKS[layout].values * BLOCKS[layout].size_bytes
        if layout == NVFP4:
            return values // 2 + values // NVFP4_BLOCK + 4
        if layout == MXFP8:
            return values + values // MXFP8_BLOCK
        packed = self.shape[0] * INTEGERS[layout].row_bytes(self.shape[1]) if layout else values
        return packed + 4 * self.scales


class WeightReader:
    """Reads weights one at a time; files are opened once and mapped, so only what is asked for takes memory."""

    def __init__(self) -> None:
        self._safe: dict[Path, Any] = {}
        self._gguf: dict[Path, dict[str, GgufTensor]] = {}

    def __enter__(self) -> WeightReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._safe.clear()
        self._gguf.clear()

    def raw(self, source: StoredWeight) -> Tensor:
        """Returns what is stored, as it is stored (out, in).

        It is a copy: a CPU run would keep its weights in the page cache otherwise.
        """
        if source.gguf:
            return gguf_blocks(self._gguf_tensor(source)).view(source.shape[0], -1)
        if source.code_scale_key:
            parts = [self._mapped(source, key) for key in (source.key, source.code_scale_key)]
            return torch.cat([part.view(torch.uint8) for part in parts], dim=1)
        return self._mapped(source, source.key).clone()

    def scale(self, source: StoredWeight) -> Tensor | None:
        """Returns what `raw` is multiplied by: float32; of nvfp4 float8, of mxfp8 uint8 exponents, (out, blocks)."""
        if not source.scale_key:
            return None
        stored = self._mapped(source, source.scale_key)
        if source.dtype in _OF_BLOCKS:
            tiles = stored.view(torch.uint8) if source.dtype == MXFP8 else stored
            return block_scales_in_rows(tiles, source.shape[0], source.shape[1] // _OF_BLOCKS[source.dtype])
        return stored.to(torch.float32, copy=True)

    def whole_scale(self, source: StoredWeight) -> Tensor | None:
        """Returns the float32 value (), of nvfp4, that every scale is multiplied by; of codes their levels (16,)."""
        if not source.whole_scale_key:
            return None
        found = self._mapped(source, source.whole_scale_key).to(torch.float32, copy=True)
        return found.reshape(()) if source.dtype == NVFP4 else found

    def read(self, source: StoredWeight, dtype: torch.dtype) -> Tensor:
        """Returns the weight (out, in) in `dtype`, dequantised if it must be.

        Takes never more than one copy and 64 MiB at a time.
        """
        if source.gguf:
            return self._unpacked(source, dtype)
        stored = self.raw(source) if source.code_scale_key else self._mapped(source, source.key)
        if not source.scale_key:
            return stored.clone() if stored.dtype == dtype else stored.to(dtype)
        scale, whole_scale = self.scale(source), self.whole_scale(source)
        assert scale is not None
        return dequantise(stored, scale, dtype, whole_scale, layout=source.layout)

    def _unpacked(self, source: StoredWeight, dtype: torch.dtype) -> Tensor:
        whole = torch.empty(source.shape, dtype=dtype)
        flat, start = whole.view(-1), 0
        for values in gguf_values(source.file, source.key, self._gguf_tensor(source), _VALUES_AT_ONCE):
            flat[start : start + len(values)] = values
            start += len(values)
        return whole

    def _gguf_tensor(self, source: StoredWeight) -> GgufTensor:
        tensors = self._gguf.get(source.file)
        if tensors is None:
            tensors = self._gguf[source.file] = open_gguf(source.file)
        return tensors[source.key]

    def _mapped(self, source: StoredWeight, key: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        file = source.file_of(key)
        opened = self._safe.get(file)
        if opened is None:
            try:
                opened = self._safe[file] = safe_open(file, "pt")
            except SafetensorError as error:
                raise damaged(file.name) from error
        return opened.get_tensor(key)
