"""Finds each weight of a Wan file and reads it as it is stored: plain, 8- or 4-bit in ComfyUI's layouts, or GGUF."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from .dequantise import NVFP4, NVFP4_BLOCK, block_scales_in_rows, dequantise, scale_fits, tiled_shape
from .ggml import BLOCKS
from .gguf_file import GgufTensor, gguf_blocks, gguf_values, open_gguf
from .header import CheckpointHeader, damaged
from .keys import canonical_names

__all__ = [
    "StoredWeight",
    "WeightReader",
    "locate_weights",
]

_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EIGHT_BIT = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_WHOLE_SCALE = ".weight_scale_2"
_SCALES = (".scale_weight", ".weight_scale")
_BESIDE = (".scale_input", ".input_scale", ".comfy_quant", _WHOLE_SCALE, *_SCALES)
"""what files hold beside a quantized weight; input scales serve 8-bit matmuls, which training does not use"""
_VALUES_AT_ONCE = 1 << 24
"""values that are float32 at one time while a tensor is dequantised: 64 MiB"""
_MOST_FORMAT_BYTES = 4096
"""of one `comfy_quant` tensor: a line of JSON"""


@dataclass(frozen=True)
class StoredWeight:
    """One weight, by where it lies."""

    file: Path
    key: str
    dtype: str
    """safetensors or GGUF name of what is stored, or NVFP4"""
    shape: tuple[int, ...]
    """of the weight it stands for"""
    scale_key: str = ""
    """the tensor it is multiplied by; empty when there is none"""
    whole_scale_key: str = ""
    """of nvfp4: the value the scales are multiplied by"""
    gguf: bool = False

    @property
    def can_stay(self) -> bool:
        """Whether it can stay as stored in memory: a float8 tensor, with or without a scale, nvfp4, or GGUF blocks."""
        return self.dtype in _EIGHT_BIT or self.layout != ""

    @property
    def is_plain(self) -> bool:
        """Whether each value is a float of 16 bits or more."""
        return self.dtype in _PLAIN

    @property
    def layout(self) -> str:
        """How several values share bytes, by the name `dequantise` knows it by; empty where each has its own."""
        if self.dtype == NVFP4:
            return NVFP4
        known = self.gguf and self.dtype in BLOCKS and len(self.shape) == 2
        return self.dtype if known and self.shape[1] % BLOCKS[self.dtype].values == 0 else ""

    @property
    def stored_bytes(self) -> int:
        """The bytes of the weight itself as it can stay, without a float8 file's scales, which are few."""
        values, layout = prod(self.shape), self.layout
        if layout in BLOCKS:
            return values // BLOCKS[layout].values * BLOCKS[layout].size_bytes
        return values // 2 + values // NVFP4_BLOCK + 4 if layout else values


@dataclass(frozen=True)
class StoredWeights:
    """All weights of a file by original Wan name."""

    weights: Mapping[str, StoredWeight]
    quantization: str
    """none, fp8, scaled_fp8, _quantization_metadata, comfy_quant, gguf: how linears are stored that can stay so"""


def locate_weights(header: CheckpointHeader) -> StoredWeights:
    """Find weights and their scales. CheckpointError for a quantization nobody here can undo, by its name."""
    names = {name: key for key, name in canonical_names(header.tensors).items()}
    gguf = header.container == "gguf"
    weights: dict[str, StoredWeight] = {}
    for name, key in names.items():
        if name.endswith(_BESIDE) or name == "scaled_fp8":
            continue
        info = header.tensors[key]
        weights[name] = StoredWeight(header.file_of(key), key, info.dtype, info.shape, gguf=gguf)
    _find_nvfp4(header, names, weights)
    _refuse_unknown(header, names, weights)
    for name, key in names.items():
        suffix = next((s for s in _SCALES if name.endswith(s)), "")
        if suffix:
            _add_scale(header, weights, f"{name.removesuffix(suffix)}.weight", key)
    if bare := next((weight for weight in weights.values() if weight.dtype == NVFP4 and not weight.scale_key), None):
        raise _misfit(header, bare.whole_scale_key)
    return StoredWeights(weights, _quantization(header, names, weights))


def _find_nvfp4(header: CheckpointHeader, names: Mapping[str, str], weights: dict[str, StoredWeight]) -> None:
    """Mark packed weights as such: bytes with a scale for all of them beside."""
    for name, key in names.items():
        weight = weights.get(name.removesuffix(_WHOLE_SCALE) + ".weight")
        if name.endswith(_WHOLE_SCALE) and weight is not None and weight.dtype == "U8" and len(weight.shape) == 2:
            if header.tensors[key].dtype != "F32" or prod(header.tensors[key].shape) != 1:
                raise _misfit(header, key)
            shape = (weight.shape[0], 2 * weight.shape[1])
            weights[name.removesuffix("_scale_2")] = replace(weight, dtype=NVFP4, shape=shape, whole_scale_key=key)


def _add_scale(header: CheckpointHeader, weights: dict[str, StoredWeight], name: str, key: str) -> None:
    scale, weight = header.tensors[key], weights.get(name)
    if weight is None:
        fits = False
    elif weight.dtype == NVFP4:
        tiled = tiled_shape(weight.shape[0], weight.shape[1] // NVFP4_BLOCK)
        fits = scale.dtype == "F8_E4M3" and scale.shape == tiled and weight.shape[1] % NVFP4_BLOCK == 0
    else:
        fits = scale.dtype in _PLAIN and scale_fits(weight.shape, scale.shape)
    if weight is None or not fits:
        raise _misfit(header, key)
    weights[name] = replace(weight, scale_key=key)


def _misfit(header: CheckpointHeader, key: str) -> CheckpointError:
    scale = header.tensors[key]
    return CheckpointError(
        f"{header.path.name}: {key[:100]} ({scale.dtype} {list(scale.shape)}) fits no weight. "
        "Choose a file in one of ComfyUI's layouts, or a bf16 or fp16 one."
    )


def _refuse_unknown(header: CheckpointHeader, names: Mapping[str, str], weights: Mapping[str, StoredWeight]) -> None:
    for module, said in _said_formats(header, names).items():
        packed = f"{module}.weight" in weights and weights[f"{module}.weight"].dtype == NVFP4
        if said not in _EIGHT_BIT.values() and not (said == "nvfp4" and packed):
            raise CheckpointError(
                f"{header.path.name} stores {module[:80]} as {said}; training on that is not supported. "
                "Choose an fp8, bf16 or fp16 file, or a GGUF."
            )
    for name, weight in weights.items():
        if (
            not weight.gguf
            and weight.dtype not in (*_PLAIN, *_EIGHT_BIT, NVFP4)
            and name.endswith((".weight", ".bias"))
        ):
            raise CheckpointError(
                f"{header.path.name} stores {name[:80]} as {weight.dtype}, which cannot be trained on. "
                "Choose an fp8, bf16 or fp16 file, or a GGUF."
            )


def _said_formats(header: CheckpointHeader, names: Mapping[str, str]) -> dict[str, str]:
    """Module -> format, as metadata and `comfy_quant` tensors state it; both are JSON."""
    try:
        stated: dict[str, Any] = json.loads(header.metadata.get("_quantization_metadata", "{}")).get("layers", {})
        with WeightReader() as reader:
            for name, key in names.items():
                if name.endswith(".comfy_quant"):
                    if prod(header.tensors[key].shape) > _MOST_FORMAT_BYTES:
                        raise ValueError("longer than any format")
                    told = reader.raw(StoredWeight(header.file_of(key), key, "U8", header.tensors[key].shape))
                    stated[name.removesuffix(".comfy_quant")] = json.loads(bytes(told.flatten().tolist()))
        return {str(module): str(config["format"]) for module, config in stated.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{header.path.name} says in no readable way how it is quantized. Download it again."
        ) from error


def _quantization(header: CheckpointHeader, names: Iterable[str], weights: Mapping[str, StoredWeight]) -> str:
    if header.container == "gguf":
        return "gguf" if any(weight.layout for weight in weights.values()) else "none"
    if any(name.endswith(".comfy_quant") for name in names):
        return "comfy_quant"
    if "_quantization_metadata" in header.metadata:
        return "_quantization_metadata"
    if any(weight.scale_key for weight in weights.values()):
        return "scaled_fp8"
    return "fp8" if any(w.can_stay and len(w.shape) == 2 for w in weights.values()) else "none"


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
        return self._mapped(source.file, source.key).clone()

    def scale(self, source: StoredWeight) -> Tensor | None:
        """Returns what `raw` is multiplied by: float32; of nvfp4, float8 (out, blocks)."""
        if not source.scale_key:
            return None
        stored = self._mapped(source.file, source.scale_key)
        if source.dtype == NVFP4:
            return block_scales_in_rows(stored, source.shape[0], source.shape[1] // NVFP4_BLOCK)
        return stored.to(torch.float32, copy=True)

    def whole_scale(self, source: StoredWeight) -> Tensor | None:
        """Returns, of nvfp4, the float32 value (), that every scale is multiplied by."""
        if not source.whole_scale_key:
            return None
        return self._mapped(source.file, source.whole_scale_key).to(torch.float32, copy=True).reshape(())

    def read(self, source: StoredWeight, dtype: torch.dtype) -> Tensor:
        """Returns the weight (out, in) in `dtype`, dequantised if it must be.

        Takes never more than one copy and 64 MiB at a time.
        """
        if source.gguf:
            return self._unpacked(source, dtype)
        stored = self._mapped(source.file, source.key)
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

    def _mapped(self, file: Path, key: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        opened = self._safe.get(file)
        if opened is None:
            try:
                opened = self._safe[file] = safe_open(file, "pt")
            except SafetensorError as error:
                raise damaged(file.name) from error
        return opened.get_tensor(key)
