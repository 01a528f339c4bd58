"""A model file without values: its header is read as any, its weights are drawn where they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from measure import SHAPES, write_base

from wan_core.checkpoint import WeightReader, locate_weights, read_checkpoint, write_drawn
from wan_core.errors import CheckpointError
from wan_core.files import Roots
from wan_core.load import ModelPlan, materialize
from wan_core.precision import QuantizeConfig, QuantizedLinear

CPU = torch.device("cpu")


def test_a_weight_is_the_same_each_time_and_in_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    file = write_drawn(tmp_path / "base", {"blocks.0.ffn.0.weight": (512, 256), "blocks.0.norm3.weight": (256,)})
    assert (file.name, file.stat().st_size < 400) == ("base.drawn", True)
    weights = locate_weights(read_checkpoint(file)).weights
    with WeightReader() as reader:
        matrix, again = (reader.load(weights["blocks.0.ffn.0.weight"], torch.bfloat16, CPU) for _ in range(2))
        norm = reader.load(weights["blocks.0.norm3.weight"], torch.float32, CPU)
    assert torch.equal(matrix, again)
    assert float(matrix.float().std()) == pytest.approx(256**-0.5, rel=0.02)
    assert (norm.dtype, round(float(norm.mean()), 1)) == (torch.float32, 1.0)


def test_a_model_is_built_and_quantized_without_a_file_of_values(tmp_path: Path) -> None:
    file = write_base(tmp_path / "base", SHAPES["tiny"])
    plan = ModelPlan(base_file=f"diffusion_models:{file.name}", quantize=QuantizeConfig(scheme="fp8_e4m3fn"))
    model = materialize(plan, Roots({"diffusion_models": (str(tmp_path),)}), None)
    linear = model.get_submodule("blocks.0.ffn.0")
    assert isinstance(linear, QuantizedLinear)
    assert linear.weight.dtype == torch.float8_e4m3fn
    assert all(bool(value.float().isfinite().all()) for value in model.state_dict().values())


def test_a_file_with_another_name_must_have_its_values(tmp_path: Path) -> None:
    file = write_base(tmp_path / "base", SHAPES["tiny"])
    for wrong in (tmp_path / "base.safetensors", tmp_path / "more.drawn"):
        wrong.write_bytes(file.read_bytes() + b"\0" * (wrong.suffix == ".drawn"))
        with pytest.raises(CheckpointError, match="truncated or damaged"):
            read_checkpoint(wrong)
