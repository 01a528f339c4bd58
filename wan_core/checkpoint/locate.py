"""Finds the weights of a Wan file with their scales and storage formats; refusals name an unsupported quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from ..errors import CheckpointError
from .dequantise import MXFP8, MXFP8_BLOCK, NVFP4, NVFP4_BLOCK, scale_fits, tiled_shape
from .foreign_files import not_undone, refuse_quantizers
from .header import CheckpointHeader
from .integers import GROUPS, INTEGERS, SCALED_TOGETHER, integer_layout
from .keys import canonical_names
from .stated import CODES, FORMAT_SUFFIX, METADATA, StatedFormat, stated_formats
from .weights import EIGHT_BIT, INT8, PLAIN, StoredWeight

_WHOLE_SCALE = ".weight_scale_2"
_SCALES = (".scale_weight", ".weight_scale")
_OF_CODES = {"scales": ".weight_s_rel", "row": ".weight_s_channel", "levels": ".weight_codebook"}
_COMPANIONS = (".scale_input", ".input_scale", FORMAT_SUFFIX, _WHOLE_SCALE, *_SCALES, *_OF_CODES.values())
"""suffixes of the tensors next to a quantized weight; input scales, for 8-bit activations, are ignored"""
_EXPONENTS = "F8_E8M0"
_SCALED = (NVFP4, MXFP8, INT8, *INTEGERS)
"""layouts that need a scale"""
Weights = dict[str, StoredWeight]


@dataclass(frozen=True)
class StoredWeights:
    """All weights of a file by original Wan name."""

    weights: Mapping[str, StoredWeight]
    quantization: str
    """storage of the quantized weights: none, fp8, scaled_fp8, int8, _quantization_metadata, comfy_quant, gguf"""


def locate_weights(header: CheckpointHeader) -> StoredWeights:
    """Returns all weights with their scales; CheckpointError names an unsupported quantization."""
    names = {name: key for key, name in canonical_names(header.tensors).items()}
    refuse_quantizers(header.path.name, names)
    gguf = header.container == "gguf"
    weights: Weights = {}
    for name, key in names.items():
        if name.endswith(_COMPANIONS) or name == "scaled_fp8":
            continue
        info = header.tensors[key]
        weights[name] = StoredWeight(header.file_of(key), key, info.dtype, info.shape, gguf=gguf, files=header.files)
    _find_nvfp4(header, names, weights)
    for layer, said in stated_formats(header, names).items():
        _take_as_said(header, names, weights, layer, said)
    _refuse_unknown(header, weights)
    for name, key in names.items():
        suffix = next((s for s in _SCALES if name.endswith(s)), "")
        if suffix:
            _add_scale(header, weights, f"{name.removesuffix(suffix)}.weight", key)
    for name, weight in weights.items():
        # A tensor whose name has no dot is a marker of some program, not a weight.
        if weight.dtype in _SCALED and "." in name and not weight.gguf and not weight.scale_key:
            raise _bare(header, weight.key, weight.dtype)
    return StoredWeights(weights, _quantization(header, names, weights))


def _find_nvfp4(header: CheckpointHeader, names: Mapping[str, str], weights: Weights) -> None:
    """Sets the dtype of bytes with a scale per tensor to NVFP4."""
    for name, key in names.items():
        weight = weights.get(name.removesuffix(_WHOLE_SCALE) + ".weight")
        if name.endswith(_WHOLE_SCALE) and weight is not None and weight.dtype == "U8" and len(weight.shape) == 2:
            if header.tensors[key].dtype != "F32" or prod(header.tensors[key].shape) != 1:
                raise _misfit(header, key)
            shape = (weight.shape[0], 2 * weight.shape[1])
            weights[name.removesuffix("_scale_2")] = replace(weight, dtype=NVFP4, shape=shape, whole_scale_key=key)


def _take_as_said(
    header: CheckpointHeader, names: Mapping[str, str], weights: Weights, layer: str, said: StatedFormat
) -> None:
    """Sets the dtype of a weight to the layout that its file states; CheckpointError if they do not agree."""
    name = f"{layer}.weight"
    weight = weights.get(name)
    if said.name in EIGHT_BIT.values():
        return
    if weight is not None and len(weight.shape) == 2:
        rows, columns = weight.shape
        if said.name == "nvfp4" and weight.dtype == NVFP4:
            return
        if said.name == "mxfp8" and weight.dtype == "F8_E4M3":
            weights[name] = replace(weight, dtype=MXFP8)
            return
        if said.name == "int8_tensorwise" and weight.dtype == INT8:
            if said.rotated is not None:
                weights[name] = _rotated(header, weight, 8, said.rotated)
            return
        if said.name == "convrot_w4a4" and weight.dtype == INT8 and said.rotated is not None:
            weights[name] = _rotated(header, replace(weight, shape=(rows, 2 * columns)), 4, said.rotated)
            return
        if said.name == CODES and weight.dtype == INT8 and said.together == SCALED_TOGETHER:
            weights[name] = _coded(header, names, weight, layer, said)
            return
    raise not_undone(header.path.name, layer, said.name[:80])


def _coded(
    header: CheckpointHeader, names: Mapping[str, str], weight: StoredWeight, layer: str, said: StatedFormat
) -> StoredWeight:
    """Returns a weight of codes with its code scales, row scales and 4-bit levels."""
    keys = {part: names.get(f"{layer}{suffix}", "") for part, suffix in _OF_CODES.items()}
    if not keys["scales"] or not keys["row"]:
        raise _bare(header, weight.key, said.name)
    info = {part: header.tensors[key] for part, key in keys.items() if key}
    rows, columns = weight.shape
    width = info["scales"].shape[-1] * SCALED_TOGETHER if info["scales"].shape else 0
    bits = next((bits for bits in (4, 6) if width and columns * 8 == width * bits), 0)
    fits = {
        "scales": bits > 0 and info["scales"].shape[:-1] == (rows,) and info["scales"].dtype in ("F8_E4M3", "U8"),
        "row": info["row"].shape == (rows,) and info["row"].dtype in PLAIN,
        "levels": "levels" not in info
        or (bits == 4 and info["levels"].shape == (16,) and info["levels"].dtype in PLAIN),
    }
    if wrong := next((part for part, fit in fits.items() if not fit), ""):
        raise _misfit(header, keys[wrong])
    assert said.rotated is not None
    found = _rotated(header, replace(weight, shape=(rows, width)), bits, said.rotated, coded=True)
    beside = {"scale_key": keys["row"], "code_scale_key": keys["scales"], "whole_scale_key": keys["levels"]}
    return replace(found, **beside, scales=rows + 16 * ("levels" in info))


def _rotated(
    header: CheckpointHeader, weight: StoredWeight, bits: int, group: int, *, coded: bool = False
) -> StoredWeight:
    """Returns the weight with a rotated layout; CheckpointError unless its rows are complete groups."""
    if group not in GROUPS or weight.shape[1] % group:
        raise CheckpointError(
            f"{header.path.name}: rows of {weight.key[:80]} are stated to be rotated in groups of {group}. Groups have "
            f"4, 16, 64, 256 or 1024 values and fill a row, here of {weight.shape[1]}. Download it again, or choose an "
            "fp8, bf16 or fp16 file."
        )
    return replace(weight, dtype=integer_layout(bits, group, coded=coded))


def _refuse_unknown(header: CheckpointHeader, weights: Weights) -> None:
    known = (*PLAIN, *EIGHT_BIT, *_SCALED)
    for name, weight in weights.items():
        if not weight.gguf and weight.dtype not in known and name.endswith((".weight", ".bias")):
            raise CheckpointError(
                "{name} stores {weight} as {dtype}, which cannot be trained. Choose an fp8, int8, bf16 or fp16 file, "
                "or a GGUF.",
                name=header.path.name,
                weight=name[:80],
                dtype=weight.dtype,
            )


def _add_scale(header: CheckpointHeader, weights: Weights, name: str, key: str) -> None:
    scale, weight = header.tensors[key], weights.get(name)
    if weight is None or not _belongs(scale.dtype, scale.shape, weight):
        raise _misfit(header, key)
    if scale.dtype == _EXPONENTS and not hasattr(torch, "float8_e8m0fnu"):
        raise CheckpointError(
            f"{header.path.name} is an mxfp8 file, which takes torch 2.7 or newer; this is torch {torch.__version__}. "
            "Update torch, or choose an fp8, bf16 or fp16 file."
        )
    counted = 0 if weight.dtype in (NVFP4, MXFP8) else prod(scale.shape)
    weights[name] = replace(weight, scale_key=key, scales=counted)


def _belongs(dtype: str, shape: tuple[int, ...], weight: StoredWeight) -> bool:
    """Returns whether a scale of that dtype and shape belongs to `weight`."""
    if weight.dtype == NVFP4:
        return dtype == "F8_E4M3" and _fills_tiles(shape, weight, NVFP4_BLOCK)
    if weight.dtype == MXFP8:
        return dtype in (_EXPONENTS, "U8") and _fills_tiles(shape, weight, MXFP8_BLOCK)
    if weight.code_scale_key:
        return False  # all scales of the weight are already found
    if weight.dtype in INTEGERS and prod(shape) not in (1, weight.shape[0]):
        return False  # a rotation mixes the values of a row, so blocks of a row cannot have different scales
    return dtype in PLAIN and scale_fits(weight.shape, shape)


def _fills_tiles(shape: tuple[int, ...], weight: StoredWeight, block: int) -> bool:
    rows, columns = weight.shape
    return columns % block == 0 and shape == tiled_shape(rows, columns // block)


def _misfit(header: CheckpointHeader, key: str) -> CheckpointError:
    scale = header.tensors[key]
    return CheckpointError(
        f"{header.path.name}: {key[:100]} ({scale.dtype} {list(scale.shape)}) fits no weight. "
        "Choose a file in one of ComfyUI's layouts, or a bf16 or fp16 one."
    )


def _bare(header: CheckpointHeader, key: str, dtype: str) -> CheckpointError:
    return CheckpointError(
        f"{header.path.name} stores {key[:80]} as {dtype} without the scale that belongs to it. "
        "Download it again, or choose another file."
    )


def _quantization(header: CheckpointHeader, names: Mapping[str, str], weights: Weights) -> str:
    if header.container == "gguf":
        return "gguf" if any(weight.layout for weight in weights.values()) else "none"
    if any(name.endswith(FORMAT_SUFFIX) for name in names):
        return "comfy_quant"
    if METADATA in header.metadata:
        return METADATA
    if any(weight.scale_key for weight in weights.values()):
        return "int8" if any(weight.dtype == INT8 for weight in weights.values()) else "scaled_fp8"
    return "fp8" if any(w.can_stay and len(w.shape) == 2 for w in weights.values()) else "none"
