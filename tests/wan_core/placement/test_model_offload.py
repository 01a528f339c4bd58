"""A model is offloaded while a preview is decoded: its weights leave the GPU and are loaded again, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import stand_in_card
from tests.support.forked import RunScript
from tests.support.tiny_run import make_roots
from wan_core.config import settings_of
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig
from wan_core.placement.model_offload import offloaded_model
from wan_core.precision import QuantizeConfig

SCRIPT = Path(__file__).parents[2] / "support" / "room_on_cards.py"
SCHEMES = settings_of(QuantizeConfig)["scheme"].choices
STORED = ("fp8_e4m3fn", "int8", "fp8", "NVFP4", "MXFP8", "INT8_CONVROT_64", "Q8_0", "none")
"""how the base rests: 8 bits made here, in two schemes; a linear as its file has it, in five; bfloat16"""


@pytest.fixture(scope="module")
def told(run_script: RunScript) -> dict[str, Any]:
    """Bytes by device of a model split over two stand-in cards, counted inside quantized weights."""
    if lacking := stand_in_card.missing():
        pytest.skip(lacking)
    done = run_script(SCRIPT)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("stored", STORED)
def test_every_frozen_byte_leaves_the_devices_and_comes_home(told: dict[str, Any], stored: str) -> None:
    found = told[stored]
    frozen = sum(found["before"].values()) - sum(found["trained"].values())
    assert found["away"] == {"cpu": frozen, **found["trained"]}
    assert found["after"] == found["before"]
    assert found["same"], "a forward pass computes the same"
    assert found["trained_stay"], "an optimizer holds them"
    assert found["released"] == 1
    assert found["said"] == ""


def test_quantized_weights_leave_with_their_values_and_not_only_their_shells(told: dict[str, Any]) -> None:
    """By hand: two blocks of ten linears with 393,216 values, two bytes each or one, and a float32 scale per row."""
    eight, sixteen = (sum(told[stored]["before"].values()) for stored in ("fp8_e4m3fn", "none"))
    linears = 2 * (8 * 128 * 128 + 2 * 128 * 256)
    rows = 2 * (8 * 128 + 128 + 256)
    assert sixteen - eight == linears - 4 * rows


def test_of_swapped_blocks_the_buffers_leave_too_and_come_back_with_the_next_pass(told: dict[str, Any]) -> None:
    found = told["swapped"]
    assert found["on_devices"] == found["trained"]
    assert found["same"]
    after, meanwhile, again = found["buffers"]
    assert after == again > 4 * 8 * 128 * 128, "two for each of two devices, of eight square linears and more"
    assert meanwhile == 0


def test_a_device_that_was_full_for_a_moment_is_tried_again(told: dict[str, Any]) -> None:
    assert told["full once"]["after"] == told["full once"]["before"]
    assert told["full once"]["said"] == ""


def test_a_device_that_stays_full_ends_in_one_sentence(told: dict[str, Any]) -> None:
    said = told["full for good"]["said"]
    assert said.startswith(
        "OutOfMemory: The model was offloaded for a preview and does not fit again on cuda:0, cuda:1"
    )
    assert "press Run again" in said
    assert "\n" not in said


def test_a_host_without_room_leaves_everything_where_it_was(told: dict[str, Any]) -> None:
    assert told["host full"]["away"] is None
    assert told["host full"]["after"] == told["host full"]["before"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
@pytest.mark.parametrize("scheme", [*SCHEMES, ""])
def test_on_a_gpu_the_memory_is_free_meanwhile_and_no_value_changes(tmp_path: Path, scheme: str) -> None:
    quantize = QuantizeConfig(scheme=scheme) if scheme else None
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", base_precision="bf16", quantize=quantize)
    model = materialize(plan, make_roots(tmp_path)[0], LoraConfig(rank=4))
    inputs = (torch.ones(1, 16, 3, 8, 8), torch.tensor([700.0]), torch.ones(1, 512, 4096))
    with torch.no_grad():
        expected = model(*(tensor.cuda() for tensor in inputs))
    before = torch.cuda.memory_allocated()
    frozen = sum(t.nbytes for t in (*model.parameters(), *model.buffers()) if not t.requires_grad)
    with offloaded_model(model):  # what stays is the adapters, and the workspaces of torch's libraries
        assert before - torch.cuda.memory_allocated() >= frozen - (1 << 18)
    assert torch.cuda.memory_allocated() == pytest.approx(before, abs=1 << 20)
    with torch.no_grad():
        assert torch.equal(model(*(tensor.cuda() for tensor in inputs)), expected)
