"""Integer and mxfp8 files: the values of ComfyUI's kernel library, packed to the last byte, both ways of a step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from tests.support.cards import AMPERE, put_in
from tests.support.comfy_formats import FORMATS, ONE, found_in, kept, load, plan
from tests.support.containers import (
    LINEARS,
    SHAPE,
    WHOLE,
    integer_format,
    integers,
    kitchen,
    roots,
    said,
    write_codes,
    write_int8,
    write_mxfp8,
)
from tests.support.headers import to_diffusers
from wan_core.checkpoint import code_scales, dequantise
from wan_core.checkpoint.dequantise import block_scales_in_rows, tiled_shape
from wan_core.checkpoint.integers import GROUPS, INTEGERS, integer_layout, rotated
from wan_core.errors import CheckpointError
from wan_core.load import ModelPlan, inspect_model, materialize, resolved
from wan_core.model import WanTransformer
from wan_core.precision import product_without_bias, row_squares

pytestmark = pytest.mark.lasts(0.08)

# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=pytest.mark.soak if form in ("int8 convrot 256", "convrot codes") else [])
        for form in FORMATS
    ],
)
def test_weights_unpack_to_the_values_of_comfyuis_kernel_library(tmp_path: Path, form: str) -> None:
    """To the bit; of rotated ones to its last places, which the next test explains."""
    expected = FORMATS[form](tmp_path / "wan.safetensors")
    found = {precision: dict(load(tmp_path, precision).named_parameters()) for precision in ("fp32", "bf16")}
    for name in LINEARS:
        value = found["fp32"][name].data
        if "convrot" in form:
            assert (value - expected[name]).abs().max() <= 1e-6 * expected[name].abs().max()
        else:
            assert torch.equal(value, expected[name]), name
        assert torch.equal(found["bf16"][name].data, value.bfloat16())


PLAIN = [layout for layout, known in INTEGERS.items() if not known.coded]


@pytest.mark.parametrize("layout", PLAIN)
def test_rotated_weights_are_exact_but_for_one_rounding(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64; the library scales first and rounds each of the numbers that it then adds. In pieces the same,
    with factors that torch may shorten to bfloat16, and under autocast."""
    bits, group = INTEGERS[layout].bits, INTEGERS[layout].group
    weight = torch.randn(48, 2 * max(group, 64), generator=torch.Generator().manual_seed(1))
    values, scale, near = integers(weight, group=group, bits=bits)
    (hadamard,) = kitchen("_build_hadamard", of="convrot_w4a4")
    whole = values
    if bits == 4:
        (whole,) = (unpack(values) for unpack in kitchen("_unpack_int4_row_major", of="svdquant"))
    turned = whole.double().view(48, -1, group) @ hadamard(group, dtype=torch.float64)
    exact = (turned.view(48, -1) * scale.double().view(48, 1)).float()
    assert torch.equal(dequantise(values, scale, torch.float32, layout=layout), exact)
    assert (exact - near).abs().max() <= 1e-6 * near.abs().max()
    assert (exact - weight).norm() / weight.norm() < {8: 0.012, 4: 0.2}[bits]
    monkeypatch.setattr(sys.modules["wan_core.checkpoint.dequantise"], "_CPU_VALUES", 5 * exact.shape[1])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(dequantise(values, scale, torch.float32, layout=layout), exact)
    finally:
        torch.set_float32_matmul_precision(before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dequantise(values, scale, torch.float32, layout=layout), exact)


@pytest.mark.parametrize("kind", ["levels", "equal distances", "6 bits"])
def test_codes_are_the_integers_of_the_kernel_library(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes, so that every bit of a code counts; rotated and scaled as those above. In pieces the same."""
    (decode,) = kitchen("_dequant_int4_grouped_to_int8", of="w4a8_int8")
    draws, bits = torch.Generator().manual_seed(5), 6 if kind == "6 bits" else 4
    codes = torch.randint(0, 256, (24, 512 * bits // 8), generator=draws, dtype=torch.uint8)
    scales = (torch.rand(24, 32, generator=draws) * 100).to(torch.float8_e4m3fn)
    levels = torch.randn(16, generator=draws).sort().values if kind == "levels" else None
    of_row = torch.rand(24, generator=draws)
    whole = decode(codes.view(torch.int8), scales, levels, 16)
    assert whole.amax() == 127, "some are cut off"
    assert len(whole.unique()) > 100
    for group in (16, 256):
        layout = integer_layout(bits, group, coded=True)
        packed = torch.cat([codes, scales.view(torch.uint8)], dim=1)
        exact = rotated(whole.float(), layout).double() * of_row.double().view(24, 1)
        for at_once in (1 << 24, 5 * 512):
            monkeypatch.setattr(sys.modules["wan_core.checkpoint.dequantise"], "_CPU_VALUES", at_once)
            assert torch.equal(dequantise(packed, of_row, torch.float32, levels, layout=layout), exact.float())
            half = dequantise(packed, of_row, torch.bfloat16, levels, layout=layout)
            assert torch.equal(half, exact.float().bfloat16())
        assert torch.equal(code_scales(packed, layout).float(), scales.float())


def test_the_rotation_by_hand() -> None:
    """(1 1 1 -1), (1 1 -1 1), (1 -1 1 1), (-1 1 1 1), halved; of sixteen its product with itself."""
    layout = integer_layout(8, 4)
    assert rotated(torch.tensor([1.0, 2.0, 3.0, 4.0]), layout).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rotated(torch.tensor([4.0, 0.0, 0.0, 2.0]), layout).tolist() == [1.0, 3.0, 3.0, -1.0]
    one = torch.zeros(16)
    one[0] = 16.0
    assert rotated(one, integer_layout(8, 16)).view(4, 4).tolist() == [
        [4.0, 4.0, 4.0, -4.0],
        [4.0, 4.0, 4.0, -4.0],
        [4.0, 4.0, 4.0, -4.0],
        [-4.0, -4.0, -4.0, 4.0],
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_a_rotation_undoes_itself(group: int) -> None:
    values = torch.arange(2.0 * group).view(2, group)
    assert torch.equal(rotated(rotated(values, integer_layout(4, group)), integer_layout(8, group)), values)
    assert rotated(values, "") is values


@pytest.mark.parametrize("shape", [(), (1,), (512,), (512, 1)], ids=str)
@pytest.mark.parametrize("group", [0, 64])
def test_scales_of_integers_in_every_shape(tmp_path: Path, shape: tuple[int, ...], group: int) -> None:
    write_int8(tmp_path / "wan.safetensors", WHOLE, group=group)
    stored = load_file(tmp_path / "wan.safetensors")
    scale = torch.tensor(0.01) if shape in ((), (1,)) else stored[f"{ONE}.weight_scale"]
    stored[f"{ONE}.weight_scale"] = scale.reshape(shape)
    save_file(stored, tmp_path / "wan.safetensors")
    integer = rotated(stored[f"{ONE}.weight"].float(), integer_layout(8, group) if group else "")
    assert torch.equal(load(tmp_path, "fp32").get_parameter(f"{ONE}.weight").data, integer * scale)


# ---- how a file says it -------------------------------------------------------------------------


WORDS: dict[str, dict[str, Any]] = {
    "with more": {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64, "per_row": True},
    "in params": {"format": "int8_tensorwise", "params": {"convrot": True, "convrot_groupsize": 64}},
    "both": {"format": "int8_tensorwise", "convrot": True, "params": {"convrot": False, "convrot_groupsize": 64}},
}


@pytest.mark.parametrize(
    ("where", "how"),
    [
        pytest.param(where, how, marks=[] if where == "tensors" or how == "both" else pytest.mark.soak)
        for where in ("tensors", "metadata", "metadata of diffusers", "metadata with a prefix")
        for how in WORDS
    ],
)
def test_a_rotation_is_found_wherever_it_is_said(tmp_path: Path, where: str, how: str) -> None:
    words = WORDS[how]
    write_int8(tmp_path / "wan.safetensors", WHOLE, group=64)
    wanted = load(tmp_path, "fp32").get_parameter(f"{ONE}.weight").data
    stored = {k: v for k, v in load_file(tmp_path / "wan.safetensors").items() if not k.endswith("comfy_quant")}
    layers = [name.removesuffix(".weight") for name in LINEARS]
    metadata = {}
    if where == "tensors":
        stored |= {f"{layer}.comfy_quant": said(words) for layer in layers}
    else:
        named = {"metadata of diffusers": to_diffusers, "metadata with a prefix": "model.diffusion_model.{}".format}
        name_of = named.get(where, str)
        stored = {name_of(name): value for name, value in stored.items()}
        told = {name_of(f"{layer}.weight").removesuffix(".weight"): words for layer in layers}
        metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": told})}
    save_file(stored, tmp_path / "wan.safetensors", metadata)
    assert torch.equal(load(tmp_path, "fp32").get_parameter(f"{ONE}.weight").data, wanted)
    assert found_in(tmp_path).weights[f"{ONE}.weight"].layout == "INT8_CONVROT_64"
    assert found_in(tmp_path).quantization == ("comfy_quant" if where == "tensors" else "_quantization_metadata")


def test_what_a_checkpoint_says_of_its_text_encoder_is_not_of_the_model(tmp_path: Path) -> None:
    write_int8(tmp_path / "wan.safetensors", WHOLE, group=64)
    wanted = load(tmp_path, "fp32").get_parameter(f"{ONE}.weight").data
    model = {k: v for k, v in load_file(tmp_path / "wan.safetensors").items() if not k.endswith("comfy_quant")}
    stored = {f"model.diffusion_model.{name}": value for name, value in model.items()}
    stored["text_encoders.umt5.block.weight"] = torch.ones(4, 4, dtype=torch.int8)
    layers = {f"model.diffusion_model.{name.removesuffix('.weight')}": integer_format(64) for name in LINEARS}
    layers["text_encoders.umt5.block"] = {"format": "int8_blockwise"}
    save_file(stored, tmp_path / "wan.safetensors", {"_quantization_metadata": json.dumps({"layers": layers})})
    assert torch.equal(load(tmp_path, "fp32").get_parameter(f"{ONE}.weight").data, wanted)


def test_groups_are_of_256_where_none_is_said(tmp_path: Path) -> None:
    write_int8(tmp_path / "wan.safetensors", WHOLE, group=256)
    stored = load_file(tmp_path / "wan.safetensors")
    words = said({"format": "int8_tensorwise", "convrot": True})
    stored |= {name: words.clone() for name in stored if name.endswith("comfy_quant")}
    save_file(stored, tmp_path / "wan.safetensors")
    assert found_in(tmp_path).weights[f"{ONE}.weight"].layout == "INT8_CONVROT_256"


@pytest.mark.parametrize("suffix", [".weight_scale", ".scale_weight"])
def test_integers_with_a_scale_and_no_words_are_taken_as_they_are(tmp_path: Path, suffix: str) -> None:
    """As LightX2V's converter and older ComfyUI packs write Wan: (out, 1) float32 beside each weight."""
    expected = write_int8(tmp_path / "wan.safetensors", WHOLE)
    stored = {
        name.replace(".weight_scale", suffix): value
        for name, value in load_file(tmp_path / "wan.safetensors").items()
        if not name.endswith("comfy_quant")
    }
    save_file(stored, tmp_path / "wan.safetensors")
    model = load(tmp_path, "fp32")
    assert all(torch.equal(model.get_parameter(name).data, expected[name]) for name in LINEARS)
    assert found_in(tmp_path).quantization == "int8"
    assert len(kept(load(tmp_path))) == len(LINEARS)


def write_parts(
    folder: Path, stored: dict[str, Tensor], metadata: dict[str, dict[str, str]], *, moved: str = "-"
) -> None:
    """A file for each block and one for the rest, as LightX2V's converter writes them, with an index.

    What begins with `moved` lies in the one for the rest.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in stored.items():
        block = name.split(".")[1] if name.startswith("blocks.") and not name.startswith(moved) else ""
        parts.setdefault(f"block_{block}.safetensors" if block else "non_block.safetensors", {})[name] = value
    folder.mkdir()
    for file, tensors in parts.items():
        save_file(tensors, folder / file, metadata.get(file, {}))
    places = {name: file for file, tensors in parts.items() for name in tensors}
    index = {"metadata": {}, "weight_map": places}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize("group", [0, 64])
def test_a_folder_of_blocks_says_it_in_each_part(tmp_path: Path, group: int) -> None:
    """What the last part says is not all: a rotated layer whose words are lost would be taken as it lies."""
    expected = write_int8(tmp_path / "wan.safetensors", WHOLE, group=group)
    wanted = load(tmp_path, "fp32")
    stored = {k: v for k, v in load_file(tmp_path / "wan.safetensors").items() if not k.endswith("comfy_quant")}
    words = {
        f"block_{block}.safetensors": json.dumps(
            {"layers": {n.removesuffix(".weight"): integer_format(group) for n in LINEARS if f"blocks.{block}." in n}}
        )
        for block in (0, 1)
    }
    told = {file: {"_quantization_metadata": text} for file, text in words.items()}
    write_parts(tmp_path / "Wan", stored, told if group else {})
    asked = ModelPlan(base_file="diffusion_models:Wan", base_precision="fp32")
    found = materialize(asked, roots(tmp_path), None)
    assert found_of(found) == found_of(wanted)
    assert len(expected) == len(LINEARS)
    if group:
        told["block_0.safetensors"] = {"_quantization_metadata": "{"}
        write_parts(tmp_path / "Odd", stored, told)
        with pytest.raises(CheckpointError, match=r"^Odd has unreadable metadata on its quantization"):
            inspect_model(ModelPlan(base_file="diffusion_models:Odd"), roots(tmp_path))


@pytest.mark.parametrize("form", ["int8, a scale per row", "convrot codes of levels", "mxfp8"])
def test_what_belongs_to_a_weight_may_lie_in_another_part(tmp_path: Path, form: str) -> None:
    """A model is cut into parts by their sizes, so behind any tensor."""
    FORMATS[form](tmp_path / "wan.safetensors")
    wanted = load(tmp_path).get_submodule(ONE)
    write_parts(tmp_path / "Wan", load_file(tmp_path / "wan.safetensors"), {}, moved=f"{ONE}.weight_")
    found = materialize(ModelPlan(base_file="diffusion_models:Wan"), roots(tmp_path), None).get_submodule(ONE)
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(found(x), wanted(x))


def found_of(model: WanTransformer) -> dict[str, list[float]]:
    return {name: model.get_parameter(name).flatten()[:64].tolist() for name in LINEARS}


# ---- packed -------------------------------------------------------------------------------------

IN_CI = ("int8, a scale per row", "int8 convrot 64", "convrot_w4a4", "convrot codes of levels", "mxfp8")
FORMS = [form if form in IN_CI else pytest.param(form, marks=pytest.mark.soak) for form in FORMATS]


@pytest.mark.parametrize("form", FORMS)
def test_linears_of_the_blocks_stay_packed_and_compute_as_the_unpacked_ones(tmp_path: Path, form: str) -> None:
    FORMATS[form](tmp_path / "wan.safetensors")
    stored, plain = load_file(tmp_path / "wan.safetensors"), load(tmp_path, "bf16")
    layers, sources = kept(load(tmp_path)), found_in(tmp_path).weights
    assert {f"{name}.weight" for name in layers} == set(LINEARS)
    assert not kept(plain)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    for name, layer in layers.items():
        packed, scale = stored[f"{name}.weight"], layer.scale
        if "codes" in form:  # their scales follow them
            packed = torch.cat([packed.view(torch.uint8), stored[f"{name}.weight_s_rel"].view(torch.uint8)], dim=1)
        assert layer.weight.dtype == packed.dtype
        assert torch.equal(layer.weight.view(torch.uint8), packed.view(torch.uint8))
        assert scale is not None
        whole = [packed, scale, *([] if layer.whole_scale is None else [layer.whole_scale])]
        assert len(whole) == (3 if "levels" in form else 2)
        assert sources[f"{name}.weight"].stored_bytes == sum(tensor.nbytes for tensor in whole)
        x = torch.randn(2, 3, layer.in_features, generator=torch.Generator().manual_seed(1)).bfloat16()
        inputs = [x.clone().requires_grad_() for _ in "ab"]
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = layer(inputs[0])
        assert sorted(t.nbytes for t in saved) == sorted(t.nbytes for t in whole)
        outputs = [output, plain.get_submodule(name)(inputs[1])]
        assert torch.equal(*outputs)
        for output in outputs:
            output.square().sum().backward()
        assert torch.equal(inputs[0].grad, inputs[1].grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_dora_asks_of_a_packed_weight_is_that_of_its_values(tmp_path: Path, form: str) -> None:
    FORMATS[form](tmp_path / "wan.safetensors")
    layer, values = kept(load(tmp_path))[ONE], load(tmp_path, "fp32").get_parameter(f"{ONE}.weight").data
    assert torch.equal(row_squares(layer), values.square().sum(1))
    rows = torch.randn(4, 256, generator=torch.Generator().manual_seed(6))
    found = product_without_bias(layer, rows)
    assert torch.equal(found, functional.linear(rows.to(found.dtype), values.to(found.dtype)))


@pytest.mark.parametrize("shape", [(128, 128), (144, 352), (384, 1536)], ids=str)
def test_every_exponent_of_mxfp8_is_the_librarys(shape: tuple[int, int]) -> None:
    """Random exponents in tiles that are not full too; that of a block of zeros makes zeros of anything."""
    (library,) = kitchen("dequantize_mxfp8")
    draws = torch.Generator().manual_seed(4)
    values = torch.randn(shape, generator=draws).to(torch.float8_e4m3fn)
    high, wide = tiled_shape(shape[0], shape[1] // 32)
    tiled = torch.randint(0, 255, (high, wide), generator=draws, dtype=torch.uint8)
    tiled[:, ::3] = 0
    scales = block_scales_in_rows(tiled, shape[0], shape[1] // 32)
    for dtype in (torch.float32, torch.bfloat16):
        expected = library(values, tiled.view(torch.float8_e8m0fnu), dtype)
        assert torch.equal(dequantise(values, scales, dtype, layout="MXFP8"), expected)


@pytest.mark.parametrize("bits", [4, 6])
def test_a_scale_of_codes_that_is_no_number_is_found_while_loading(tmp_path: Path, bits: int) -> None:
    write_codes(tmp_path / "wan.safetensors", WHOLE, bits=bits)
    stored = load_file(tmp_path / "wan.safetensors")
    stored[f"{ONE}.weight_s_rel"].view(torch.uint8)[3, 5] = 0x7F
    save_file(stored, tmp_path / "wan.safetensors")
    with pytest.raises(CheckpointError, match=rf"256 of 131072 values of {ONE}\.weight are not finite"):
        load(tmp_path)


def test_zeros_of_mxfp8_are_zeros_and_its_largest_exponent_is_no_number(tmp_path: Path) -> None:
    whole = dict(WHOLE)
    whole[f"{ONE}.weight"] = WHOLE[f"{ONE}.weight"].clone()
    whole[f"{ONE}.weight"][:, :64] = 0
    write_mxfp8(tmp_path / "wan.safetensors", whole)
    assert not kept(load(tmp_path))[ONE](torch.eye(256)[:64])[0].sub(whole[f"{ONE}.bias"].bfloat16()).any()
    stored = load_file(tmp_path / "wan.safetensors")
    stored[f"{ONE}.weight_scale"].view(torch.uint8)[0, 0] = 255
    save_file(stored, tmp_path / "wan.safetensors")
    with pytest.raises(CheckpointError, match=rf"32 of 131072 values of {ONE}\.weight are not finite"):
        load(tmp_path)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_model_whose_embeddings_are_packed_too_is_known_by_its_values(tmp_path: Path, bits: int) -> None:
    """Their width tells the sizes of the model, and of numbers of 4 bits a file holds half of it."""
    write_int8(tmp_path / "wan.safetensors", WHOLE, group=256, bits=bits)
    stored = load_file(tmp_path / "wan.safetensors")
    for name in ("text_embedding.0", "time_embedding.0"):
        values, scale, _ = integers(WHOLE[f"{name}.weight"], group=256, bits=bits)
        words = said(integer_format(256, bits))
        stored |= {f"{name}.weight": values, f"{name}.weight_scale": scale, f"{name}.comfy_quant": words}
    save_file(stored, tmp_path / "wan.safetensors")
    assert found_in(tmp_path).variant.shape == SHAPE
    found = load(tmp_path).get_parameter("text_embedding.0.weight").data
    assert (
        float((found.float() - WHOLE["text_embedding.0.weight"]).norm() / found.float().norm())
        < {8: 0.01, 4: 0.2}[bits]
    )


def test_a_model_whose_first_block_was_left_in_float32_stays_packed_on_a_gpu_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not a float32 file, which `resolved` would unpack to bf16; a 14B of integers would double."""
    write_int8(tmp_path / "wan.safetensors", WHOLE, group=64)
    stored = load_file(tmp_path / "wan.safetensors")
    beside = (".weight_scale", ".comfy_quant")
    stored = {k: v for k, v in stored.items() if not (k.startswith("blocks.0.") and k.endswith(beside))}
    stored |= {name: WHOLE[name].float() for name in LINEARS if name.startswith("blocks.0.")}
    save_file(stored, tmp_path / "wan.safetensors")
    found = found_in(tmp_path)
    assert found.compute_dtype == torch.bfloat16
    assert len(kept(load(tmp_path))) == len(LINEARS) // 2
    put_in(monkeypatch, AMPERE)
    assert resolved(plan(), [found]).base_precision == "as in file"


def test_other_linears_and_convolutions_of_integers_are_unpacked_once(tmp_path: Path) -> None:
    write_int8(tmp_path / "wan.safetensors", WHOLE)
    stored = load_file(tmp_path / "wan.safetensors")
    for name in ("head.head", "patch_embedding"):
        weight = WHOLE[f"{name}.weight"]
        scale = weight.abs().amax() / 127
        stored[f"{name}.weight"] = (weight / scale).round().to(torch.int8)
        stored[f"{name}.weight_scale"] = scale
    save_file(stored, tmp_path / "wan.safetensors")
    model = load(tmp_path)
    for name in ("head.head", "patch_embedding"):
        found = model.get_parameter(f"{name}.weight").data
        exact = stored[f"{name}.weight"].float() * stored[f"{name}.weight_scale"]
        assert found.is_floating_point()
        assert torch.equal(found, exact.to(found.dtype))


def test_the_product_of_a_rotated_weight_is_that_of_rotated_rows() -> None:
    """Why a rotation costs a file nothing: it goes from the weight to what is multiplied with it."""
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(2)).double()
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(3)).double()
    layout = integer_layout(8, 64)
    turned = functional.linear(rotated(x.float(), layout).double(), rotated(weight.float(), layout).double())
    torch.testing.assert_close(turned, functional.linear(x, weight), rtol=1e-5, atol=1e-5)
