"""What a tuner keeps beside its trained values, as PEFT's code keeps it, and in a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.tiny_run import PLAN, TINY, make_run
from wan_core.footprint import job_shape
from wan_core.lora import LoraConfig, check_targets, tuner_bytes
from wan_core.lora.tuners import tuned
from wan_core.model import model_without_values
from wan_core.placement import JobShape, Recomputing, StepShape, estimate_memory
from wan_core.placement.storage_meter import StorageMeter

STEP = StepShape(batch_size=1, latent_frames=2, latent_height=4, latent_width=4)


def config(tuner: str, args: str = "") -> LoraConfig:
    return LoraConfig(kind="peft", peft_tuner=tuner, peft_args=args)


def measured(asked: LoraConfig, wide: int, tall: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Bytes of a layer with two rows: made once, kept after its forward pass, and the peak of both passes."""
    name, base = "blocks.0.self_attn.q", nn.Linear(wide, tall, bias=False, dtype=dtype).requires_grad_(False)
    layer = tuned({name: base}, asked, 0)[name]
    x = torch.randn(2, wide, dtype=dtype, requires_grad=True)
    tuner = layer.adapter.tuner
    with StorageMeter([x, base.weight, *tuner.parameters(), *tuner.buffers()]) as meter:
        y = layer(x)
        kept = meter.live
        y.float().sum().backward()
    return sum(one.nbytes for one in tuner.buffers()), kept, meter.peak


@pytest.mark.parametrize(("wide", "tall"), [(192, 192), (192, 384), (384, 192)])
@pytest.mark.parametrize(
    ("tuner", "args"),
    [
        ("HRA", "r=4"),
        ("HRA", ""),
        ("BOFT", "boft_block_size=4"),
    ],
)
def test_what_a_tuner_that_turns_the_weight_keeps_is_counted(tuner: str, args: str, wide: int, tall: int) -> None:
    counted = tuner_bytes(config(tuner, args), wide, tall)
    for dtype in (torch.bfloat16, torch.float32):
        fixed, kept, peak = measured(config(tuner, args), wide, tall, dtype)
        assert counted.fixed == fixed
        assert 0.7 * counted.kept < kept < 1.1 * counted.kept
        assert peak < 1.1 * (counted.kept + counted.passing)


@pytest.mark.parametrize("tuner", ["RANDLORA", "LOHA", "FOURIERFT", "HIRA", "WAVEFT"])
def test_other_tuners_keep_less_than_is_counted(tuner: str) -> None:
    counted = tuner_bytes(config(tuner), 192, 384)
    _, kept, peak = measured(config(tuner), 192, 384, torch.bfloat16)
    assert kept < 1.1 * counted.kept
    assert peak < 1.1 * (counted.kept + counted.passing)


def test_a_plan_counts_one_block_and_one_layer_or_all_blocks_without_recomputing(tmp_path: Path) -> None:
    run = make_run(tmp_path, shape=replace(TINY, num_layers=3))

    def step(lora: LoraConfig, *, blocks: bool = True) -> int:
        shape: JobShape = job_shape(PLAN, run.roots, lora, recomputing=Recomputing(blocks=blocks))
        return estimate_memory(shape, STEP).devices["cpu"].phases["step"]

    hra = config("HRA", "r=4")
    linears = check_targets(model_without_values(TINY), hra)
    block = [one for name, one in linears.items() if name.startswith("blocks.0.")]
    layers = [tuner_bytes(hra, one.in_features, one.out_features) for one in block]
    kept, widest = sum(one.kept for one in layers), max(one.passing for one in layers)
    for blocks, count in ((True, 1), (False, 3)):
        assert step(hra, blocks=blocks) - step(hra.planned, blocks=blocks) == count * kept + widest
