"""Every container loads; dequantised weights equal the reference arithmetic bit for bit; what is missing is named."""

from __future__ import annotations

import json
import struct
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from tests.support.containers import (
    SHAPE,
    Weights,
    block_linears,
    cast,
    quantized,
    weights,
    write_comfy_quant,
    write_folder,
    write_gguf,
    write_metadata_fp8,
    write_nvfp4,
    write_plain_fp8,
    write_scaled_fp8,
)
from wan_core.checkpoint import checkpoint_digest, dequantise, read_checkpoint, row_values
from wan_core.checkpoint.dequantise import block_scales_in_rows, tiled_shape
from wan_core.checkpoint.ggml import BLOCKS
from wan_core.checkpoint.gguf_file import read_gguf_header
from wan_core.errors import CheckpointError, DependencyError
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model, materialize
from wan_core.model import WanTransformer
from wan_core.precision import QuantizedLinear

WHOLE = weights()
PLAN = ModelPlan(base_file="diffusion_models:wan.gguf")
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


# ---- single files and folders -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model.", "base_model.model."])
def test_a_single_file_of_any_precision_and_prefix(tmp_path: Path, dtype: torch.dtype, prefix: str) -> None:
    stored = cast(WHOLE, dtype)
    save_file({prefix + name: value for name, value in stored.items()}, tmp_path / "wan.safetensors")
    rests = torch.float32 if dtype == torch.float32 else torch.bfloat16
    assert_loaded(load(tmp_path / "wan.safetensors"), stored, rests)


@pytest.mark.parametrize("diffusers", [True, False], ids=["diffusers names", "original names"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("inside", ["", "transformer", "transformer_2"])
def test_a_folder_whole_or_in_shards(tmp_path: Path, shards: int, inside: str, diffusers: bool) -> None:
    stored = cast(WHOLE, torch.bfloat16)
    write_folder(tmp_path / "Wan" / inside, stored, shards=shards, diffusers=diffusers)
    assert_loaded(load(tmp_path / "Wan"), stored, torch.bfloat16)
    header = read_checkpoint(tmp_path / "Wan")
    assert header.container == ("folder" if shards == 1 else "sharded folder")
    assert len(set(header.files.values())) == shards


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Wan", WHOLE, shards=3)
    (folder / "diffusion_pytorch_model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"Wan lacks 1 of its 3 parts: .*-00002-of-00003\.safetensors\. Download"):
        read_checkpoint(folder)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Wan", WHOLE, shards=2)
    part = folder / "diffusion_pytorch_model-00002-of-00002.safetensors"
    part.write_bytes(part.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"-00002-of-00002\.safetensors has .* truncated"):
        read_checkpoint(folder)


def test_shards_without_their_index_are_refused_because_one_could_be_missing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Wan", WHOLE, shards=2)
    (folder / "diffusion_pytorch_model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"Wan holds parts of a model but not the index"):
        read_checkpoint(folder)


def test_one_shard_chosen_as_file_sends_to_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Wan", WHOLE, shards=2)
    with pytest.raises(CheckpointError, match=r"is part 1 of 2 of a model\. Choose its folder, Wan\."):
        read_checkpoint(folder / "diffusion_pytorch_model-00001-of-00002.safetensors")


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": {"a": 1}}'],
)
def test_a_damaged_index_is_refused(tmp_path: Path, index: str) -> None:
    folder = write_folder(tmp_path / "Wan", WHOLE, shards=2)
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"index\.json is damaged"):
        read_checkpoint(folder)


def test_a_folder_of_experts_asks_which(tmp_path: Path) -> None:
    for name in ("high_noise_model", "low_noise_model"):
        write_folder(tmp_path / "Wan2.2" / name, {"a": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"Choose Wan2\.2/high_noise_model or Wan2\.2/low_noise_model\."):
        read_checkpoint(tmp_path / "Wan2.2")


def test_the_digest_of_a_folder_changes_with_every_file_of_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Wan", WHOLE, shards=2)
    before = checkpoint_digest(folder)
    assert before == checkpoint_digest(folder)
    part = folder / "diffusion_pytorch_model-00002-of-00002.safetensors"
    stored = load_file(part)
    save_file({name: value + 1 for name, value in stored.items()}, part)
    assert checkpoint_digest(folder) != before


# ---- 8 bits -------------------------------------------------------------------------------------


def comfy_scaled(stored: Tensor, scale: Tensor) -> Tensor:
    """What ComfyUI makes of an 8-bit weight when it patches it: `convert_weight` of its scaled_fp8 linear."""
    return stored.to(torch.float32) * scale.to(torch.float32)


WRITERS = {
    "scaled_fp8": (write_scaled_fp8, torch.float8_e4m3fn),
    "_quantization_metadata": (write_metadata_fp8, torch.float8_e4m3fn),
    "comfy_quant": (write_comfy_quant, torch.float8_e5m2),
}


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_scaled_weights_unpack_to_the_bits_of_the_reference(tmp_path: Path, layout: str, precision: str) -> None:
    write, dtype = WRITERS[layout]
    path = write(tmp_path / "wan.safetensors", WHOLE)
    stored, scales = quantized(WHOLE, dtype, lambda w: w.amax())
    expected = {n: comfy_scaled(v, scales[n]) if n in scales else v for n, v in stored.items()}
    target = torch.bfloat16 if precision == "bf16" else torch.float32
    model = load(path, precision)
    assert_loaded(model, {n: expected[n] for n in LINEARS}, target)
    assert not [m for m in model.modules() if isinstance(m, QuantizedLinear)]


@pytest.mark.comfy
def test_the_reference_is_what_comfyui_computes(comfyui_tree: Path) -> None:
    """Its own layout class, in a process of its own: importing ComfyUI here would change this one.

    In a ComfyUI of 2026 that class is comfy-kitchen's. What runs of it without a GPU rounds the scale to the dtype
    before it multiplies; the bits are ours for that scale.
    """
    import subprocess

    code = """
import sys, torch
sys.argv = ["main.py", "--cpu"]
sys.path.insert(0, TREE)
from comfy.quant_ops import TensorCoreFP8Layout
sys.path.insert(0, REPO)
from wan_core.checkpoint import dequantise
g = torch.Generator().manual_seed(1)
stored = torch.randn(64, 96, generator=g).to(torch.float8_e4m3fn)
for dtype in (torch.bfloat16, torch.float32):
    scale = torch.tensor(0.0123456)
    if hasattr(TensorCoreFP8Layout, "Params"):
        about = TensorCoreFP8Layout.Params(scale=scale, orig_dtype=dtype, orig_shape=tuple(stored.shape))
        found, scale = TensorCoreFP8Layout.dequantize(stored, about), scale.to(dtype)
    else:
        found = TensorCoreFP8Layout.dequantize(stored, scale, dtype)
    assert torch.equal(found, dequantise(stored, scale, dtype)), dtype
print("equal")
"""
    code = code.replace("TREE", repr(str(comfyui_tree))).replace("REPO", repr(str(Path(__file__).parents[3])))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("equal"), done.stderr[-2000:]


@pytest.mark.parametrize("layout", [*WRITERS, "fp8"])
def test_eight_bit_linears_of_the_blocks_stay_as_they_are_stored(tmp_path: Path, layout: str) -> None:
    write, dtype = WRITERS.get(layout, (write_plain_fp8, torch.float8_e4m3fn))
    path = write(tmp_path / "wan.safetensors", WHOLE)
    model = load(path)
    kept = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert {f"{name}.weight" for name in kept} == set(LINEARS)
    stored, scales = quantized(WHOLE, dtype, lambda w: w.amax())
    for name, module in kept.items():
        wanted = stored[f"{name}.weight"] if layout != "fp8" else WHOLE[f"{name}.weight"].to(dtype)
        assert module.weight.dtype == dtype
        assert torch.equal(module.weight.view(torch.uint8), wanted.view(torch.uint8))
        assert (module.scale is None) == (layout == "fp8")
        if module.scale is not None:
            assert torch.equal(module.scale, scales[f"{name}.weight"])
    assert inspect_model(ModelPlan(base_file=f"diffusion_models:{path.name}"), roots(tmp_path)).quantization == layout


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_plain_fp8_is_a_cast(tmp_path: Path, dtype: torch.dtype) -> None:
    path = write_plain_fp8(tmp_path / "wan.safetensors", WHOLE, dtype)
    assert_loaded(load(path, "fp32"), {n: WHOLE[n].to(dtype).float() for n in LINEARS}, torch.float32)


def test_a_prefix_and_diffusers_names_do_not_part_weights_from_their_scales(tmp_path: Path) -> None:
    path = write_scaled_fp8(tmp_path / "wan.safetensors", WHOLE, prefix="model.diffusion_model.")
    stored, scales = quantized(WHOLE, torch.float8_e4m3fn, lambda w: w.amax())
    expected = {n: comfy_scaled(stored[n], scales[n]) for n in LINEARS}
    assert_loaded(load(path, "fp32"), expected, torch.float32)


@pytest.mark.parametrize("shape", ["(out,)", "(out, 1)", "(out, blocks, 1)"])
def test_scales_per_row_and_per_block(tmp_path: Path, shape: str) -> None:
    """As musubi-tuner makes them; blocks of 64."""
    stored, expected = cast(WHOLE, torch.bfloat16), {}
    for name in LINEARS:
        rows, columns = WHOLE[name].shape
        blocks = columns // 64 if "blocks" in shape else 1
        parts = WHOLE[name].view(rows, blocks, -1)
        scale = parts.abs().amax(2, keepdim=True) / 448
        stored[name] = (parts / scale).flatten(1).to(torch.float8_e4m3fn)
        expected[name] = (stored[name].float().view_as(parts) * scale).flatten(1)
        wanted = {"(out,)": (rows,), "(out, 1)": (rows, 1)}.get(shape, (rows, blocks, 1))
        stored[name.replace(".weight", ".scale_weight")] = scale.reshape(wanted).contiguous()
    save_file(stored, tmp_path / "wan.safetensors")
    assert_loaded(load(tmp_path / "wan.safetensors", "fp32"), expected, torch.float32)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_kept_linear_gives_output_and_gradient_of_the_dequantised_one(scaled: bool) -> None:
    generator = torch.Generator().manual_seed(9)
    stored = torch.randn(48, 32, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.tensor(0.037) if scaled else None
    kept = QuantizedLinear(stored, scale, bias=True)
    kept.bias = nn.Parameter(torch.randn(48, generator=generator), requires_grad=False)
    plain = nn.Linear(32, 48)
    plain.weight = nn.Parameter(stored.float() * (1 if scale is None else scale), requires_grad=False)
    plain.bias = kept.bias
    inputs = [torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1), requires_grad=True) for _ in "ab"]
    outputs = [layer(x) for layer, x in zip((kept, plain), inputs, strict=True)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.square().sum().backward()
    assert inputs[0].grad is not None
    assert torch.equal(inputs[0].grad, inputs[1].grad)  # type: ignore[arg-type]
    assert kept.weight.grad is None


def test_a_kept_linear_saves_its_eight_bits_for_backward_and_nothing_wider() -> None:
    kept = QuantizedLinear(torch.ones(64, 64).to(torch.float8_e4m3fn), torch.tensor(1.0), bias=False)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept(torch.ones(3, 64, requires_grad=True))
    assert sorted(tensor.dtype.itemsize * tensor.numel() for tensor in saved) == [4, 64 * 64]


# ---- 4 bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_nvfp4_unpacks_to_the_bits_of_comfyuis_kernel_library(tmp_path: Path, precision: str) -> None:
    expected = write_nvfp4(tmp_path / "wan.safetensors", WHOLE)
    model = load(tmp_path / "wan.safetensors", precision)
    assert_loaded(model, expected, torch.bfloat16 if precision == "bf16" else torch.float32)
    assert not [m for m in model.modules() if isinstance(m, QuantizedLinear)]


@pytest.mark.parametrize("shape", [(128, 64), (144, 112), (384, 1536)], ids=str)
def test_scales_of_blocks_leave_their_tiles_in_order(shape: tuple[int, int]) -> None:
    """More than one tile in each direction, and tiles that are not full, which the tiny model has none of."""
    from comfy_kitchen.backends.eager.quantization import dequantize_nvfp4, quantize_nvfp4

    weight = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    per_tensor = weight.abs().amax() / (448 * 6)
    packed, tiled = quantize_nvfp4(weight, per_tensor)
    assert tuple(tiled.shape) == tiled_shape(shape[0], shape[1] // 16)
    scales = block_scales_in_rows(tiled, shape[0], shape[1] // 16)
    expected = dequantize_nvfp4(packed, per_tensor, tiled, torch.float32)
    assert torch.equal(dequantise(packed, scales, torch.float32, per_tensor, layout="NVFP4"), expected)


def test_nvfp4_linears_of_the_blocks_stay_in_four_bits_and_give_the_gradients_of_the_unpacked_ones(
    tmp_path: Path,
) -> None:
    expected = write_nvfp4(tmp_path / "wan.safetensors", WHOLE)
    kept = {n: m for n, m in load(tmp_path / "wan.safetensors").named_modules() if isinstance(m, QuantizedLinear)}
    assert {f"{name}.weight" for name in kept} == set(LINEARS)
    for name, layer in kept.items():
        whole = expected[f"{name}.weight"]
        assert (layer.out_features, layer.in_features) == tuple(whole.shape)
        assert layer.weight.nbytes * 2 == whole.numel()
        x, y = (torch.randn(3, whole.shape[1], generator=torch.Generator().manual_seed(1)) for _ in "xy")
        layer.bias = None
        layer(x.requires_grad_()).square().sum().backward()
        functional.linear(y.requires_grad_(), whole).square().sum().backward()
        assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("gone", ["weight_scale", "weight_scale_2", "shape", "dtype"])
def test_nvfp4_without_one_of_its_parts_is_refused(tmp_path: Path, gone: str) -> None:
    write_nvfp4(tmp_path / "wan.safetensors", WHOLE)
    stored, scale = load_file(tmp_path / "wan.safetensors"), "blocks.0.ffn.0.weight_scale"
    if gone == "shape":
        stored[scale] = stored[scale][:, :2].contiguous()
    elif gone == "dtype":
        stored[scale] = stored[scale].float()
    else:
        del stored[f"blocks.0.ffn.0.{gone}"]
    save_file(stored, tmp_path / "wan.safetensors")
    with pytest.raises(
        CheckpointError, match=r"^wan\.safetensors.*(fits no weight|as nvfp4|as NVFP4 without the scale)"
    ):
        inspect_model(ModelPlan(base_file="diffusion_models:wan.safetensors"), roots(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"said": "nvfp4"}, r"stores blocks\.0\.\S+ as nvfp4; training on that is not supported"),
        ({"said": "mxfp8"}, r"as mxfp8"),
        ({"said": "x" * 5000}, "says in no readable way how it is quantized"),
        ({"scale": torch.ones(3)}, r"scale_weight \(F32 \[3\]\) fits no weight"),
        ({"orphan": True}, r"fits no weight"),
        ({"dtype": torch.int32}, r"stores blocks\.0\.ffn\.0\.weight as I32, which cannot be trained on"),
        ({"dtype": torch.int8}, r"stores blocks\.0\.ffn\.0\.weight as I8 without the scale that belongs to it"),
        ({"metadata": "{"}, "says in no readable way how it is quantized"),
        ({"metadata": '{"layers": {"blocks.0.ffn.0": 3}}'}, "says in no readable way"),
    ],
    ids=["nvfp4", "mxfp8", "too long", "scale", "orphan", "int32", "int8", "metadata", "layers"],
)
def test_a_quantization_nobody_can_undo_is_named(tmp_path: Path, change: dict, words: str) -> None:
    stored, metadata = cast(WHOLE, torch.bfloat16), {}
    if "said" in change:
        path = write_comfy_quant(tmp_path / "wan.safetensors", WHOLE)
        stored = load_file(path)
        said = torch.tensor(list(json.dumps({"format": change["said"]}).encode()), dtype=torch.uint8)
        stored |= {name: said.clone() for name in stored if name.endswith("comfy_quant")}
    if "scale" in change:
        stored["blocks.0.ffn.0.scale_weight"] = change["scale"]
    if "orphan" in change:
        stored["blocks.0.nothing.scale_weight"] = torch.tensor(1.0)
    if "dtype" in change:
        stored["blocks.0.ffn.0.weight"] = stored["blocks.0.ffn.0.weight"].to(change["dtype"])
    if "metadata" in change:
        metadata = {"_quantization_metadata": change["metadata"]}
    save_file(stored, tmp_path / "odd.safetensors", metadata)
    with pytest.raises(CheckpointError, match=words) as refusal:
        inspect_model(ModelPlan(base_file="diffusion_models:odd.safetensors"), roots(tmp_path))
    assert str(refusal.value).startswith("odd.safetensors")


# ---- GGUF ---------------------------------------------------------------------------------------

PACKED = ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("kind", ["F16", "BF16", "IQ4_NL", "Q8_0", "Q4_K"])
def test_gguf_unpacks_to_the_bits_of_the_package(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf", reason="gguf is an extra")
    expected = write_gguf(tmp_path / "wan.gguf", WHOLE, kind)
    assert_loaded(load(tmp_path / "wan.gguf", "fp32"), expected, torch.float32)
    assert_loaded(load(tmp_path / "wan.gguf", "bf16"), expected, torch.bfloat16)
    found = inspect_model(ModelPlan(base_file="diffusion_models:wan.gguf"), roots(tmp_path))
    assert (found.header.container, found.quantization) == ("gguf", "gguf" if kind in PACKED else "none")
    assert found.weights["blocks.0.ffn.0.weight"].dtype == kind
    assert found.variant.shape == SHAPE
    if kind not in PACKED:
        assert_loaded(load(tmp_path / "wan.gguf"), expected, torch.bfloat16)


@pytest.mark.parametrize("kind", PACKED)
def test_blocks_of_gguf_unpack_to_the_bits_of_the_package(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes, so that every bit of a block counts; whole, and a few rows at a time."""
    gguf = pytest.importorskip("gguf", reason="gguf is an extra")
    import numpy

    numbers, known = numpy.random.default_rng(7), gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[known]
    packed = numbers.integers(0, 256, (24, 3, size), dtype=numpy.uint8)
    for at in BLOCKS[kind].scales:
        scale = numbers.uniform(-0.01, 0.01, packed.shape[:2]).astype(numpy.float16)
        packed[..., at : at + 2] = scale[..., None].view(numpy.uint8)
    rows = packed.reshape(24, -1)
    expected = torch.from_numpy(gguf.quants.dequantize(rows, known))
    assert expected.shape == (24, 3 * block)
    assert row_values(rows.shape[1], kind) == 3 * block
    for at_once in (1 << 24, 5 * 3 * block):
        monkeypatch.setattr(sys.modules["wan_core.checkpoint.dequantise"], "_CPU_VALUES", at_once)
        for dtype in (torch.float32, torch.bfloat16):
            found = dequantise(torch.from_numpy(rows), None, dtype, layout=kind)
            assert torch.equal(found, expected.to(dtype))


@pytest.mark.parametrize("kind", PACKED)
def test_gguf_linears_of_the_blocks_stay_packed_and_compute_as_the_unpacked_ones(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf", reason="gguf is an extra")
    write_gguf(tmp_path / "wan.gguf", WHOLE, kind)
    model, plain = load(tmp_path / "wan.gguf"), load(tmp_path / "wan.gguf", "bf16")
    kept = {name: m for name, m in model.named_modules() if isinstance(m, QuantizedLinear)}
    assert {f"{name}.weight" for name in kept} == set(LINEARS)
    assert model.get_parameter("head.head.weight").dtype != torch.uint8
    found = inspect_model(PLAN, roots(tmp_path))
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    for name, layer in kept.items():
        source = found.weights[f"{name}.weight"]
        assert layer.weight.nbytes == source.stored_bytes < 1.1 * WHOLE[f"{name}.weight"].numel()
        assert layer.scale is None
        x, y = (torch.randn(2, 3, layer.in_features, generator=torch.Generator().manual_seed(1)) for _ in "xy")
        inputs = [value.bfloat16().requires_grad_() for value in (x, y)]
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = layer(inputs[0])
        assert [tensor.nbytes for tensor in saved] == [layer.weight.nbytes], "autograd keeps the packed weight"
        outputs = [output, plain.get_submodule(name)(inputs[1])]
        assert torch.equal(*outputs)
        for output in outputs:
            output.square().sum().backward()
        assert torch.equal(inputs[0].grad, inputs[1].grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "IQ4_NL"])
def test_a_gguf_scale_that_is_no_number_is_found_while_loading(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf", reason="gguf is an extra")
    write_gguf(tmp_path / "wan.gguf", WHOLE, kind)
    (source,) = (w for n, w in inspect_model(PLAN, roots(tmp_path)).weights.items() if n == "blocks.1.ffn.2.weight")
    data = (tmp_path / "wan.gguf").read_bytes()
    at = read_gguf_header(tmp_path / "wan.gguf").tensors[source.key].begin + {"Q8_0": 0, "Q6_K": 208, "IQ4_NL": 0}[kind]
    (tmp_path / "wan.gguf").write_bytes(data[:at] + struct.pack("<H", 0x7C00) + data[at + 2 :])
    with pytest.raises(CheckpointError, match=r"values of blocks\.1\.ffn\.2\.weight are not finite"):
        load(tmp_path / "wan.gguf")


def test_gguf_names_may_carry_a_prefix(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is an extra")
    expected = write_gguf(tmp_path / "wan.gguf", WHOLE, "Q8_0", prefix="model.diffusion_model.")
    assert_loaded(load(tmp_path / "wan.gguf", "fp32"), expected, torch.float32)


@pytest.mark.parametrize("patches", [(128, 32, 2, 2), (128 * 32, 1, 2, 2), (128, 128)])
def test_a_gguf_that_says_nothing_of_five_sides_is_read(tmp_path: Path, patches: tuple[int, ...]) -> None:
    """stable-diffusion.cpp joins the channels of the patch embedding, as GGUF holds four sides."""
    pytest.importorskip("gguf", reason="gguf is an extra")
    expected = write_gguf(tmp_path / "wan.gguf", WHOLE, "Q8_0", patches=patches)
    assert_loaded(load(tmp_path / "wan.gguf", "fp32"), expected, torch.float32)


def test_a_safetensors_file_with_a_flat_patch_embedding_is_read(tmp_path: Path) -> None:
    flat = {n: v.flatten(1) if n == "patch_embedding.weight" else v for n, v in WHOLE.items()}
    save_file(flat, tmp_path / "wan.safetensors")
    assert_loaded(load(tmp_path / "wan.safetensors", "fp32"), WHOLE, torch.float32)


def test_a_flat_patch_embedding_with_a_scale_gets_its_sides_too(tmp_path: Path) -> None:
    file = write_scaled_fp8(tmp_path / "wan.safetensors", WHOLE)
    patches = WHOLE["patch_embedding.weight"]
    scale = patches.abs().max() / 448
    stored = {**load_file(file), "patch_embedding.scale_weight": scale}
    stored["patch_embedding.weight"] = (patches / scale).to(torch.float8_e4m3fn).flatten(1)
    save_file(stored, file)
    found = load(file, "fp32").patch_embedding.weight
    assert found.shape == patches.shape
    assert (found.float() - patches).abs().max() < patches.abs().max() / 16


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"pipe.dit.{name}",
        lambda name: f"dit.{name}",
        lambda name: f"generator.model.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("blocks.1.", "blocks.1._orig_mod."),
        lambda name: "_fsdp_wrapped_module." + name.replace(".ffn", "._checkpoint_wrapped_module.ffn"),
    ],
)
def test_names_that_torch_and_trainers_wrapped_are_read(tmp_path: Path, rename: Callable[[str], str]) -> None:
    whole = {rename(name): value for name, value in WHOLE.items()}
    if "generator.model.patch_embedding.weight" in whole:  # files of distillation hold a mean beside
        whole["generator_ema.model.blocks.0.ffn.0.weight"] = torch.zeros(4)
    save_file(whole, tmp_path / "wan.safetensors")
    found = inspect_model(replace(PLAN, base_file="diffusion_models:wan.safetensors"), roots(tmp_path))
    assert found.weights.keys() == WHOLE.keys()
    assert_loaded(load(tmp_path / "wan.safetensors", "fp32"), WHOLE, torch.float32)


def test_q8_0_by_hand(tmp_path: Path) -> None:
    """The published layout: 32 values share one half-precision scale, then 32 signed bytes."""
    gguf = pytest.importorskip("gguf", reason="gguf is an extra")
    write_gguf(tmp_path / "wan.gguf", WHOLE, "Q8_0")
    name = "blocks.1.ffn.2.weight"
    found = load(tmp_path / "wan.gguf", "fp32").get_parameter(name).data
    packed = gguf.quants.quantize(WHOLE[name].numpy(), gguf.GGMLQuantizationType.Q8_0).reshape(-1, 34)
    scale = torch.from_numpy(packed[:, :2].copy().view("float16").astype("float32"))
    values = torch.from_numpy(packed[:, 2:].copy().view("int8").astype("float32"))
    assert torch.equal(found.flatten(), (scale * values).flatten())


@pytest.mark.parametrize("cut", [3, 20, 60, 3000, -100])
def test_a_damaged_gguf_is_one_sentence(tmp_path: Path, cut: int) -> None:
    pytest.importorskip("gguf", reason="gguf is an extra")
    write_gguf(tmp_path / "wan.gguf", WHOLE, "Q8_0")
    path = tmp_path / "wan.gguf"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"^wan\.gguf is (not a|a damaged) GGUF file\. Download it again\.$"):
        read_checkpoint(path)


def test_a_gguf_that_promises_a_billion_tensors_is_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "wan.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 1) + bytes(100))
    with pytest.raises(CheckpointError, match="damaged GGUF"):
        read_checkpoint(tmp_path / "wan.gguf")


def test_without_the_package_the_pip_line_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wan.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + bytes(100))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(DependencyError, match=r"GGUF files need the gguf package .*-m pip install"):
        read_checkpoint(tmp_path / "wan.gguf")


def test_an_array_that_claims_more_than_the_file_has_is_refused_at_once(tmp_path: Path) -> None:
    """The package itself would loop over it for hours."""
    key = b"general.name"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, 1 << 40)
    file = tmp_path / "huge.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    with pytest.raises(CheckpointError, match="damaged GGUF"):
        read_gguf_header(file)
    file.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry.replace(struct.pack("<I", 8), struct.pack("<I", 4), 1)
    )
    with pytest.raises(CheckpointError, match="damaged GGUF"):
        read_gguf_header(file)


def gguf_with(tmp_path: Path, entry: bytes, tensor: bytes = b"", data: int = 64) -> Path:
    """A GGUF of one entry of metadata, and of one tensor where its words are given."""
    file = tmp_path / "wan.gguf"
    text = b"GGUF" + struct.pack("<IQQ", 3, bool(tensor), bool(entry)) + entry + tensor
    file.write_bytes(text + bytes(-len(text) % 32 + data))
    return file


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_tensor(*sides: int, kind: int = 0, offset: int = 0, name: str = "a") -> bytes:
    return gguf_text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, offset)


def test_a_list_of_numbers_in_a_gguf_is_passed_over_and_takes_no_memory(tmp_path: Path) -> None:
    """The package makes an array of each: 693 MB and 19 s for a list of 1 MB."""
    pytest.importorskip("gguf", reason="gguf is an extra")
    count = 32 << 20
    file = gguf_with(tmp_path, gguf_text("a.list") + struct.pack("<IIQ", 9, 0, count) + bytes(count), gguf_tensor(4, 3))
    read_gguf_header(file)
    tracemalloc.start()
    found = read_gguf_header(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {name: (info.shape, info.size_bytes) for name, info in found.tensors.items()} == {"a": ((3, 4), 48)}
    assert peak < 1 << 20


Q8_0 = 8
WRONG_GGUF = {
    "two million texts": (gguf_text("a") + struct.pack("<IIQ", 9, 8, 2 << 20) + bytes(16 << 20), gguf_tensor(4)),
    "a list of lists": (gguf_text("a") + struct.pack("<IIQ", 9, 9, 1) + bytes(64), gguf_tensor(4)),
    "an unknown kind of value": (gguf_text("a") + struct.pack("<I", 77), gguf_tensor(4)),
    "an alignment of 3": (gguf_text("general.alignment") + struct.pack("<II", 4, 3), gguf_tensor(4)),
    "an alignment in words": (gguf_text("general.alignment") + struct.pack("<I", 8) + gguf_text("x"), gguf_tensor(4)),
    "another shape than the values have": (
        gguf_text("comfy.gguf.orig_shape.a") + struct.pack("<IIQ2i", 9, 5, 2, 5, 5),
        gguf_tensor(4),
    ),
    "a shape of negative sides": (
        gguf_text("comfy.gguf.orig_shape.a") + struct.pack("<IIQ2i", 9, 5, 2, -2, -2),
        gguf_tensor(4),
    ),
    "a tensor beyond the end": (b"", gguf_tensor(4, offset=1 << 40)),
    "a tensor larger than the file": (b"", gguf_tensor(1 << 40)),
    "rows of half blocks": (b"", gguf_tensor(16, 4, kind=Q8_0)),
    "an unknown way to store values": (b"", gguf_tensor(4, kind=4)),
    "a hundred sides": (b"", gguf_tensor(*[1] * 100)),
    "a name that is no text": (b"", struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IQIQ", 1, 4, 0, 0)),
    "a name longer than the file": (b"", struct.pack("<Q", 1 << 62)),
}


@pytest.mark.parametrize(("entry", "tensor"), WRONG_GGUF.values(), ids=WRONG_GGUF)
def test_a_gguf_header_that_cannot_be_is_one_sentence(tmp_path: Path, entry: bytes, tensor: bytes) -> None:
    pytest.importorskip("gguf", reason="gguf is an extra")
    file = gguf_with(tmp_path, entry, tensor)
    with pytest.raises(CheckpointError, match=r"^wan\.gguf is a damaged GGUF file\. Download it again\.$"):
        read_gguf_header(file)


def test_the_header_of_a_gguf_is_the_one_its_package_reads(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is an extra")
    for kind in ("F16", "Q4_K"):
        file = tmp_path / f"{kind}.gguf"
        write_gguf(file, WHOLE, kind)
        found = read_gguf_header(file).tensors
        theirs = {str(tensor.name): tensor for tensor in gguf.GGUFReader(file).tensors}
        assert found.keys() == theirs.keys()
        for name, info in found.items():
            tensor = theirs[name]
            assert (info.dtype, info.size_bytes, info.begin) == (
                tensor.tensor_type.name,
                tensor.n_bytes,
                tensor.data_offset,
            )
