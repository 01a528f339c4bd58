"""Integer and mxfp8 files that lack a part, have a wrong one or are of another kind: a sentence before any weight."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.comfy_formats import FORMATS, ONE, found_in
from tests.support.containers import LINEARS, WHOLE, cast, integer_format, said, write_mxfp8
from wan_core.errors import CheckpointError

ROTATED = {"format": "int8_tensorwise", "convrot": True}
CODES = {"format": "asym_w4a8_int8"}
NO_GROUPS = (
    r"rows of blocks\.0\.ffn\.0\.weight are stated to be rotated in groups of {}\. Groups .* row, here of {}\. Down"
)


@pytest.mark.parametrize(
    ("form", "change", "words"),
    [
        ("int8, a scale per row", {"weight_scale": None}, r"stores \S+ffn\.0\.weight as I8 without the scale that"),
        ("int8 convrot 64", {"weight_scale": None}, r"stores \S+ as INT8_CONVROT_64 without the scale that belongs"),
        ("convrot_w4a4", {"weight_scale": None}, r"stores \S+ as INT4_CONVROT_256 without the scale that belongs"),
        ("mxfp8", {"weight_scale": None}, r"stores \S+ as MXFP8 without the scale that belongs to it\. Download"),
        ("int8, a scale per row", {"weight_scale": torch.ones(3)}, r"weight_scale \(F32 \[3\]\) fits no weight"),
        ("int8 convrot 64", {"weight_scale": torch.ones(512, 4)}, r"\(F32 \[512, 4\]\) fits no weight"),
        ("int8, a scale per row", {"weight_scale": torch.ones(512, dtype=torch.int32)}, r"\(I32 \[512\]\) fits no"),
        ("mxfp8", {"weight_scale": torch.ones(512, 4, dtype=torch.uint8)}, r"\(U8 \[512, 4\]\) fits no weight"),
        ("mxfp8", {"weight_scale": torch.ones(512, 8)}, r"\(F32 \[512, 8\]\) fits no weight"),
        ("int8 convrot 64", {"comfy_quant": ROTATED | {"convrot_groupsize": 128}}, NO_GROUPS.format(128, 256)),
        ("int8 convrot 64", {"comfy_quant": ROTATED | {"convrot_groupsize": 0}}, NO_GROUPS.format(0, 256)),
        ("int8 convrot 64", {"comfy_quant": ROTATED | {"convrot_groupsize": -4}}, NO_GROUPS.format(-4, 256)),
        ("int8 convrot 64", {"comfy_quant": ROTATED | {"convrot_groupsize": 1024}}, NO_GROUPS.format(1024, 256)),
        ("convrot_w4a4", {"comfy_quant": integer_format(1024, 4)}, NO_GROUPS.format(1024, 256)),
        ("convrot codes", {"weight_s_rel": None}, r"stores \S+ as asym_w4a8_int8 without the scale that belongs to it"),
        ("convrot codes", {"weight_s_channel": None}, r"stores \S+ as asym_w4a8_int8 without the scale that belongs"),
        ("convrot codes", {"weight_scale": torch.ones(512)}, r"weight_scale \(F32 \[512\]\) fits no weight"),
        ("convrot codes", {"weight_s_rel": torch.ones(512, 16)}, r"weight_s_rel \(F32 \[512, 16\]\) fits no weight"),
        ("convrot codes", {"weight_s_rel": torch.ones(512, 9).to(torch.float8_e4m3fn)}, r"\[512, 9\]\) fits no weight"),
        ("convrot codes", {"weight_s_rel": torch.ones(()).to(torch.float8_e4m3fn)}, r"\(F8_E4M3 \[\]\) fits no weight"),
        ("convrot codes", {"weight_s_channel": torch.ones(511)}, r"weight_s_channel \(F32 \[511\]\) fits no weight"),
        ("convrot codes of levels", {"weight_codebook": torch.ones(15)}, r"weight_codebook \(F32 \[15\]\) fits no"),
        ("convrot codes of 6 bits", {"weight_codebook": torch.ones(16)}, r"weight_codebook \(F32 \[16\]\) fits no"),
        ("convrot codes", {"comfy_quant": CODES | {"convrot_groupsize": 1024}}, NO_GROUPS.format(1024, 256)),
        ("convrot codes", {"comfy_quant": CODES | {"group_size": 32}}, r"as asym_w4a8_int8; training on that is not"),
        ("convrot codes", {"comfy_quant": {"format": "mxfp8"}}, r"as mxfp8; training on that is not supported"),
        ("int8 convrot 64", {"comfy_quant": ROTATED | {"convrot_groupsize": "many"}}, "has unreadable metadata"),
        ("int8 convrot 64", {"comfy_quant": ROTATED | {"convrot_groupsize": None}}, "has unreadable metadata"),
        ("int8, a scale per row", {"comfy_quant": {"format": "mxfp8"}}, r"blocks\.0\.ffn\.0 as mxfp8; training on"),
        ("mxfp8", {"comfy_quant": {"format": "int8_tensorwise"}}, r"as int8_tensorwise; training on that is not"),
        ("mxfp8", {"comfy_quant": {"format": "convrot_w4a4"}}, r"as convrot_w4a4; training on that is not supported"),
        ("int8, a scale per row", {"comfy_quant": {"format": "int8_blockwise"}}, r"Choose an fp8, int8, bf16 or fp16"),
        ("int8, a scale per row", {"weight": torch.ones(512, 128, dtype=torch.int8)}, r"has shape \(512, 128\)"),
    ],
)  # fmt: skip
def test_a_file_that_lacks_a_part_or_has_a_wrong_one_is_refused(
    tmp_path: Path, form: str, change: dict[str, Any], words: str
) -> None:
    FORMATS[form](tmp_path / "wan.safetensors")
    stored = load_file(tmp_path / "wan.safetensors")
    ((leaf, value),) = change.items()
    if value is None:
        del stored[f"{ONE}.{leaf}"]
    else:
        stored[f"{ONE}.{leaf}"] = said(value) if isinstance(value, dict) else value
    save_file(stored, tmp_path / "wan.safetensors")
    with pytest.raises(CheckpointError, match=rf"^wan\.safetensors.*{words}"):
        found_in(tmp_path)


@pytest.mark.parametrize(
    ("beside", "instead", "how"),
    [
        ([".qweight", ".wscales"], True, "qweight (AWQ, GPTQ, Nunchaku)"),
        ([".weight._data", ".weight._scale", ".input_scale"], True, "quanto"),
        ([".SCB", ".weight_format"], False, "bitsandbytes int8"),
        ([".weight.absmax", ".weight.quant_map"], False, "bitsandbytes 4-bit"),
        ([".weight_zero_point"], False, "int8 + zero_point"),
        ([".weight_correction"], False, "asym_w4a8_int8 + correction"),
        ([".pre_quant_scale"], False, "nvfp4 + pre_quant_scale"),
        ([".weight_scale_inv"], False, "fp8 + weight_scale_inv"),
    ],
)
def test_layers_of_other_programs_are_named(tmp_path: Path, beside: list[str], instead: bool, how: str) -> None:
    """Downloading them again, or the model they were made from, would be no advice."""
    stored = cast(WHOLE, torch.bfloat16)
    for layer in (name.removesuffix(".weight") for name in LINEARS):
        if instead:
            del stored[f"{layer}.weight"]
        else:
            stored[f"{layer}.weight"] = torch.ones(WHOLE[f"{layer}.weight"].shape, dtype=torch.int8)
        stored |= {f"{layer}{suffix}": torch.ones(4) for suffix in beside}
    save_file(stored, tmp_path / "wan.safetensors")
    words = rf"stores blocks\.0\.\S+ as {re.escape(how)}; training on that is not supported\. Choose an fp8, int8"
    with pytest.raises(CheckpointError, match=words):
        found_in(tmp_path)


def test_rows_that_are_no_whole_groups_are_refused(tmp_path: Path) -> None:
    """320 values in groups of 256; no Wan has such rows, but a file may say so."""
    save_file(cast(WHOLE, torch.bfloat16), tmp_path / "wan.safetensors")
    stored = load_file(tmp_path / "wan.safetensors")
    stored |= {
        f"{ONE}.weight": torch.ones(512, 320, dtype=torch.int8),
        f"{ONE}.weight_scale": torch.ones(512, 1),
        f"{ONE}.comfy_quant": said(ROTATED | {"convrot_groupsize": 256}),
    }
    save_file(stored, tmp_path / "wan.safetensors")
    with pytest.raises(CheckpointError, match=NO_GROUPS.format(256, 320)):
        found_in(tmp_path)


def test_words_that_nest_without_end_are_no_words(tmp_path: Path) -> None:
    deep = {"_quantization_metadata": '{"layers": ' + "[" * 100_000}
    save_file(cast(WHOLE, torch.bfloat16), tmp_path / "wan.safetensors", deep)
    with pytest.raises(CheckpointError, match="has unreadable metadata on its quantization"):
        found_in(tmp_path)


def test_a_torch_without_such_exponents_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mxfp8(tmp_path / "wan.safetensors", WHOLE)
    found_in(tmp_path)
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    with pytest.raises(CheckpointError, match=r"^wan\.safetensors is an mxfp8 file, which takes torch 2\.7 or newer"):
        found_in(tmp_path)
