"""A run's memory is planned before anything is loaded: its measures are taken, or it is refused with what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cards import AMPERE, put_in
from tests.support.sessions import train_here
from tests.support.tiny_run import make_run
from tests.support.workloads import high_noise_14b
from wan_core.control import SignalControl
from wan_core.errors import ConfigError, ExitCode, OutOfMemory
from wan_core.events import Event, Note, Stage, StepDone
from wan_core.job.open import open_run
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.model import Policy, WanShape
from wan_core.placement import (
    FreeMemory,
    MemoryMeasures,
    PlacementConfig,
    SharedMemory,
    cards,
    free_memory_of_cards,
    resolve_placement,
)
from wan_core.plan import here, plan_here, report_run
from wan_core.plan.cards import card_named, card_of_size
from wan_core.plan.here import plan_training
from wan_core.plan.planning import MemoryPlan, nearest_that_fits, plan_memory
from wan_core.plan.step_time import step_seconds
from wan_core.plan.suggestions import suggestions_for
from wan_core.plan.workload import Workload, workload_of_run
from wan_core.session.train_job import run_job
from wan_core.train import Group, TrainConfig, Trainer

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture(scope="module")
def a14b(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """The high-noise expert in fp8, rank 32, clips of 832x480x49, batch 1."""
    return high_noise_14b(tmp_path_factory.mktemp("models"))


def room(gibibytes: float) -> FreeMemory:
    return FreeMemory(devices={"cpu": free_memory_of_cards([gibibytes]).devices["cuda:0"]})


@pytest.mark.lasts(2)
def test_what_does_not_fit_is_refused_with_what_is_needed_what_is_free_and_the_nearest_that_fits(
    a14b: Workload,
) -> None:
    short = with_frames(recomputed(a14b), 17)
    plan = plan_memory(short, room(5.8))
    assert not plan.fits
    with pytest.raises(OutOfMemory) as refused:
        plan.check()
    said = str(refused.value)
    assert said.startswith("832x480x17 at rank 32 needs ")
    assert "GiB on cpu" in said
    assert "Nearest that fits: 832x480x" in said
    frames = int(said.rpartition("832x480x")[2].split()[0])
    fits = [plan_memory(with_frames(recomputed(a14b), count), room(5.8)).fits for count in (frames, frames + 4)]
    assert fits == [True, False]
    assert said.endswith(f"832x480x{frames} at rank 32.")
    manual = plan_memory(replace(short, train=TrainConfig(memory="manual")), room(7.5))
    manual.check()  # who decides alone is refused nothing
    assert manual.measures == MemoryMeasures()


@pytest.mark.soak
@pytest.mark.lasts(1)
def test_where_fewer_clips_at_once_fit_that_is_said_first(a14b: Workload) -> None:
    """A smaller batch with more accumulation is the same step; fewer frames, or a smaller picture, is another LoRA."""

    def of(count: int) -> MemoryPlan:
        job = with_frames(a14b, 5)
        return plan_memory(
            replace(job, step=replace(job.step, batch_size=count), train=TrainConfig(batch_size=count)), room(7)
        )

    said = of(16).verdict()
    batch = int(said.partition("With batch_size ")[2].split()[0])
    assert said.endswith(f"With batch_size {batch} it fits: set that, with more gradient_accumulation_steps.")
    assert 1 <= batch < 16
    assert [of(count).fits for count in (batch, batch + 1)] == [True, False]


@pytest.mark.soak
def test_more_blocks_than_there_are_is_all_of_them(a14b: Workload) -> None:
    plan = plan_memory(recomputed(a14b, blocks_to_swap=999), room(16))
    assert plan.measures.blocks_to_swap == 40
    assert "40 blocks" in plan.remark()


def test_where_nothing_fits_one_look_says_so(a14b: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, int, int]] = []
    estimate = Workload.estimate

    def noted(job: Workload, shape: Any, measures: MemoryMeasures) -> Any:
        looked.append((job.lora.rank, job.step.latent_frames, job.step.latent_width))
        return estimate(job, shape, measures)

    monkeypatch.setattr(Workload, "estimate", noted)
    assert nearest_that_fits(a14b, room(1.5)) is None
    assert looked == [(4, 1, 52)], "the smallest job of all"


def with_frames(job: Workload, frames: int) -> Workload:
    return replace(job, step=replace(job.step, latent_frames=(frames - 1) // 4 + 1))


def recomputed(job: Workload, **train: Any) -> Workload:
    """Full checkpointing by the settings, so that no seconds pass in the search for what is faster."""
    return replace(job, train=TrainConfig(checkpointing_policy="full", **train))


@pytest.mark.lasts(2)
def test_the_measures_of_a_run_are_the_cheapest_with_which_it_fits(a14b: Workload) -> None:
    taken = [plan_memory(recomputed(a14b), room(gib)).measures for gib in (24, 16)]
    assert [measures.offload_inputs for measures in taken] == [True, True]
    assert taken[1].blocks_to_swap > taken[0].blocks_to_swap + 2
    kept = plan_memory(recomputed(a14b, offload_activations="off"), room(30))
    assert not kept.measures.offload_inputs
    assert kept.measures.blocks_to_swap > 2
    own = plan_memory(recomputed(a14b, blocks_to_swap=20, offload_activations="on"), room(24))
    assert replace(own.measures, chunk_tokens=4096) == MemoryMeasures(offload_inputs=True, blocks_to_swap=20)
    assert "20 blocks" in own.remark()
    assert "host memory" in own.remark()


def test_blocks_that_keep_their_activations_cannot_travel() -> None:
    with pytest.raises(ConfigError, match="gradient_checkpointing"):
        TrainConfig(blocks_to_swap=3, gradient_checkpointing=False)
    with pytest.raises(ConfigError, match="unchecked_blocks 0"):
        TrainConfig(blocks_to_swap=3, unchecked_blocks=1)


@pytest.mark.lasts(2)
def test_a_run_too_large_for_its_card_ends_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card is this computer's CPU, with a limit as people may set one."""
    wide = WanShape(dim=512, ffn_dim=2048, num_heads=4, num_layers=3)
    run = make_run(tmp_path, shape=wide, clips=2, size=(4, 16, 16), lora=LoraConfig(rank=16))
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", str(limit_with(run_room=40 * MIB)))
    assert not report_run(run.directory, run.roots)["fits"]
    said: list[Event] = []
    with pytest.raises(OutOfMemory, match=r"128x128x13 at rank 16 needs 0\.\d GiB on cpu") as refused:
        run_job(run.directory, run.roots, emit=said.append, control=SignalControl())
    assert refused.value.exit_code == ExitCode.DOES_NOT_FIT
    assert not [event for event in said if isinstance(event, Stage) and event.total]


@pytest.mark.lasts(1)
def test_a_run_that_fits_with_measures_takes_them_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    wide = WanShape(dim=512, ffn_dim=2048, num_heads=4, num_layers=5)
    run = make_run(tmp_path, shape=wide, train=train, clips=2, size=(1, 16, 16))
    whole = report_run(run.directory, run.roots)["devices"]["cpu"]["peak_bytes"]
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", str(limit_with(run_room=whole - 40 * MIB)))
    report = report_run(run.directory, run.roots)
    assert report["fits"]
    swapped = report["measures"]["blocks_to_swap"]
    assert swapped > 2
    said = train_here(run)
    notes = [event.text for event in said if isinstance(event, Note)]
    assert any(f"{swapped} blocks" in text for text in notes), notes
    assert any(isinstance(event, StepDone) for event in said)


def limit_with(run_room: int) -> float:
    """The GiB of a card on which so many bytes are left when the reserve is taken."""
    return (run_room + 16 * GIB - free_memory_of_cards([16]).devices["cuda:0"]) / GIB


@pytest.mark.parametrize(
    ("placement", "rank", "devices"),
    [
        (PlacementConfig(), 0, ["cuda:0"]),
        (PlacementConfig(mode="split blocks", devices="0,1"), 0, ["cuda:0", "cuda:1"]),
        (PlacementConfig(mode="copy per GPU", devices="0,1"), 1, ["cuda:1"]),
    ],
)
def test_each_process_is_planned_for_its_own_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: PlacementConfig, rank: int, devices: list[str]
) -> None:
    """Predicting needs no GPU: only names and sizes of the devices are looked at."""
    put_in(monkeypatch, AMPERE, AMPERE)
    run = make_run(tmp_path, plan=ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", placement=placement))
    opened = open_run(run.directory, run.roots)
    job = workload_of_run(opened, resolve_placement(placement, opened.variant.shape.num_layers, rank))
    found = plan_memory(job, FreeMemory(devices={})).estimate.devices
    assert list(found) == devices
    assert min(memory.step for memory in found.values()) > 100_000


@pytest.mark.soak
def test_checkpointing_is_offered_where_it_is_off(a14b: Workload) -> None:
    for off in ({"gradient_checkpointing": False}, {"unchecked_blocks": 20}):
        job = replace(a14b, train=TrainConfig(**off))
        turned = {"gradient_checkpointing": True} if "gradient_checkpointing" in off else {"unchecked_blocks": 0}
        assert not plan_memory(job, room(16)).fits
        assert suggestions_for(job, room(16), most=1) == [turned]


def test_a_copy_per_gpu_is_planned_for_the_fullest_card_and_its_share_of_host_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank would refuse what its own card does not hold, hours later, when everything is encoded."""
    free = {0: 40 * GIB, 1: 20 * GIB}
    put_in(monkeypatch, AMPERE, AMPERE)
    monkeypatch.setattr(cards, "_room_on_card", lambda device, _limit, *, ask_driver: free[device.index])
    monkeypatch.setattr(cards, "host_bytes", lambda: 10 * GIB)
    placement = PlacementConfig(mode="copy per GPU", devices="0,1")
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", placement=placement)
    run = make_run(tmp_path, plan=plan)
    planned = plan_here(workload_of_run(open_run(run.directory, run.roots)))
    assert planned is not None
    assert planned.room == FreeMemory(devices={"cuda:1": 20 * GIB}, host=5 * GIB)
    assert list(planned.estimate.devices) == ["cuda:1"]
    free[1] = 1 << 10
    refused = plan_here(workload_of_run(open_run(run.directory, run.roots)))
    assert refused is not None
    assert not refused.fits


@pytest.mark.lasts(3)
@pytest.mark.parametrize(
    ("free", "shares", "once"),
    [((15, 15), True, True), pytest.param((15, 15), False, False, marks=pytest.mark.soak), ((15, 40), True, False)],
)
def test_what_rests_counts_once_for_copies_on_equal_cards(
    a14b: Workload, monkeypatch: pytest.MonkeyPatch, free: tuple[int, int], shares: bool, once: bool
) -> None:
    """Where cards differ other blocks rest for each, and a system may know no memory that is shared."""
    put_in(monkeypatch, AMPERE, AMPERE)
    monkeypatch.setattr(cards, "_room_on_card", lambda device, _limit, *, ask_driver: free[device.index] * GIB)
    monkeypatch.setattr(cards, "host_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(here, "can_share", lambda: shares)
    placement = PlacementConfig(mode="copy per GPU", devices="0,1")
    copies = replace(recomputed(a14b), placement=None, model=replace(a14b.model, placement=placement))
    plan = plan_here(copies)
    assert plan is not None
    assert plan.fits
    assert plan.measures.blocks_to_swap > 10
    assert plan.room.host == 32 * GIB
    alone = plan.job.estimate(replace(plan.job.shape(), sharers=1), plan.measures)
    resting = sum(plan.estimate.streamed.values())
    assert alone.host - plan.estimate.host == pytest.approx(resting / 2 if once else 0, rel=0.001)


@pytest.mark.parametrize(("theirs", "once"), [(2, True), (1, False)])
def test_a_rank_counts_shared_weights_once_where_the_others_rest_the_same_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: int, once: bool
) -> None:
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "4")
    placement = PlacementConfig(mode="copy per GPU", devices="cpu,cpu")
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", placement=placement)
    run = open_run((made := make_run(tmp_path, plan=plan, train=TrainConfig(blocks_to_swap=2))).directory, made.roots)
    group = Group(0, 2)
    told: list[MemoryMeasures] = []

    def gather(mine: MemoryMeasures) -> list[MemoryMeasures]:
        told.append(mine)
        return [mine, replace(mine, blocks_to_swap=theirs)]

    monkeypatch.setattr(group, "gather", gather)
    together = SharedMemory(ranks=(0, 1), processes=(), door=-1)
    found, remark = plan_training(run, group, shared=together)
    alone, remark_alone = plan_training(run, group)
    assert found.measures == alone.measures == told[0]
    assert found.measures.blocks_to_swap == 2
    linears = 2 * 4 * (8 * (128**2 + 128) + 2 * 128 * 256 + 128 + 256)
    assert alone.host - found.host == (linears // 2 if once else 0)
    assert remark.startswith("So that it fits, 2 blocks")
    assert remark_alone.startswith("So that it fits, 2 blocks")


@pytest.mark.lasts(2)
def test_memory_that_is_left_over_makes_a_step_faster(a14b: Workload) -> None:
    """Attention outputs first, then chunks, then blocks that keep all; on a full card attention outputs go to RAM."""
    roomy, tight = plan_memory(a14b, room(80)), plan_memory(a14b, room(16))
    full = replace(a14b, train=TrainConfig(checkpointing_policy="full"))
    without = plan_memory(full, room(80))
    assert (roomy.policy, tight.policy, without.policy) == ("attn_output", "offload_attn_output", "full")
    assert roomy.measures == without.measures == MemoryMeasures(chunk_tokens=0)
    unchecked = roomy.job.train.unchecked_blocks
    assert unchecked > 3
    assert without.job.train.unchecked_blocks == 0, "what the settings name is not changed"
    assert roomy.estimate.devices["cpu"].peak < room(80).devices["cpu"]
    assert f"attention outputs in GPU memory, all activations of {unchecked} blocks, chunks of all" in roomy.faster()
    assert 0.1 < roomy.gain < 0.25
    assert "attention outputs in RAM" in tight.faster()
    of_all = 40 * 20_280 * (5120 * 4 + 5120 * 2 + 40 * 4)  # input, what attention returns, a float32 number a head
    assert tight.estimate.inputs == pytest.approx(of_all, rel=0.001)
    assert tight.measures.offload_inputs
    small = replace(full, step=replace(a14b.step, latent_frames=2))
    assert plan_memory(small, room(24)).measures.chunk_tokens == 4096, "its tokens are one chunk already"
    resumed = plan_memory(replace(full, chunk_tokens=4096), room(80))
    assert resumed.measures.chunk_tokens == 4096, "a run keeps its size of chunks"
    assert plan_memory(replace(full, chunk_tokens=0), room(24)).measures.chunk_tokens == 0
    no_ram = replace(room(16), host=tight.estimate.host - (4 << 30))
    assert plan_memory(a14b, no_ram).policy == "full"


def test_what_is_left_to_compute_twice_is_in_the_seconds(a14b: Workload) -> None:
    card, shape = card_of_size(80), a14b.shape()
    full = a14b.estimate(shape, MemoryMeasures())
    kept = replace(a14b, train=TrainConfig(checkpointing_policy="attn_output"))
    seconds = [
        step_seconds(job.shape(), job.step, estimate, card, micro_batches=1)
        for job, estimate in ((a14b, full), (kept, kept.estimate(kept.shape(), MemoryMeasures())))
    ]
    assert 0.85 < seconds[1] / seconds[0] < 0.95
    target = step_seconds(shape, a14b.step, full, card, micro_batches=1, target_share=0.5) - seconds[0]
    assert 0.12 < target / seconds[0] < 0.2, "half a forward pass beside forward, backward and what is computed again"
    chunked = replace(full, measures=MemoryMeasures(chunk_tokens=1024))
    more = step_seconds(shape, a14b.step, chunked, card, micro_batches=1) - seconds[0]
    assert more / card.kernel_s > 15 * 3000, "fifteen chunks more, some thousand kernels each"


@pytest.fixture
def scores_in_16_bits() -> Iterator[None]:
    """As ComfyUI allows them in its process, and a worker does not."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    yield
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


@pytest.mark.usefixtures("scores_in_16_bits")
def test_attention_without_a_fused_kernel_is_counted_with_its_scores(a14b: Workload) -> None:
    card, small = card_of_size(80), with_frames(a14b, 9)
    plain = replace(small, model=replace(small.model, attention="sdpa_math"))
    estimates = [job.estimate(job.shape(), MemoryMeasures()) for job in (small, plain)]
    fused, scores = (estimate.devices["cpu"].peak for estimate in estimates)
    tokens, heads = small.step.tokens, 40
    assert tokens == 4680
    of_scores = 4 * heads * tokens**2
    assert 2 * of_scores < scores - fused < 4 * of_scores, "softmax, its gradient and that of the scores, in float32"
    seconds = [
        step_seconds(job.shape(), job.step, estimate, card, micro_batches=1)
        for job, estimate in zip((small, plain), estimates, strict=True)
    ]
    assert seconds[1] > 1.2 * seconds[0]


def test_a_card_without_a_fused_kernel_for_bf16_is_counted_so(a14b: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAN_TRAINER_CARD_CAPABILITY", "7.5")
    assert a14b.shape().numerics.plain_attention, "bf16"
    half = replace(a14b, model=replace(a14b.model, base_precision="fp16"))
    half = replace(half, file=replace(half.file, compute_dtype=torch.float16))
    assert not half.shape().numerics.plain_attention, "memory-efficient attention takes fp16"


def test_what_the_system_does_not_lock_is_copied_while_the_card_waits(
    a14b: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, shape = card_of_size(80), a14b.shape()
    swapped = a14b.estimate(shape, MemoryMeasures(offload_inputs=True, blocks_to_swap=20))

    def seconds(lockable: int | None) -> float:
        monkeypatch.setattr("wan_core.plan.split_time.lockable_bytes", lambda: lockable)
        return step_seconds(shape, a14b.step, swapped, card, micro_batches=1)

    assert seconds(swapped.pinned) == seconds(None), "all is page-locked"
    a_quarter = (sum(swapped.streamed.values()) + swapped.inputs) / 4
    assert seconds(swapped.pinned * 3 // 4) - seconds(None) == pytest.approx(2 * a_quarter / 8e9, rel=1e-3)


@pytest.mark.soak
def test_weights_are_dequantized_for_each_chunk_where_nothing_else_makes_room(a14b: Workload) -> None:
    short = replace(with_frames(recomputed(a14b), 9), lora=LoraConfig(rank=4))
    held, each = (
        short.estimate(short.shape(), MemoryMeasures(offload_inputs=True, blocks_to_swap=40, dequantize_once=once))
        for once in (True, False)
    )
    least, most = each.devices["cpu"].peak, held.devices["cpu"].peak
    assert most - least > 200 << 20
    between = FreeMemory(devices={"cpu": (least + most) // 2})
    plan = plan_memory(short, between)
    assert plan.fits
    assert not plan.measures.dequantize_once
    assert plan_memory(short, FreeMemory(devices={"cpu": most})).measures.dequantize_once


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 4070 SUPER", "RTX 4070 SUPER"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-16GB", "V100 PCIE"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3080 Ti", None),
        ("AMD Radeon RX 7900 XTX", None),
    ],
)
def test_a_card_is_known_by_what_its_driver_calls_it(said: str, name: str | None) -> None:
    """A slower one of the same number is another card."""
    found = card_named(said)
    assert (found and found.name) == name


def test_memory_efficient_attention_takes_twice_as_long(a14b: Workload) -> None:
    t4, shape = card_named("Tesla T4"), a14b.shape()
    assert t4 is not None
    estimate = a14b.estimate(shape, MemoryMeasures())
    seconds = [
        step_seconds(shape, a14b.step, estimate, card, micro_batches=1) for card in (t4, replace(t4, attention=1.0))
    ]
    tokens, layers = a14b.step.tokens, 40
    texts = a14b.step.text_rows
    flop = layers * 4 * 5120 * tokens * (tokens + texts) * (1 + 1 + 2.5)
    assert seconds[0] - seconds[1] == pytest.approx(flop / t4.flops_per_s, rel=1e-3)


@pytest.mark.parametrize("settings", [{"memory": "manual"}, {"gradient_checkpointing": False}, {"compile": True}])
def test_attention_is_not_kept_unasked_where_that_cannot_be_or_somebody_else_decides(
    a14b: Workload, settings: dict[str, Any]
) -> None:
    plan = plan_memory(replace(a14b, train=TrainConfig(**settings)), FreeMemory(devices={"cpu": 1 << 50}))
    assert plan.policy in ("full", "none")


def test_a_run_that_nothing_limits_keeps_what_attention_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Policy] = []
    real = Trainer.run

    def spy(self: Trainer, *given: Any) -> None:
        seen.append(self.model.checkpoint_policy)
        real(self, *given)

    monkeypatch.setattr(Trainer, "run", spy)
    for policy in ("auto", "full"):
        settings = TrainConfig(steps=1, preview_every_n_steps=0, checkpointing_policy=policy)
        run = make_run(tmp_path / policy, train=settings)
        train_here(run)
    assert seen == [Policy(saved=frozenset({"attn_output"})), Policy()]
