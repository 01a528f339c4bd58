"""The memory prediction against what a step really takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.forked import RunScript
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import Numerics, WanShape
from wan_core.placement import MemoryEstimate, estimate_memory, memory
from wan_core.placement.memory import StepShape, _BlockTrace, _trace_block
from wan_core.placement.plan import split_blocks
from wan_core.precision import QuantizeConfig, quantize_block

SCRIPT = Path(__file__).parents[2] / "support" / "measure_memory.py"
WAN_14B = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
GIB = 2**30


@pytest.mark.lasts(8)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("mode", ["checkpointed", pytest.param("plain", marks=pytest.mark.soak)])
def test_the_predicted_peak_is_within_25_percent_of_the_measured_one(
    run_script: RunScript, tmp_path: Path, mode: str
) -> None:
    done = run_script(SCRIPT, str(tmp_path), mode)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / mode / "result.json").read_text())
    print(mode, result)  # noqa: T201
    assert result["code"] == 0
    assert 0.75 <= result["ratio"] <= 1.25


def estimate(devices: int, checkpointed: bool) -> MemoryEstimate:
    places = [torch.device("cuda", i) for i in range(devices)]
    return estimate_memory(
        WAN_14B,
        Numerics(compute=torch.bfloat16),
        split_blocks(places, 40, "midpoint"),
        StepShape(batch_size=1, latent_frames=13, latent_height=60, latent_width=104),
        storage_bytes=lambda _name, p: p.numel() * 2,
        adapt=lambda block: inject_lora(block, LoraConfig(rank=32), seed=0) and None,
        checkpoint_blocks=checkpointed,
    )


def test_14b_weights_and_adapters_are_counted_exactly() -> None:
    found = estimate(1, checkpointed=True).devices["cuda:0"]
    assert found.weights == 14_288_491_584 * 2
    assert found.adapters == 153_354_240 * 16
    # 40 block inputs of 20,280 tokens in float32, as the default policy keeps the residual stream.
    assert found.kept > 40 * 20_280 * 5120 * 4


@pytest.mark.lasts(1)
def test_a_split_halves_what_belongs_to_blocks() -> None:
    one = estimate(1, checkpointed=True).devices["cuda:0"]
    first, second = estimate(2, checkpointed=True).devices.values()
    assert first.adapters == second.adapters == one.adapters // 2
    assert first.weights + second.weights == one.weights
    assert first.weights > second.weights
    assert second.peak < 0.6 * one.peak


def test_checkpointing_saves_more_than_half_of_the_activations() -> None:
    kept = estimate(1, checkpointed=True).devices["cuda:0"]
    plain = estimate(1, checkpointed=False).devices["cuda:0"]
    assert kept.kept + kept.working < 0.5 * (plain.kept + plain.working)


@pytest.mark.lasts(1)
def test_image_tokens_and_vace_layers_are_counted() -> None:
    """Per image-to-video block k_img, v_img and what they keep; VACE's eight layers lie on the first device."""

    def predicted(**changes: object) -> MemoryEstimate:
        shape = WanShape(**WAN_14B.to_dict() | changes)  # type: ignore[arg-type]
        return estimate_memory(
            shape,
            Numerics(compute=torch.bfloat16),
            split_blocks([torch.device("cuda", 0), torch.device("cuda", 1)], 40, "midpoint"),
            StepShape(batch_size=1, latent_frames=5, latent_height=30, latent_width=52),
            storage_bytes=lambda _name, parameter: 2 * parameter.numel(),
            adapt=lambda block: inject_lora(block, LoraConfig(rank=4), seed=0),
            checkpoint_blocks=True,
        )

    plain, images, vace = (
        predicted(), predicted(in_channels=36, image_dim=1280), predicted(vace_layers=tuple(range(0, 40, 5)))
    )  # fmt: skip
    first, second = "cuda:0", "cuda:1"
    per_block = 2 * (2 * 5120 * 5120 + 3 * 5120)  # bytes: two linears with bias, one norm
    assert images.devices[second].weights - plain.devices[second].weights == 20 * per_block
    assert images.devices[second].working > plain.devices[second].working
    assert vace.devices[second] == plain.devices[second]
    assert vace.devices[first].adapters == plain.devices[first].adapters * 28 // 20
    assert vace.devices[first].kept > plain.devices[first].kept


SMALL = WanShape(dim=256, ffn_dim=512, num_heads=2, num_layers=1)
LINEAR_VALUES = 8 * 256 * 256 + 2 * 256 * 512


def traced(unpacked: Callable[[str], bool] | None = None, *, checkpointed: bool) -> _BlockTrace:
    return _trace_block(
        SMALL,
        Numerics(compute=torch.bfloat16, residual=torch.float32),
        StepShape(batch_size=1, latent_frames=8, latent_height=32, latent_width=32),
        lambda block: inject_lora(block, LoraConfig(rank=4), seed=0) and None,
        unpacked,
        checkpoint_blocks=checkpointed,
    )


@pytest.mark.filterwarnings("ignore")  # torchao warns about CUDA on every CPU
@pytest.mark.parametrize("checkpointed", [True, False])
def test_an_eight_bit_base_is_predicted_to_need_what_torchaos_own_linears_need(
    monkeypatch: pytest.MonkeyPatch, checkpointed: bool
) -> None:
    """They unpack above autograd, which keeps a bfloat16 copy of each weight it needs for the way back."""
    config = QuantizeConfig()
    predicted = traced(config.selects, checkpointed=checkpointed)

    def quantize(holder: Any, _unpacked: object) -> None:
        quantize_block(holder.blocks[0], "blocks.0", config)

    monkeypatch.setattr(memory, "_unpack_in_each_pass", quantize)
    real = traced(config.selects, checkpointed=checkpointed)
    resting = LINEAR_VALUES + 4 * (9 * 256 + 512)  # bytes inside the weights, which the meter takes for new ones
    assert real.peak - predicted.peak == pytest.approx(resting, rel=0.02)
    # Without a copy for k and v of cross-attention: nothing flows back into the text.
    copies = 2 * (LINEAR_VALUES - 2 * 256 * 256)
    if not checkpointed:
        assert predicted.saved - traced(checkpointed=False).saved == pytest.approx(copies, rel=0.02)


def test_a_checkpointed_block_is_traced_as_it_is_recomputed() -> None:
    """Under checkpoint nothing is made again instead of kept, so the recompute holds more than a plain block keeps."""
    assert traced(checkpointed=True).peak > 1.03 * traced(checkpointed=False).peak
