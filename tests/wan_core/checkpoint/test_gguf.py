"""GGUF files: blocks unpack to the bits of their package, and what is damaged is one sentence."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.containers import LINEARS, SHAPE, WHOLE, assert_loaded, load, roots, write_gguf
from wan_core.checkpoint import dequantise, read_checkpoint, row_values
from wan_core.checkpoint.ggml import BLOCKS
from wan_core.checkpoint.gguf_file import read_gguf_header
from wan_core.errors import CheckpointError, DependencyError
from wan_core.load import ModelPlan, inspect_model
from wan_core.precision import QuantizedLinear

PLAN = ModelPlan(base_file="diffusion_models:wan.gguf")
PACKED = ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("kind", ["F16", "BF16", "IQ4_NL", "Q8_0", "Q4_K"])
def test_gguf_unpacks_to_the_bits_of_the_package(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf", reason="gguf is an extra")
    expected = write_gguf(tmp_path / "wan.gguf", WHOLE, kind)
    assert_loaded(load(tmp_path / "wan.gguf", "fp32"), expected, torch.float32)
    assert_loaded(load(tmp_path / "wan.gguf", "bf16"), expected, torch.bfloat16)
    found = inspect_model(PLAN, roots(tmp_path))
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


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("Q8_0", "Q5_1", "Q4_K") else pytest.param(kind, marks=pytest.mark.soak) for kind in PACKED],
)
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
