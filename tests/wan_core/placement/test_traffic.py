"""What a step asks of a card, counted on short models, is what a count of the complete one says."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from wan_core.load.storage import PackedForm, pack_without_values
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import POLICIES, WanShape
from wan_core.placement import Recomputing, StepShape, step_traffic
from wan_core.placement.short_model import set_up, short_model
from wan_core.placement.traffic import counted_step
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.train import FlopCount

SMALL = WanShape(dim=256, ffn_dim=512, num_heads=2, num_layers=6)
STEP = StepShape(batch_size=1, latent_frames=4, latent_height=30, latent_width=40)
"""1,200 tokens"""
NUMERICS = PrecisionPolicy().numerics(torch.bfloat16)


def adapt(model: nn.Module) -> None:
    inject_lora(model, LoraConfig(rank=4), seed=0)


def in_fp8(model: nn.Module) -> None:
    form = QuantizeConfig().without_values
    sizes = {"ffn.0.weight": (512, 256), "ffn.2.weight": (256, 512)}
    for name in ("self_attn.q", "self_attn.o", "cross_attn.q", "cross_attn.k"):
        sizes[f"{name}.weight"] = (256, 256)
    pack_without_values(model, tuple((name, PackedForm.of("", *form(size), None)) for name, size in sizes.items()))
    adapt(model)


@pytest.mark.parametrize(
    ("how", "chunk_tokens", "adapted", "more"),
    [
        pytest.param(Recomputing(), 0, adapt, {}, marks=pytest.mark.soak),
        pytest.param(Recomputing(), 300, adapt, {}, marks=pytest.mark.soak),
        (Recomputing(policy=POLICIES["attn_output"], unchecked=2), 250, in_fp8, {}),
        (Recomputing(), 200, adapt, {"vace_layers": (0, 2, 3, 5)}),
        pytest.param(Recomputing(), 0, adapt, {"face_layers": (0, 3, 5), "pose_channels": 16}, marks=pytest.mark.soak),
        (Recomputing(), 0, adapt, {"sound_layers": (0, 3, 5), "sound_channels": 64, "sound_depth": 3}),
    ],
    ids=["one chunk", "four chunks", "fp8, five chunks, some kept", "two streams", "face", "sound"],
)
def test_a_model_of_any_depth_and_any_chunks_is_a_straight_line(
    how: Recomputing, chunk_tokens: int, adapted: object, more: dict[str, Any]
) -> None:
    shape = replace(SMALL, **more)
    found = step_traffic(shape, NUMERICS, STEP, adapted, recomputing=how, chunk_tokens=chunk_tokens)  # type: ignore[arg-type]
    model = short_model(shape, NUMERICS, adapted)  # type: ignore[arg-type]
    set_up(model, how, chunk_tokens)
    counted = counted_step(model, STEP)
    for line, whole in ((found.forward, counted.forward), (found.backward, counted.backward)):
        assert +line.kernels == +whole.kernels
        assert line.flop == whole.flop
        assert sum(line.moved.values()) == pytest.approx(sum(whole.moved.values()), rel=1e-3)


def test_flop_are_those_of_the_formula() -> None:
    """`train/flops.py` says what a step needs by formula; here it is counted from what the step does."""
    found = step_traffic(SMALL, NUMERICS, STEP, adapt, recomputing=Recomputing(blocks=False), chunk_tokens=0)
    flops = FlopCount(short_model(SMALL, NUMERICS, adapt)).of(torch.Size((1, 16, 4, 30, 40)), time_rows=1, image_rows=0)
    assert found.forward.flop.total() == pytest.approx(flops.forward, rel=0.002)
    again = found.backward.flop["attention"] / 5  # a flash kernel computes the scores again
    assert found.backward.flop.total() - again == pytest.approx(flops.backward, rel=0.01)


def test_reference_and_pose_tokens_of_scail_are_counted() -> None:
    """One latent frame in front, a quarter of the clip's tokens behind; by the formula, and in memory."""
    driven = replace(SMALL, in_channels=20, image_dim=1280, pose_stream_channels=20, identity_channels=28)
    step = replace(STEP, latent_height=32)
    plain, found = (
        step_traffic(shape, NUMERICS, step, adapt, recomputing=Recomputing(blocks=False), chunk_tokens=0)
        for shape in (replace(SMALL, in_channels=36, image_dim=1280), driven)
    )
    latent = torch.Size((1, 16, 4, 32, 40))
    flops = FlopCount(short_model(driven, NUMERICS, adapt)).of(latent, time_rows=1, image_rows=257)
    assert found.forward.flop.total() == pytest.approx(flops.forward, rel=0.002)
    more = found.forward.flop["attention"] / plain.forward.flop["attention"]
    assert 1.5 < more < 1.5**2, "tokens are 1.5 times as many: self-attention is quadratic, cross-attention is not"


def test_weights_dequantized_once_are_fewer_kernels_and_bytes() -> None:
    once, each = (
        step_traffic(
            *(SMALL, NUMERICS, STEP, in_fp8), recomputing=Recomputing(), chunk_tokens=200, dequantize_once=once
        ).total
        for once in (True, False)
    )
    packed = [3 * SMALL.num_layers * one for one in (2 * 256 * 512 + 256 * 256,)]  # values of the second stage
    assert each.kernels.total() > once.kernels.total()
    assert each.bytes_beside - once.bytes_beside > 5 * packed[0]
    assert each.flop == once.flop


def test_a_count_of_14b_takes_well_under_a_second() -> None:
    wide = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
    step = StepShape(batch_size=1, latent_frames=13, latent_height=60, latent_width=104)
    began = time.process_time()
    found = step_traffic(wide, NUMERICS, step, adapt, recomputing=Recomputing(), chunk_tokens=4096).total
    assert time.process_time() - began < 5, "more than ten times what it takes"
    assert 2890e12 < found.flop.total() < 2905e12
