"""The memory prediction against what a step really takes."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.forked import RunScript
from wan_core.checkpoint import dequantise, row_values, unpacking_bytes
from wan_core.checkpoint.ggml import BLOCKS
from wan_core.checkpoint.integers import INTEGERS
from wan_core.config import settings_of
from wan_core.errors import ConfigError
from wan_core.lora import LoraConfig, adapter_parameters, check_targets, inject_lora
from wan_core.model import (
    POLICIES,
    Numerics,
    Route,
    WanShape,
    WanTransformer,
    block_of,
    draw_passages,
    placed_routes,
    read_routes,
    sizes_behind,
    tokens_by_layer,
)
from wan_core.model.block import WanBlock
from wan_core.model.checkpointing import Checkpointing
from wan_core.placement import JobShape, MemoryEstimate, MemoryMeasures, Recomputing, StepShape, estimate_memory, trace
from wan_core.placement.plan import split_blocks
from wan_core.placement.routed import Layer, traced_routed
from wan_core.placement.short_model import MetaBatch
from wan_core.placement.storage_meter import StorageMeter
from wan_core.placement.trace import How, StepTrace, _trace, traced_step
from wan_core.precision import PrecisionPolicy, QuantizeConfig, quantize_block

SCRIPT = Path(__file__).parents[2] / "support" / "measure_memory.py"
WAN_14B = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
SCHEMES = settings_of(QuantizeConfig)["scheme"].choices
GIB = 2**30


@pytest.mark.lasts(3)
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


@dataclass(frozen=True)
class Adapt:
    """Adapters on every linear; equal ones share what was traced."""

    rank: int

    def __call__(self, model: nn.Module) -> None:
        inject_lora(model, LoraConfig(rank=self.rank), seed=0)


@functools.cache
def adapted_values(shape: WanShape, rank: int) -> dict[str, int]:
    """How many values the adapter of each linear has."""
    with torch.device("meta"):
        linears = check_targets(WanTransformer(shape), LoraConfig(rank=rank))
    return {name: rank * (one.in_features + one.out_features) for name, one in linears.items()}


def job(devices: int = 1, *, checkpointed: bool = True, rank: int = 32, **changes: Any) -> JobShape:
    shape = replace(WAN_14B, **changes)
    places = [torch.device("cuda", i) for i in range(devices)]
    return JobShape(
        shape=shape,
        numerics=PrecisionPolicy().numerics(torch.bfloat16),
        placement=split_blocks(places, 40, "midpoint"),
        storage_bytes=lambda _name, p: p.numel() * 2,
        adapt=Adapt(rank),
        adapter_values=adapted_values(shape, rank),
        recomputing=Recomputing(blocks=checkpointed),
    )


def clips(frames: int) -> StepShape:
    """832x480."""
    return StepShape(batch_size=1, latent_frames=frames, latent_height=60, latent_width=104)


def estimate(devices: int, checkpointed: bool, **measures: Any) -> MemoryEstimate:
    return estimate_memory(job(devices, checkpointed=checkpointed), clips(13), measures=MemoryMeasures(**measures))


def test_14b_weights_and_adapters_are_counted_exactly() -> None:
    found = estimate(1, checkpointed=True).devices["cuda:0"]
    assert found.weights == 14_288_491_584 * 2
    assert found.adapters == 153_354_240 * 16
    # 40 block inputs of 20,280 tokens in float32, as the default policy keeps the residual stream.
    assert found.kept > 40 * 20_280 * 5120 * 4


def test_an_optimizer_in_host_memory_leaves_the_device_and_is_counted_there() -> None:
    usual = job()
    values = sum(usual.adapter_values.values())
    away = replace(usual, optimizer_bytes=0.0, optimizer_host_bytes=16.0)
    here, there = (estimate_memory(one, clips(13)) for one in (usual, away))
    for phase, value in here.devices["cuda:0"].phases.items():
        assert value - there.devices["cuda:0"].phases[phase] == (0 if phase == "load" else 8 * values), phase
    assert there.host - here.host == 16 * values, "a save copies the same"


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


@pytest.mark.lasts(2)
def test_inputs_in_host_memory_are_two_of_forty_on_the_device() -> None:
    """15.5 GiB of them at 49 frames."""
    plain, away = (estimate(1, checkpointed=True, offload_inputs=offload) for offload in (False, True))
    passing = 20_280 * 5120 * 4
    assert away.pinned == 40 * passing
    assert plain.pinned == 0
    here, there = plain.devices["cuda:0"], away.devices["cuda:0"]
    # One remains until its copy is made, and one more is on its way back while a block is walked back.
    assert here.kept - there.kept == 39 * passing
    assert here.step - there.step == 38 * passing
    assert there.phases["evaluate"] == here.phases["evaluate"]


def test_swapped_blocks_are_two_buffers_on_the_device_and_the_rest_of_their_bytes_in_host_memory() -> None:
    block = (14_288_491_584 - outside_blocks()) // 40 * 2
    whole, swapped = (estimate(1, checkpointed=True, blocks_to_swap=count) for count in (0, 30))
    assert swapped.pinned == swapped.streamed["cuda:0"] == 30 * block
    assert whole.devices["cuda:0"].weights - swapped.devices["cuda:0"].weights == 28 * block
    assert whole.devices["cuda:0"].step - swapped.devices["cuda:0"].step == 28 * block
    halves = estimate(2, checkpointed=True, blocks_to_swap=30)
    assert halves.streamed == {"cuda:0": 15 * block, "cuda:1": 15 * block}


def test_swapped_weights_that_ranks_share_count_once_among_them() -> None:
    """Linears with their biases; norms and modulation are each rank's own."""
    dim, ffn = WAN_14B.dim, WAN_14B.ffn_dim
    linears = 30 * 2 * (8 * (dim**2 + dim) + 2 * dim * ffn + dim + ffn)
    measures = MemoryMeasures(offload_inputs=True, blocks_to_swap=30)
    alone, shared = (
        estimate_memory(replace(job(), sharers=sharers), clips(13), measures=measures) for sharers in (1, 4)
    )
    assert alone.host - shared.host == alone.pinned - shared.pinned == linears - linears // 4
    assert sum(alone.streamed.values()) - linears == 2 * 30 * 12 * dim
    assert (shared.devices, shared.streamed, shared.inputs) == (alone.devices, alone.streamed, alone.inputs)


def test_the_tokens_of_a_context_are_counted_as_those_of_the_video_and_are_not_shared_out() -> None:
    """A source as long as the clip: what blocks keep, and what they work in, is that of a clip twice as long."""
    plain, twice = (estimate_memory(job(2), clips(frames)).devices["cuda:1"] for frames in (13, 26))
    step = replace(clips(13), context=((13, 60, 104),))
    found = estimate_memory(job(2), step).devices["cuda:1"]
    assert step.tokens == clips(26).tokens
    assert found.kept == twice.kept == pytest.approx(2 * plain.kept, rel=0.01)
    assert plain.working < found.working <= twice.working
    short = estimate_memory(job(2), replace(clips(13), context=((1, 60, 104),))).devices["cuda:1"]
    assert short.kept - plain.kept == pytest.approx((twice.kept - plain.kept) / 13, rel=0.01)
    for refused in ({"parts": 2}, {"routes": (Route(),)}):
        with pytest.raises(ConfigError, match="cannot be combined with split tokens"):
            estimate_memory(replace(job(1), **refused), step)  # type: ignore[arg-type]


def outside_blocks() -> int:
    with torch.device("meta"):
        return sum(p.numel() for name, p in WanTransformer(WAN_14B).named_parameters() if block_of(name) is None)


@pytest.mark.lasts(1)
def test_image_tokens_and_vace_layers_are_counted() -> None:
    """Per image-to-video block k_img, v_img and what they keep; VACE's eight layers lie on the first device."""
    step = StepShape(batch_size=1, latent_frames=5, latent_height=30, latent_width=52)
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"in_channels": 36, "image_dim": 1280},
        {"vace_layers": tuple(range(0, 40, 5))},
    )
    plain, images, vace = (estimate_memory(job(2, rank=4, **changes), step) for changes in kinds)
    first, second = "cuda:0", "cuda:1"
    per_block = 2 * (2 * 5120 * 5120 + 3 * 5120)  # bytes: two linears with bias, one norm
    assert images.devices[second].weights - plain.devices[second].weights == 20 * per_block
    assert images.devices[second].working > plain.devices[second].working
    assert vace.devices[second] == plain.devices[second]
    assert vace.devices[first].adapters == plain.devices[first].adapters  # the usual targets leave it alone
    assert vace.devices[first].kept > plain.devices[first].kept


@pytest.mark.lasts(2)
@pytest.mark.parametrize(
    ("recomputing", "offloaded", "vace_layers"),
    [
        pytest.param(Recomputing(blocks=False), False, (), marks=pytest.mark.soak),
        pytest.param(Recomputing(), False, (), marks=pytest.mark.soak),
        (Recomputing(), True, (0, 2, 3)),
        (Recomputing(policy=POLICIES["attn_output"], unchecked=3), False, ()),
    ],
    ids=["plain", "checkpointed", "inputs offloaded, two streams", "attention kept, some unchecked"],
)
def test_a_model_of_any_depth_is_a_straight_line_through_short_ones(
    recomputing: Recomputing, offloaded: bool, vace_layers: tuple[int, ...]
) -> None:
    """Drawn from few layers, against the same engine run with all of them: every phase, to the byte."""
    shape = replace(SMALL, num_layers=6, vace_layers=vace_layers)
    numerics, step = PrecisionPolicy().numerics(torch.bfloat16), SMALL_STEP
    how = How(recomputing, offloaded)
    drawn = traced_step(shape, numerics, step, Adapt(4), 6, how)
    assert drawn == _trace(shape, numerics, step, Adapt(4), how).and_blocks(0, 0)


FACED = {"in_channels": 36, "pose_channels": 16, "face_layers": (0, 5)}
SOUNDING = {"sound_channels": 64, "sound_depth": 3, "sound_layers": (0, 5)}


@pytest.mark.parametrize(
    ("recomputing", "attending"),
    [
        pytest.param(Recomputing(), FACED, marks=pytest.mark.soak),
        (Recomputing(), SOUNDING),
        pytest.param(Recomputing(blocks=False), FACED, marks=pytest.mark.soak),
        pytest.param(Recomputing(blocks=False), SOUNDING, marks=pytest.mark.soak),
    ],
    ids=["face, checkpointed", "sound, checkpointed", "face, plain", "sound, plain"],
)
def test_layers_that_see_a_face_or_hear_sound_are_counted(recomputing: Recomputing, attending: dict[str, Any]) -> None:
    """Two layers of ten, drawn from short models of one kind each, against the engine run with all: within 1 %."""
    shape = replace(SMALL, num_layers=10, **attending)
    numerics = PrecisionPolicy().numerics(torch.bfloat16)
    behind = sizes_behind((SMALL_STEP.latent_frames, 80, 80), ("reference", "frames_before"))
    context = behind if "sound_layers" in attending else ()
    step = replace(SMALL_STEP, latent_height=80, latent_width=80, context=context)
    drawn = traced_step(shape, numerics, step, Adapt(4), 10, How(recomputing))
    whole = _trace(shape, numerics, step, Adapt(4), How(recomputing)).and_blocks(0, 0)
    assert drawn.step == pytest.approx(whole.step, rel=0.01)
    assert drawn.kept == pytest.approx(whole.kept, rel=0.02)


@dataclass(frozen=True)
class AdaptSome:
    """Adapters on the linears that `targets` match."""

    targets: tuple[str, ...]

    def __call__(self, model: nn.Module) -> None:
        inject_lora(model, LoraConfig(rank=4, targets=self.targets), seed=0)


@pytest.mark.parametrize(
    ("which", "inside", "recomputing"),
    [
        pytest.param("[0-3]", r"\w+\..*", Recomputing(), marks=pytest.mark.soak),
        pytest.param("[4-7]", r"\w+\..*", Recomputing(blocks=False), marks=pytest.mark.soak),
        ("[1357]", r"\w+\..*", Recomputing(policy=POLICIES["attn_output"], unchecked=3)),
        pytest.param(r"\d", r"self_attn\..*", Recomputing(), marks=pytest.mark.soak),
        pytest.param("5", r"\w+\..*", Recomputing(), marks=pytest.mark.soak),
    ],
    ids=["first half", "last half", "every second", "attention only", "one block"],
)
def test_adapters_on_some_blocks_are_planned_as_they_lie(which: str, inside: str, recomputing: Recomputing) -> None:
    """Put together of short models of one kind of layer each, against the engine run with all eight layers."""
    shape, numerics = replace(SMALL, num_layers=8), PrecisionPolicy().numerics(torch.bfloat16)
    adapt, place = AdaptSome((rf"blocks\.{which}\.{inside}",)), [torch.device("cuda", 0)]
    with torch.device("meta"):
        linears = check_targets(WanTransformer(shape), LoraConfig(rank=4, targets=adapt.targets))
    values = {name: 4 * (one.in_features + one.out_features) for name, one in linears.items()}
    found = estimate_memory(
        replace(
            job(1, num_layers=8, dim=256, ffn_dim=512, num_heads=2),
            numerics=numerics,
            placement=split_blocks(place, 8, "midpoint"),
            adapt=adapt,
            adapter_values=values,
            recomputing=recomputing,
        ),
        SMALL_STEP,
    ).devices["cuda:0"]
    run = _trace(shape, numerics, SMALL_STEP, adapt, How(recomputing)).and_blocks(0, 0)
    assert found.kept == run.kept
    assert found.step - found.weights - found.adapters == pytest.approx(run.step, rel=0.002)


@pytest.mark.lasts(2)
@pytest.mark.parametrize("offloaded", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.soak
def test_clips_of_any_size_are_a_straight_line_through_smaller_ones(
    offloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of tokens takes some operations, and a slip of the finger has thousands of chunks."""
    of, measures = job(devices=2, num_layers=40), MemoryMeasures(offload_inputs=offloaded)
    long = replace(clips(12), batch_size=2)
    whole = estimate_memory(of, long, measures=measures, preview=clips(17))
    sizes: list[int] = []
    real, most = trace._trace_once, 24_000

    def spy(*args: Any) -> StepTrace:
        sizes.append(args[2].batch_size * args[2].tokens)
        return real(*args)

    monkeypatch.setattr(trace, "_trace_once", spy)
    monkeypatch.setattr(trace, "MOST_TOKENS", most)
    found = estimate_memory(of, long, measures=measures, preview=clips(17))
    assert sizes
    assert max(sizes) <= most < long.batch_size * long.tokens
    for name, memory in whole.devices.items():
        assert found.devices[name].kept == pytest.approx(memory.kept, rel=0.01)
        for phase, size in memory.phases.items():
            assert found.devices[name].phases[phase] == pytest.approx(size, rel=0.02), (name, phase)


@pytest.mark.lasts(1)
@pytest.mark.parametrize(
    ("recomputing", "offloaded", "vace_layers", "text"),
    [
        pytest.param(Recomputing(), False, (), "0.5: 2..-2", marks=pytest.mark.soak),
        (Recomputing(policy=POLICIES["attn_output"], unchecked=2), False, (), "0.75: 1..-1"),
        (Recomputing(), True, (0, 2, 3), "0.25: 1..2; 0.5: 4..-1"),
        pytest.param(Recomputing(), False, (0, 2, 3), "0.9: 0..4", marks=pytest.mark.soak),
        pytest.param(Recomputing(blocks=False), False, (), "0.5: 0..-1", marks=pytest.mark.soak),
    ],
    ids=["one route", "attention kept, some unchecked", "offloaded, two streams", "nearly all", "nothing again"],
)
@pytest.mark.soak
def test_tokens_that_pass_by_take_no_memory_of_a_layer(
    recomputing: Recomputing,
    offloaded: bool,
    vace_layers: tuple[int, ...],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Put together of short models, against the engine run with all layers and the same passages."""
    shape = replace(SMALL, num_layers=8, vace_layers=vace_layers)
    numerics, step, routes = PrecisionPolicy().numerics(torch.bfloat16), SMALL_STEP, placed_routes(read_routes(text), 8)
    of_frame = step.tokens // step.latent_frames
    tokens = tokens_by_layer(routes, 8, of_frame, step.latent_frames)
    control = [tokens[layer] for layer in vace_layers]
    how = How(recomputing, offloaded)
    layers = [Layer(count, Adapt(4)) for count in tokens]
    found = traced_routed(shape, numerics, step, layers, control=control, how=how)
    whole = traced_step(shape, numerics, step, Adapt(4), 8, how)
    passages = draw_passages(routes, step.latent_frames, of_frame, [torch.Generator() for _ in routes])
    monkeypatch.setattr(
        MetaBatch,
        "through",
        lambda self, model: model(self.noised, self.timestep, self.text, self.conditioning, passages),
    )
    run = _trace(shape, numerics, step, Adapt(4), how)
    for name in ("kept", "forward", "head", "backward"):
        assert 0.98 <= getattr(found, name) / getattr(run, name) <= 1.06, name
    if not offloaded:  # there nothing is kept on the device anyway
        assert found.backward < 0.93 * whole.backward


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(LoraConfig().targets, marks=pytest.mark.soak),
        (r"(vace_)?blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)", r"vace_blocks\.\d+\.(before|after)_proj"),
        pytest.param((r"vace_blocks\.\d+\.ffn\.\d",), marks=pytest.mark.soak),
        (r"blocks\.(2|3)\.ffn\.0",),
    ],
    ids=["default", "both streams", "the second stream", "two blocks"],
)
def test_the_adapters_of_a_vace_model_are_counted_one_by_one(targets: tuple[str, ...]) -> None:
    shape = WanShape(dim=256, ffn_dim=512, num_heads=2, num_layers=4, vace_layers=(0, 2))
    lora, numerics = LoraConfig(rank=4, targets=targets), Numerics()
    with torch.device("meta"):
        model = WanTransformer(shape, numerics)
    inject_lora(model, lora, seed=0)
    places = split_blocks([torch.device("cuda", 0), torch.device("cuda", 1)], 4, "midpoint")
    trained: Counter[str] = Counter()
    for name, parameter in adapter_parameters(model).items():
        trained[str(places.device_of(name))] += parameter.numel()
    with torch.device("meta"):
        linears = check_targets(WanTransformer(shape), lora)
    found = estimate_memory(
        JobShape(
            shape=shape,
            numerics=numerics,
            placement=places,
            storage_bytes=lambda _name, parameter: parameter.numel(),
            adapt=lambda part: inject_lora(part, LoraConfig(rank=4), seed=0) and None,
            adapter_values={name: 4 * (one.in_features + one.out_features) for name, one in linears.items()},
        ),
        StepShape(batch_size=1, latent_frames=2, latent_height=8, latent_width=8),
    )
    assert {name: device.adapters for name, device in found.devices.items()} == {
        name: 16 * trained[name] for name in ("cuda:0", "cuda:1")
    }


SMALL = WanShape(dim=256, ffn_dim=512, num_heads=2, num_layers=1)
TOKENS, TEXT = 256, 64
SMALL_STEP = StepShape(batch_size=1, latent_frames=8, latent_height=32, latent_width=32)


def metered(scheme: str, *, checkpointed: bool) -> tuple[int, int]:
    """Bytes a real block keeps for the backward pass, and the most it takes in it; its weights not counted."""
    numerics = Numerics(compute=torch.bfloat16, residual=torch.float32)
    holder = nn.Module()
    holder.blocks = nn.ModuleList([WanBlock(SMALL, numerics).to(torch.bfloat16)])
    if scheme:
        assert quantize_block(holder.blocks[0], "blocks.0", QuantizeConfig(scheme=scheme)) == 10
    inject_lora(holder, LoraConfig(rank=4), seed=0)
    tokens = torch.zeros(1, TOKENS, SMALL.dim, requires_grad=True)
    table = torch.zeros(TOKENS, 1, 64)
    rest = (torch.zeros(1, 1, 6, SMALL.dim), torch.zeros(1, TEXT, SMALL.dim).bfloat16(), table, table)
    with StorageMeter([*holder.parameters(), *holder.buffers(), tokens, *rest]) as meter:
        output = holder.blocks[0](tokens, *rest, recompute=Checkpointing(recomputes=checkpointed))
        kept, meter.peak = meter.live, meter.live
        output.backward(torch.ones_like(output))
        return kept, meter.peak


@pytest.mark.parametrize(
    ("scheme", "checkpointed"),
    [
        pytest.param(scheme, again, marks=[] if again or scheme in ("int8", "Q4_0") else pytest.mark.soak)
        for scheme in SCHEMES
        for again in (True, False)
    ],
)
def test_an_eight_bit_block_keeps_what_a_plain_one_keeps_and_holds_values_of_one_stage_at_most(
    scheme: str, checkpointed: bool
) -> None:
    """Autograd keeps the 8-bit weight, which is there anyway, and no values of it; a recomputed stage holds its own."""
    plain, eight = (metered(found, checkpointed=checkpointed) for found in ("", scheme))
    tables = 512 if scheme == "Q4_0" else 0  # bit shifts, cached once for all weights of a device
    assert eight[0] == plain[0] + tables
    widest, dim = SMALL.dim * SMALL.ffn_dim, SMALL.dim
    held = torch.bfloat16.itemsize * (2 * dim * dim + 2 * widest - widest) if checkpointed else 0
    assert plain[1] <= eight[1] <= plain[1] + held + unpacking_bytes(widest, torch.bfloat16) + tables


@pytest.mark.parametrize(("frames", "most"), [(13, 3.5), (21, 5.5)])
def test_one_block_of_14b_is_walked_back_in_few_gibibytes(frames: int, most: float) -> None:
    """832x480. The gradient of the block's output is counted in; the one input that is kept is not."""
    found = traced_step(
        WAN_14B,
        PrecisionPolicy().numerics(torch.bfloat16),
        clips(frames),
        Adapt(32),
        1,
        How(Recomputing()),
    )
    assert found.backward - found.kept <= most * GIB


FORMS = ("INT8_CONVROT_256", "INT4_CONVROT_16", "W4A8_CONVROT_4", "W6A8_CONVROT_1024")


@pytest.mark.parametrize("most", [1 << 27, 1 << 16], ids=["all rows", "some rows at a time"])
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, marks=[] if layout in ("", "NVFP4", "MXFP8", *FORMS, *BLOCKS) else pytest.mark.soak)
        for layout in ("", "NVFP4", "MXFP8", *INTEGERS, *BLOCKS)
    ],
)
def test_dequantizing_a_weight_takes_what_is_predicted(layout: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card: on meta tensors, whose operations cast nothing beside themselves."""
    monkeypatch.setattr(sys.modules["wan_core.checkpoint.dequantise"], "_MOST_TEMPORARY_BYTES", most)
    rows, columns = 64, 2048
    row_bytes = next(size for size in range(1, columns + 1000) if row_values(size, layout) == columns)
    with torch.device("meta"):
        weight = torch.zeros(rows, row_bytes, dtype=torch.float8_e4m3fn if layout in ("", "MXFP8") else torch.uint8)
        scale = {
            "NVFP4": torch.ones(rows, columns // 16),
            "MXFP8": torch.full((rows, columns // 32), 127, dtype=torch.uint8),
        }.get(layout, None if layout in BLOCKS else torch.ones(rows, 1))
    dequantise(weight, scale, torch.bfloat16, layout=layout)  # its tables are made once
    with StorageMeter([weight] if scale is None else [weight, scale]) as meter:
        values = dequantise(weight, scale, torch.bfloat16, layout=layout)
    predicted = unpacking_bytes(values.numel(), torch.bfloat16, layout)
    assert 0.6 * predicted < meter.peak <= predicted + 2**13, "and one scale a row"


@pytest.mark.soak
def test_a_trace_is_what_it_is_whatever_else_is_traced_before_it_or_meanwhile() -> None:
    """A trace runs in the model of the one before, and the server plans in several threads."""
    shape, numerics = replace(SMALL, num_layers=3), Numerics()
    step, ways = StepShape(batch_size=1, latent_frames=3, latent_height=8, latent_width=8), [
        (Recomputing(blocks=blocks, unchecked=unchecked), offloaded)
        for blocks, unchecked, offloaded in ((True, 0, True), (False, 0, False), (True, 1, False), (True, 0, False))
    ]  # fmt: skip

    def traced(way: tuple[Recomputing, bool]) -> StepTrace:
        return _trace(shape, numerics, step, Adapt(4), How(*way))

    alone = []
    for way in ways:
        trace.short_model.cache_clear()
        alone.append(traced(way))
    assert len(set(alone)) == len(ways)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(traced, ways * 3)) == alone * 3
