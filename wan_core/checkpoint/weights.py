"""Reads the weights of a Wan file (float, 8 or 4 bits, or GGUF), and detects NaN and infinity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from .dequantise import MXFP8, MXFP8_BLOCK, NVFP4, NVFP4_BLOCK, block_scales_in_rows, dequantise
from .drawn import draw
from .ggml import BLOCKS
from .gguf_file import GgufFile
from .header import DRAWN
from .integers import INTEGERS, value_to_a_byte
from .tensor_file import TensorFile

PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
EIGHT_BIT = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
INT8 = "I8"
_OF_BLOCKS = {NVFP4: NVFP4_BLOCK, MXFP8: MXFP8_BLOCK}
"""layouts with tiled block scales -> values per scale"""
_VALUES_AT_ONCE = 1 << 20
"""float32 values per piece while GGUF is dequantized: 4 MiB"""
_FLOAT8_TOP = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7C}


@dataclass(frozen=True)
class StoredWeight:
    """One weight and its place."""

    file: Path
    key: str
    dtype: str
    """safetensors or GGUF dtype name, or the layout"""
    shape: tuple[int, ...]
    """shape of the dequantized weight"""
    scale_key: str = ""
    """name of the tensor of scales; "" without scales"""
    scales: int = 0
    """number of float32 scales; 0 for nvfp4 and mxfp8"""
    whole_scale_key: str = ""
    """name of the tensor with the factor of all scales (nvfp4) or the levels of codes; "" for other layouts"""
    code_scale_key: str = ""
    """name of the tensor with the scales of codes; "" for other layouts"""
    gguf: bool = False
    files: Mapping[str, Path] = field(default_factory=dict[str, Path], repr=False, compare=False)
    """tensor -> file, for sharded models, whose scales may be in another shard"""

    def file_of(self, key: str) -> Path:
        return self.files.get(key, self.file)

    @property
    def can_stay(self) -> bool:
        """Whether the weight can stay quantized in memory: float8, int8, a layout, or GGUF blocks."""
        return self.layout != "" or (not self.gguf and self.dtype in (*EIGHT_BIT, INT8))

    @property
    def is_plain(self) -> bool:
        """Whether values are floats of at least 16 bits."""
        return self.dtype in PLAIN

    @property
    def layout(self) -> str:
        """The argument `layout` of `dequantise`; "" for unrotated weights of one value per element."""
        if self.dtype in _OF_BLOCKS or self.dtype in INTEGERS:
            return self.dtype
        known = self.gguf and self.dtype in BLOCKS and len(self.shape) == 2
        return self.dtype if known and self.shape[1] % BLOCKS[self.dtype].values == 0 else ""

    @property
    def has_float8(self) -> bool:
        """Whether the stored values or scales are float8."""
        coded = self.layout in INTEGERS and INTEGERS[self.layout].coded
        return coded or self.layout in _OF_BLOCKS or (not self.gguf and self.dtype in EIGHT_BIT)

    @property
    def product_dtype(self) -> torch.dtype | None:
        """The dtype of 8-bit products with this weight; None if the weight is not stored in 8 bits."""
        if self.gguf or not value_to_a_byte(self.layout):
            return None
        dtypes = {"F8_E4M3": torch.float8_e4m3fn, INT8: torch.int8}
        return torch.int8 if self.layout else dtypes.get(self.dtype)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored weight with its scales."""
        values, layout = prod(self.shape), self.layout
        if layout in BLOCKS:
            return values // BLOCKS[layout].values * BLOCKS[layout].size_bytes
        if layout == NVFP4:
            return values // 2 + values // NVFP4_BLOCK + 4
        if layout == MXFP8:
            return values + values // MXFP8_BLOCK
        packed = self.shape[0] * INTEGERS[layout].row_bytes(self.shape[1]) if layout else values
        return packed + 4 * self.scales

    def without_values(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns `raw`, `scale` and `whole_scale` of `WeightReader` on the meta device, for a weight that can stay."""
        (rows, columns), layout = self.shape, self.layout
        empty = partial(torch.empty, device="meta")
        if layout in BLOCKS:
            items = columns // BLOCKS[layout].values * BLOCKS[layout].size_bytes
            return empty(rows, items, dtype=torch.uint8), None, None
        if layout == NVFP4:
            scale = empty(rows, columns // NVFP4_BLOCK, dtype=torch.float8_e4m3fn)
            return empty(rows, columns // 2, dtype=torch.uint8), scale, empty(())
        if layout == MXFP8:
            scale = empty(rows, columns // MXFP8_BLOCK, dtype=torch.uint8)
            return empty(rows, columns, dtype=torch.float8_e4m3fn), scale, None
        if layout:
            coded = INTEGERS[layout].coded
            levels = empty(16) if coded and self.whole_scale_key else None
            dtype = torch.uint8 if coded else torch.int8
            return empty(rows, INTEGERS[layout].row_bytes(columns), dtype=dtype), empty(rows), levels
        dtype = getattr(torch, EIGHT_BIT[self.dtype]) if self.dtype in EIGHT_BIT else torch.int8
        groups = self.scales // rows
        shape = (rows, groups) if groups > 1 else (rows,) if groups else ()
        return empty(rows, columns, dtype=dtype), empty(shape) if self.scales else None, None


class WeightReader:
    """Reads weights one at a time. A context manager that keeps files open; not thread-safe."""

    def __init__(self) -> None:
        self._safe: dict[Path, TensorFile] = {}
        self._gguf: dict[Path, GgufFile] = {}

    def __enter__(self) -> WeightReader:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self._safe.values(), *self._gguf.values()):
            file.data.close()
        self._safe.clear()
        self._gguf.clear()

    def raw(self, source: StoredWeight) -> Tensor:
        """Returns the stored elements (out, items)."""
        if source.gguf:
            return self._gguf_file(source.file).blocks(source.key).view(source.shape[0], -1)
        if source.code_scale_key:
            parts = [self._stored(source, key) for key in (source.key, source.code_scale_key)]
            return torch.cat([part.view(torch.uint8) for part in parts], dim=1)
        return self._stored(source, source.key)

    def scale(self, source: StoredWeight) -> Tensor | None:
        """Returns the scales of `raw`: float32; for nvfp4 float8, for mxfp8 uint8 exponents, (out, blocks)."""
        if not source.scale_key:
            return None
        stored = self._stored(source, source.scale_key)
        if source.dtype in _OF_BLOCKS:
            tiles = stored.view(torch.uint8) if source.dtype == MXFP8 else stored
            return block_scales_in_rows(tiles, source.shape[0], source.shape[1] // _OF_BLOCKS[source.dtype])
        return stored.to(torch.float32)

    def whole_scale(self, source: StoredWeight) -> Tensor | None:
        """Returns the factor () of nvfp4's scales, or the levels (16,) of codes, in float32."""
        if not source.whole_scale_key:
            return None
        found = self._stored(source, source.whole_scale_key).to(torch.float32)
        return found.reshape(()) if source.dtype == NVFP4 else found

    def load(self, source: StoredWeight, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns the weight (out, in) in `dtype` on `device`; draws it for a DRAWN file."""
        if source.file.suffix == DRAWN:
            return draw(source.key, source.shape, dtype, device)
        return self.read(source, dtype).to(device)

    def read(self, source: StoredWeight, dtype: torch.dtype) -> Tensor:
        """Returns the dequantized weight (out, in) in `dtype`, in host memory.

        Peak memory: the result, the stored elements of a quantized weight, and a few MiB.
        """
        if source.gguf:
            return self._unpacked(source, dtype)
        if not source.scale_key:
            return self._file(source.file_of(source.key)).read_as(source.key, dtype).view(source.shape)
        scale, whole_scale = self.scale(source), self.whole_scale(source)
        assert scale is not None
        return dequantise(self.raw(source), scale, dtype, whole_scale, layout=source.layout).view(source.shape)

    def _unpacked(self, source: StoredWeight, dtype: torch.dtype) -> Tensor:
        whole = torch.empty(source.shape, dtype=dtype)
        flat, start = whole.view(-1), 0
        for values in self._gguf_file(source.file).values(source.key, _VALUES_AT_ONCE):
            flat[start : start + len(values)] = values
            start += len(values)
        return whole

    def _gguf_file(self, file: Path) -> GgufFile:
        if file not in self._gguf:
            self._gguf[file] = GgufFile(file)
        return self._gguf[file]

    def _file(self, file: Path) -> TensorFile:
        if file not in self._safe:
            self._safe[file] = TensorFile(file)
        return self._safe[file]

    def _stored(self, source: StoredWeight, key: str) -> Tensor:
        return self._file(source.file_of(key)).read(key)


class FiniteCheck:
    """Detects NaN and infinity in weights while they load: one pass, no copy, one synchronisation per block."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, Tensor]] = []

    def see(self, name: str, value: Tensor) -> None:
        if value.numel() and value.is_floating_point():
            self._seen.append((name, _finite(value)))

    def first_bad(self) -> str:
        """Returns the first name with non-finite values, or ""; clears the record."""
        seen, self._seen = self._seen, []
        for device in {mark.device for _, mark in seen}:
            if not bool(torch.stack([mark for _, mark in seen if mark.device == device]).all()):
                return next(name for name, mark in seen if not bool(mark))
        return ""


def count_bad(value: Tensor) -> int:
    """Returns the number of non-finite values."""
    top = _top(value)
    if top is not None:
        return int(((value.view(torch.uint8) & 0x7F) >= top).sum())
    return int((~torch.isfinite(value)).sum())


def _finite(value: Tensor) -> Tensor:
    top = _top(value)
    if top is None:
        # aminmax propagates NaN and shows infinity at 15 GiB/s on one core; isfinite of every value reads 0.2.
        low, high = torch.aminmax(value)
        return torch.isfinite(low) & torch.isfinite(high)
    # Bytes of float8 without their sign bit: values from 0x7F (e4m3fn) or 0x7C (e5m2) on are non-finite.
    return (value.view(torch.int8).amax() < top) & (value.view(torch.uint8).amax() < top + 0x80)


def _top(value: Tensor) -> int | None:
    return _FLOAT8_TOP.get(str(value.dtype).removeprefix("torch."))
