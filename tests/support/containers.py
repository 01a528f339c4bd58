"""One tiny Wan model written in every container and quantization that people have; and what each must load to."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.headers import to_diffusers
from tests.support.tiny_run import random_weights
from wan_core.files import Roots
from wan_core.load import ModelPlan, materialize
from wan_core.model import WanShape, WanTransformer

SHAPE = WanShape(dim=256, ffn_dim=512, num_heads=2, num_layers=2)
"""rows are whole blocks of the K-quants (256 values)"""
Weights = dict[str, Tensor]


def weights(shape: WanShape = SHAPE) -> Weights:
    return random_weights(shape, seed=3)


def block_linears(whole: Weights) -> list[str]:
    """The weights every quantizer takes: the linears of the blocks."""
    return [name for name in whole if name.startswith("blocks.") and name.endswith(".weight") and whole[name].ndim == 2]


WHOLE = weights()
LINEARS = block_linears(WHOLE)


def roots(folder: Path) -> Roots:
    return Roots({"diffusion_models": (str(folder),)})


def load(path: Path, base_precision: str = "as in file") -> WanTransformer:
    plan = ModelPlan(base_file=f"diffusion_models:{path.name}", base_precision=base_precision)
    return materialize(plan, roots(path.parent), None)


def assert_loaded(model: WanTransformer, expected: Weights, dtype: torch.dtype) -> None:
    """Linears equal the expected values rounded once to `dtype`; nothing of the model is left empty."""
    parameters = dict(model.named_parameters())
    for name, value in expected.items():
        found = parameters[name].data
        assert found.device.type == "cpu"
        assert torch.equal(found, value.to(found.dtype)), name
        if name in LINEARS:
            assert found.dtype == dtype


def cast(whole: Weights, dtype: torch.dtype) -> Weights:
    return {name: value.to(dtype) for name, value in whole.items()}


def write_folder(folder: Path, whole: Weights, *, shards: int = 1, diffusers: bool = True) -> Path:
    """As diffusers writes a transformer: its names, config.json, an index where there is more than one file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    named = {to_diffusers(name) if diffusers else name: value for name, value in whole.items()}
    base = "diffusion_pytorch_model"
    if shards == 1:
        save_file(named, folder / f"{base}.safetensors")
        return folder
    places = {}
    for number in range(shards):
        name = f"{base}-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(named.items())[number::shards])
        save_file(part, folder / name)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": sum(v.nbytes for v in named.values())}, "weight_map": places}
    (folder / f"{base}.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


# ---- 8 bits -------------------------------------------------------------------------------------


def quantized(whole: Weights, dtype: torch.dtype, shape: Callable[[Tensor], Tensor]) -> tuple[Weights, Weights]:
    """(file tensors with 8-bit linears, scale of each): scales as `shape` reduces |w|, over the largest float8."""
    stored, scales = cast(whole, torch.bfloat16), {}
    for name in block_linears(whole):
        scale = (shape(whole[name].abs()) / torch.finfo(dtype).max).float()
        per_value = scale.reshape(-1, 1) if scale.ndim else scale
        stored[name] = (whole[name] / per_value).to(dtype)
        scales[name] = scale
    return stored, scales


def write_scaled_fp8(path: Path, whole: Weights, dtype: torch.dtype = torch.float8_e4m3fn, prefix: str = "") -> Path:
    """ComfyUI's older layout."""
    stored, scales = quantized(whole, dtype, lambda w: w.amax())
    for name, scale in scales.items():
        stored[name.replace(".weight", ".scale_weight")] = scale
        stored[name.replace(".weight", ".scale_input")] = torch.tensor(1.0)
    stored["scaled_fp8"] = torch.empty(2, dtype=dtype)
    save_file({prefix + name: value for name, value in stored.items()}, path)
    return path


def write_metadata_fp8(path: Path, whole: Weights) -> Path:
    """`_quantization_metadata` of ComfyUI 0.3.75."""
    stored, scales = quantized(whole, torch.float8_e4m3fn, lambda w: w.amax())
    layers = {}
    for name, scale in scales.items():
        stored[name.replace(".weight", ".weight_scale")] = scale
        layers[name.removesuffix(".weight")] = {"format": "float8_e4m3fn"}
    save_file(stored, path, {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})})
    return path


def write_comfy_quant(path: Path, whole: Weights, fmt: str = "float8_e5m2") -> Path:
    """One JSON tensor per linear, as newer ComfyUI writes it."""
    dtype = torch.float8_e5m2 if fmt == "float8_e5m2" else torch.float8_e4m3fn
    stored, scales = quantized(whole, dtype, lambda w: w.amax())
    said = torch.tensor(list(json.dumps({"format": fmt, "full_precision_matrix_mult": False}).encode()))
    for name, scale in scales.items():
        stored[name.replace(".weight", ".weight_scale")] = scale
        stored[name.replace(".weight", ".comfy_quant")] = said.to(torch.uint8)
    save_file(stored, path)
    return path


def write_nvfp4(path: Path, whole: Weights) -> dict[str, Any]:
    """4 bits as ComfyUI's own kernel library stores them; returns its own float32 values of the linears by name."""
    from comfy_kitchen.backends.eager.quantization import dequantize_nvfp4, quantize_nvfp4

    stored, expected = cast(whole, torch.bfloat16), {}
    said = torch.tensor(list(json.dumps({"format": "nvfp4"}).encode()), dtype=torch.uint8)
    for name in block_linears(whole):
        per_tensor = whole[name].abs().amax() / (448 * 6)
        packed, scales = quantize_nvfp4(whole[name], per_tensor)
        expected[name] = dequantize_nvfp4(packed, per_tensor, scales, torch.float32)
        assert expected[name].shape == whole[name].shape
        stored |= {
            name: packed,
            f"{name}_scale": scales,
            f"{name}_scale_2": per_tensor.clone(),
            name.replace(".weight", ".comfy_quant"): said.clone(),
        }
    save_file(stored, path)
    return expected


def write_mxfp8(path: Path, whole: Weights, *, as_bytes: bool = False) -> dict[str, Any]:
    """8 bits with a power of two for each 32, as ComfyUI's kernel library stores them; returns its own float32 values.

    `as_bytes`: scales as uint8, which older programs wrote and ComfyUI reads too.
    """
    dequantize, quantize = kitchen("dequantize_mxfp8", "quantize_mxfp8")
    stored, expected = cast(whole, torch.bfloat16), {}
    for name in block_linears(whole):
        values, scales = quantize(whole[name])
        expected[name] = dequantize(values, scales, torch.float32)
        stored |= {name: values, f"{name}_scale": scales.view(torch.uint8) if as_bytes else scales}
        stored[_format_of(name)] = said({"format": "mxfp8"})
    save_file(stored, path)
    return expected


def write_int8(path: Path, whole: Weights, *, rows: bool = True, group: int = 0, bits: int = 8) -> dict[str, Any]:
    """Integers as ComfyUI's kernel library makes them: a scale in all or per row, rotated in groups, in 4 bits.

    Returns its own float32 values of the linears by name.
    """
    stored, expected = cast(whole, torch.bfloat16), {}
    for name in block_linears(whole):
        values, scale, expected[name] = integers(whole[name], rows=rows, group=group, bits=bits)
        stored |= {name: values, f"{name}_scale": scale, _format_of(name): said(integer_format(group, bits))}
    save_file(stored, path)
    return expected


def write_codes(path: Path, whole: Weights, *, bits: int = 4, levels: bool = True, group: int = 256) -> dict[str, Any]:
    """asym_w4a8_int8 as ComfyUI's kernel library makes it, with a table of levels or without; its float32 values."""
    stored, expected = cast(whole, torch.bfloat16), {}
    words = {"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": group}
    for name in block_linears(whole):
        codes, scales, rows, table, expected[name] = _codes(whole[name], bits, levels, group)
        assert (table is not None) == (levels and bits == 4)
        stored |= {name: codes, f"{name}_s_rel": scales, f"{name}_s_channel": rows, _format_of(name): said(words)}
        if table is not None:
            stored[f"{name}_codebook"] = table.clone()
    save_file(stored, path)
    return expected


@lru_cache
def _codes(weight: Tensor, bits: int, levels: bool, group: int) -> tuple[Any, ...]:
    """(codes, scales, scales of rows, table or None, float32 values) of one weight. Kept: the library searches for a
    quarter of a second for those of one model."""
    pack, unpack = kitchen("quantize_w4a8_int8_weight", "dequantize_w4a8_int8_weight", of="w4a8_int8")
    codes, scales, rows, correction, table = pack(weight, 16, group, bits=bits, codebook=levels)
    assert correction is None
    return codes, scales, rows, table, unpack(codes, scales, rows, table, None, 16, group, torch.float32)


def integers(weight: Tensor, *, rows: bool = True, group: int = 0, bits: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """(values, scale, the library's own float32 values) of one weight."""
    if bits == 4:
        pack, unpack = kitchen("quantize_convrot_w4a4_weight", "dequantize_convrot_w4a4_weight", of="convrot_w4a4")
        values, scale = pack(weight, group)
        return values, scale, unpack(values, scale, group)
    if group:
        turn, back = kitchen("quantize_int8_convrot_weight", "dequantize_int8_convrot_weight")
        values, scale = turn(weight, group)
        return values, scale, back(values, scale, group)
    quantize, plain = kitchen(f"quantize_int8_{'rowwise' if rows else 'tensorwise'}", "dequantize_int8_simple")
    values, scale = quantize(weight)
    return values, scale, plain(values, scale)


def integer_format(group: int, bits: int = 8) -> dict[str, Any]:
    """What ComfyUI writes of such a weight."""
    if bits == 4:
        return {"format": "convrot_w4a4", "convrot_groupsize": group}
    return {"format": "int8_tensorwise", **({"convrot": True, "convrot_groupsize": group} if group else {})}


def said(words: dict[str, Any]) -> Tensor:
    """A `comfy_quant` tensor."""
    return torch.tensor(list(json.dumps(words).encode()), dtype=torch.uint8)


def kitchen(*names: str, of: str = "quantization") -> list[Callable[..., Any]]:
    """Functions of ComfyUI's kernel library that need no GPU. Where its version lacks one, a test is skipped."""
    missing = ""
    if any("mxfp8" in name for name in names) and not hasattr(torch, "float8_e8m0fnu"):
        missing = "torch has exponents of 8 bits since 2.7"
    else:
        try:
            module = importlib.import_module(f"comfy_kitchen.backends.eager.{of}")
            return [getattr(module, name) for name in names]
        except (ImportError, AttributeError) as error:
            missing = f"this comfy-kitchen has no such format ({error})"
    if "pytest" in sys.modules:
        sys.modules["pytest"].skip(missing)
    raise ImportError(missing, name="comfy_kitchen")


def _format_of(name: str) -> str:
    return name.replace(".weight", ".comfy_quant")


def write_plain_fp8(path: Path, whole: Weights, dtype: torch.dtype = torch.float8_e4m3fn) -> Path:
    """A cast without scales."""
    stored = cast(whole, torch.bfloat16)
    save_file(stored | {name: whole[name].to(dtype) for name in block_linears(whole)}, path)
    return path


# ---- GGUF ---------------------------------------------------------------------------------------


def write_gguf(
    path: Path,
    whole: Weights,
    kind: str,
    prefix: str = "",
    *,
    unpacked: bool = True,
    patches: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """As the ComfyUI converters write Wan: small tensors float32, the patch embedding flattened with its shape beside.

    Returns the package's own dequantised values by name, those of packed linears where they are `unpacked`. Kinds the
    package cannot quantize get random blocks, which is all the same to a reader. `patches`: the sides of the patch
    embedding, of which then nothing says what they were.
    """
    import gguf
    import numpy

    writer, expected = gguf.GGUFWriter(path, "wan"), {}
    numbers = numpy.random.default_rng(5)
    chosen = gguf.GGMLQuantizationType[kind]
    for name, value in whole.items():
        data = value.float().numpy()
        if name in block_linears(whole):
            packed = _packed(data, chosen, numbers)
            writer.add_tensor(prefix + name, packed, raw_dtype=chosen)
            if unpacked:
                expected[name] = torch.from_numpy(gguf.quants.dequantize(packed, chosen).copy())
            continue
        if data.ndim > 4 and patches is not None:
            data = data.reshape(patches)
        elif data.ndim > 4:
            writer.add_array(f"comfy.gguf.orig_shape.{prefix}{name}", [int(size) for size in data.shape])
            data = data.reshape(data.shape[0], -1)
        writer.add_tensor(prefix + name, numpy.ascontiguousarray(data))
        expected[name] = value.float()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


_SCALE_BYTES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
}


def _packed(data: Any, kind: Any, numbers: Any) -> Any:
    import gguf
    import numpy

    try:
        return gguf.quants.quantize(data, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        packed = numbers.integers(0, 256, (data.shape[0], data.shape[1] // block, size), dtype=numpy.uint8)
        # Half-precision scales lie in these two-byte fields; random bytes there could be infinite.
        for at in _SCALE_BYTES[kind.name]:
            scale = numbers.uniform(0.001, 0.01, packed.shape[:2]).astype(numpy.float16)
            packed[..., at : at + 2] = scale[..., None].view(numpy.uint8)
        return packed.reshape(data.shape[0], -1)
