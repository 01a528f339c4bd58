"""Every container loads; dequantised weights equal the reference arithmetic bit for bit; what is missing is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from tests.support.containers import (
    LINEARS,
    WHOLE,
    assert_loaded,
    cast,
    load,
    quantized,
    roots,
    write_comfy_quant,
    write_folder,
    write_metadata_fp8,
    write_nvfp4,
    write_plain_fp8,
    write_scaled_fp8,
)
from wan_core.checkpoint import checkpoint_digest, dequantise, read_checkpoint
from wan_core.checkpoint.dequantise import block_scales_in_rows, tiled_shape
from wan_core.errors import CheckpointError
from wan_core.load import ModelPlan, inspect_model
from wan_core.precision import QuantizedLinear


@pytest.mark.parametrize(
    ("dtype", "prefix"),
    [
        pytest.param(dtype, prefix, marks=[] if not prefix or dtype == torch.bfloat16 else pytest.mark.soak)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for prefix in ("", "model.diffusion_model.", "diffusion_model.", "base_model.model.")
    ],
    ids=str,
)
def test_a_single_file_of_any_precision_and_prefix(tmp_path: Path, dtype: torch.dtype, prefix: str) -> None:
    stored = cast(WHOLE, dtype)
    save_file({prefix + name: value for name, value in stored.items()}, tmp_path / "wan.safetensors")
    rests = torch.float32 if dtype == torch.float32 else torch.bfloat16
    assert_loaded(load(tmp_path / "wan.safetensors"), stored, rests)


@pytest.mark.parametrize(
    ("inside", "shards", "diffusers"),
    [
        pytest.param(
            *(inside, shards, names == "diffusers names"),
            id=f"{inside}-{shards}-{names}",
            marks=[] if (shards == 3) == (names == "diffusers names") else pytest.mark.soak,
        )
        for inside in ("", "transformer", "transformer_2")
        for shards in (1, 3)
        for names in ("diffusers names", "original names")
    ],
)
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
        ({"said": "x" * 5000}, "has unreadable metadata on its quantization"),
        ({"scale": torch.ones(3)}, r"scale_weight \(F32 \[3\]\) fits no weight"),
        ({"orphan": True}, r"fits no weight"),
        ({"dtype": torch.int32}, r"stores blocks\.0\.ffn\.0\.weight as I32, which cannot be trained"),
        ({"dtype": torch.int8}, r"stores blocks\.0\.ffn\.0\.weight as I8 without the scale that belongs to it"),
        ({"metadata": "{"}, "has unreadable metadata on its quantization"),
        ({"metadata": '{"layers": {"blocks.0.ffn.0": 3}}'}, "has unreadable metadata"),
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
    found = inspect_model(
        ModelPlan(base_file="diffusion_models:wan.safetensors"),
        roots(tmp_path),
    )
    assert found.weights.keys() == WHOLE.keys()
    assert_loaded(load(tmp_path / "wan.safetensors", "fp32"), WHOLE, torch.float32)
