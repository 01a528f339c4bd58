"""What is predicted of split tokens: the memory of each card, the bytes between cards, the time of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from benchmarks import split_tokens
from tests.support.cards import gpu, put_in
from tests.support.headers import write_empty_model
from wan_core.errors import ConfigError, PlacementError
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model
from wan_core.lora import LoraConfig, count_values, inject_lora
from wan_core.model import Policy, Route, WanShape, model_without_values
from wan_core.placement import (
    FreeMemory,
    JobShape,
    MemoryEstimate,
    MemoryMeasures,
    Placement,
    PlacementConfig,
    Recomputing,
    StepShape,
    devices_of,
    estimate_memory,
    free_memory_of_cards,
)
from wan_core.placement.estimate import DeviceMemory
from wan_core.placement.shared import OwnMemory
from wan_core.plan import step_time, token_shares
from wan_core.plan.cards import CardCost, card_named, card_of_size
from wan_core.plan.cards_of_step import cards_of_step
from wan_core.plan.planning import MemoryPlan, plan_memory
from wan_core.plan.report import plan_sentences
from wan_core.plan.token_shares import shares_by_speed
from wan_core.plan.workload import Workload
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.train import TrainConfig

CARDS = [torch.device("cuda", number) for number in range(4)]
OF_14B = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
OF_1_3B = WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30)
CLIP = StepShape(batch_size=1, latent_frames=13, latent_height=60, latent_width=104)
"""832x480x49: 20,280 tokens"""
LORA = LoraConfig(rank=32)
COPIES = PlacementConfig(mode="copy per GPU", devices="all")


def adapt(model: Any) -> None:
    inject_lora(model, LORA, seed=0)


def job(shape: WanShape, cards: int = 1, **changes: Any) -> JobShape:
    return JobShape(
        shape=shape,
        numerics=PrecisionPolicy().numerics(torch.bfloat16),
        placement=Placement((CARDS[0],) * shape.num_layers),
        storage_bytes=lambda _name, parameter: 2 * parameter.numel(),
        adapt=adapt,
        adapter_values=count_values(model_without_values(shape), LORA),
        others=tuple(CARDS[1:cards]),
        **changes,
    )


def seconds(of: JobShape) -> float:
    estimate = MemoryEstimate(measures=MemoryMeasures(), devices={})
    return step_time.step_seconds(of, CLIP, estimate, card_of_size(32), micro_batches=1)


@pytest.mark.lasts(3)
def test_two_cards_are_faster_than_one_by_what_the_link_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = job(OF_14B), job(OF_14B, 2)
    sent = step_time.exchanged_bytes(two, CLIP)
    assert [round(part / 1e9, 1) for part in sent] == [8.3, 16.6]  # 40 layers, 4 tensors of 10,140 x 2,560, 16 bits
    assert step_time.exchanged_bytes(one, CLIP) == (0, 0)
    faster = {}
    for link in (25e9, 10e9):
        monkeypatch.setattr(step_time, "LINK", link)
        faster[link] = seconds(one) / seconds(two)
    assert faster[25e9] == pytest.approx(1.83, abs=0.02)
    assert faster[10e9] == pytest.approx(1.66, abs=0.02)


@pytest.mark.soak
@pytest.mark.lasts(3)
def test_the_event_model_hides_a_part_of_the_exchange() -> None:
    card = card_of_size(32)
    alone = split_tokens.step_seconds([card], 1.0)
    for link, faster, least in ((25e9, 1.89, 1.75), (10e9, 1.77, 1.5)):
        beside, behind = (split_tokens.step_seconds([card] * 2, link, beside=way) for way in (True, False))
        assert alone / beside == pytest.approx(faster, abs=0.02)
        assert alone / beside > alone / behind > least
    # What a card does is the same: with a link that takes no time each of two has half of the step, and a little more.
    assert alone / split_tokens.step_seconds([card] * 2, 1e18) == pytest.approx(1.97, abs=0.03)


@pytest.mark.soak
@pytest.mark.lasts(1)
def test_cards_of_unequal_speed_share_tokens_within_a_tenth_of_the_ideal() -> None:
    """24 + 12 GB: equal parts take longer than the faster card alone."""
    cards = [card_of_size(24), card_of_size(12)]
    alone = [split_tokens.step_seconds([card], 1.0) for card in cards]
    shares = split_tokens.chosen_shares(cards)
    assert shares == (75, 25), "30 of 40 heads; by FLOP/s 74, by bytes/s 67"
    for link, of_ideal in ((25e9, 0.95), (10e9, 0.93)):
        equal, by_speed = (split_tokens.step_seconds(cards, link, way) for way in ((), shares))
        assert equal > alone[0]
        assert 1 / sum(1 / one for one in alone) / by_speed == pytest.approx(of_ideal, abs=0.01)


def test_shares_follow_speed_heads_and_tokens() -> None:
    work = CardCost(2e15, 2e12, 30_000, 4e12, 0.7e15)
    fast, slow = card_of_size(24), card_of_size(12)
    assert shares_by_speed(work, 40, [fast, fast]) == (1, 1)
    assert shares_by_speed(work, 40, [slow, fast])[0] == pytest.approx(26, abs=2)
    near_nothing = shares_by_speed(work, 12, [card_of_size(80), replace(slow, bf16=slow.bf16 / 100)])
    assert near_nothing == (99, 1), "at least some tokens, and no head of 12"
    for cards in ([fast, slow, card_of_size(16)], [fast, *[slow] * 15]):
        found = shares_by_speed(work, 12, cards)
        assert sum(found) == 100
        assert found[0] == max(found)
        assert min(found) > 0


@pytest.mark.lasts(1)
def test_each_of_unequal_parts_is_counted() -> None:
    """Of 1,560 tokens of a frame and 12 heads three quarters and a quarter."""
    uneven = job(OF_1_3B, 2, shares=(3, 1))
    parts = [uneven.on_card(CLIP, number) for number in (0, 1)]
    assert [part.own_tokens // 13 for part in parts] == [1170, 390]
    works = [
        step_time.work_of_passes(uneven, CLIP, MemoryEstimate(measures=MemoryMeasures(), devices={}), n)[1]
        for n in (0, 1)
    ]
    assert works[0].attention / works[1].attention == pytest.approx(3, abs=0.01)
    assert works[0].flop / works[1].flop == pytest.approx(3, abs=0.1)
    equal = sum(step_time.exchanged_bytes(job(OF_1_3B, 2), CLIP))
    assert sum(step_time.exchanged_bytes(uneven, CLIP)) / equal == pytest.approx(4 * 3 / 4 / 4)
    memory = estimate_memory(uneven, CLIP).devices
    assert memory["cuda:0"].kept / memory["cuda:1"].kept == pytest.approx(3, abs=0.1)
    assert memory["cuda:0"].weights == memory["cuda:1"].weights


def test_what_is_not_recomputed_is_not_sent_again() -> None:
    for recomputing, back in (
        (Recomputing(), 2.0),
        (Recomputing(policy=Policy(saved=frozenset({"attn_output"}))), 2.0),
        (Recomputing(unchecked=15), 1.5),
        (Recomputing(blocks=False), 1.0),
    ):
        there, again = step_time.exchanged_bytes(job(OF_1_3B, 2, recomputing=recomputing), CLIP)
        assert step_time.exchanged_bytes(job(OF_1_3B, parts=2, recomputing=recomputing), CLIP) == (there, again)
        assert again / there == back
    # VACE's second stream, with no adapters of its own, sends in the forward pass alone.
    control = replace(OF_1_3B, vace_layers=tuple(range(0, 30, 2)))
    for walked, prefix in ((30, "blocks."), (45, "vace_blocks.")):
        adapters = {f"{prefix}0.self_attn.q": 1}
        there, again = step_time.exchanged_bytes(replace(job(OF_1_3B, 2), shape=control, adapter_values=adapters), CLIP)
        assert again / there == 2 * walked / 45
    # Of 4 cards each keeps a quarter of the tokens, and sends three quarters of their heads.
    half, quarter = (step_time.exchanged_bytes(job(OF_1_3B, cards), CLIP)[0] for cards in (2, 4))
    assert quarter / half == pytest.approx(0.75)


@pytest.mark.lasts(3)
def test_each_card_holds_the_weights_and_its_part_of_what_a_step_keeps() -> None:
    measures = MemoryMeasures(blocks_to_swap=10, offload_inputs=False)
    one, two = (estimate_memory(job(OF_1_3B, cards), CLIP, measures=measures) for cards in (1, 2))
    alone, first, second = one.devices["cuda:0"], two.devices["cuda:0"], two.devices["cuda:1"]
    assert list(two.devices) == ["cuda:0", "cuda:1"]
    assert first.weights == second.weights == alone.weights
    assert (first.kept / alone.kept, second.kept) == (pytest.approx(0.5, abs=0.02), first.kept)
    assert first.working < 0.65 * alone.working, "a chunk has as many tokens as on one card"
    assert second.adapters == first.adapters // 2, "no moments"
    watching = [one.phases["evaluate"] - one.phases["save"] for one in (alone, first, second)]
    assert watching[0] > 1.6 * watching[1]
    assert watching[1] == watching[2]
    assert one.pinned <= two.pinned < 1.01 * one.pinned, "weights of linears once, those of norms twice"


def test_a_further_route_sends_all_tokens_there_and_those_that_go_through_back() -> None:
    routes = tuple(Route(selection_ratio=0.5, start_layer_idx=n, end_layer_idx=n) for n in (1, 3))
    one, two = (sum(step_time.exchanged_bytes(job(OF_1_3B, 2, routes=routes[:n]), CLIP)) for n in (1, 2))
    of_layer = 3 * 4 * 10_140 * 768 * 2  # forward twice and back, in 16 bits; a route halves it
    assert two - one == (20_280 + 10_140) * 1536 * 4 - of_layer // 2


def test_a_plan_refuses_what_a_step_would() -> None:
    with pytest.raises(ConfigError, match="has 1 tokens, too few to split over 2 devices"):
        estimate_memory(job(OF_1_3B, 2), replace(CLIP, latent_height=2, latent_width=2))


def test_each_device_holds_one_model() -> None:
    split = PlacementConfig(mode="split tokens", devices="cpu,cpu,cpu")
    assert (split.models, split.ranks, split.identity()) == (3, 1, PlacementConfig().identity())
    assert (PlacementConfig(mode="split tokens", devices="cpu").models, PlacementConfig().models) == (1, 1)
    assert devices_of(split, 4) == (torch.device("cpu"),)
    assert split.without_parts() == PlacementConfig(devices="cpu"), "what renders has no copies"


def test_a_card_that_is_named_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlacementConfig, "device_names", lambda _: ("cuda:1", "cuda:1"))
    with pytest.raises(PlacementError, match="names cuda:1 twice"):
        devices_of(replace(PlacementConfig(), mode="split tokens"), 4)


@pytest.mark.parametrize("shares", ["0,1", "1,-2", "1.5,1", "10000,1", "1,,2", "half", ""])
def test_shares_that_are_no_proportions_are_refused(shares: str) -> None:
    with pytest.raises(ConfigError, match="is not auto or a number for each GPU"):
        PlacementConfig(mode="split tokens", token_shares=shares)


def test_as_many_shares_as_devices_are_needed() -> None:
    split = PlacementConfig(mode="split tokens", devices="cpu,cpu", token_shares="3, 1")
    assert split.shares == (3, 1)
    assert split.identity() == PlacementConfig().identity()
    with pytest.raises(PlacementError, match="has 2 numbers for 3 devices"):
        devices_of(replace(split, devices="cpu,cpu,cpu"), 4)


def test_models_of_one_process_have_what_rests_once() -> None:
    memory, written = OwnMemory(), list[str]()

    def piece(name: str, size: int) -> torch.Tensor:
        return memory.piece(name, size, lambda _bytes: written.append(name), lambda _bytes: False)

    assert piece("blocks.0", 8) is piece("blocks.0", 8)
    assert piece("blocks.0", 8) is not piece("blocks.1", 8)
    assert written == ["blocks.0", "blocks.1"]
    locks = list[int]()

    def lock(part: torch.Tensor) -> torch.Tensor:
        locks.append(part.data_ptr())
        return part

    for _ in range(2):
        assert memory.locked(piece("blocks.0", 8), lock) is piece("blocks.0", 8)
    assert len(locks) == 1, "the system locks a page for a process once"


@pytest.mark.lasts(4)
def test_a_plan_for_two_cards_says_what_they_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, gpu("NVIDIA GeForce RTX 4090", (8, 9), 24), gpu("NVIDIA GeForce RTX 4090", (8, 9), 24))
    file = write_empty_model(tmp_path / "wan2.2_t2v_high_noise_14B_bf16.safetensors", "wan2.2-t2v-A14B-expert")
    roots = Roots({"diffusion_models": (str(tmp_path),)})
    split = PlacementConfig(mode="split tokens", devices="all")
    plans = []
    for placement in (PlacementConfig(devices="cuda:0"), split):
        model = ModelPlan(base_file=f"diffusion_models:{file.name}", quantize=QuantizeConfig(), placement=placement)
        of = Workload(
            model=model,
            roots=roots,
            file=inspect_model(model, roots),
            lora=LORA,
            train=TrainConfig(preview_every_n_steps=0, memory="manual", offload_activations="on"),
            step=CLIP,
        )
        plans.append(plan_memory(of, free_memory_of_cards([24, 24], host=100 << 30)))
    one, two = plans
    assert one.exchange == ""
    said = plan_sentences(two)
    assert "split tokens: each of 2 cards sends 24.9 GB in a step, 2.5 s at 10 GB/s." in said
    ranks = PlacementConfig(mode="copy per GPU", devices="all", context_parallel=2)
    over_ranks = replace(two, job=replace(two.job, model=two.job.model.with_placement(ranks)))
    assert over_ranks.exchange == (
        "context parallel: each of 2 processes trains 1/2 of every clip and sends 24.9 GB in a step by all-to-all, 2.5 "
        "s at 10 GB/s."
    )
    assert [line.split(":")[0] + line.split(":")[1] for line in said.splitlines()[1:3]] == ["cuda0", "cuda1"]
    assert two.fits
    card = card_named("RTX 4090")
    assert card is not None
    assert 1.5 < one.seconds(card) / two.seconds(card) < 2
    drawn = cards_of_step(two, card)
    assert drawn is not None
    assert drawn.to_dict() | {"seconds": 0} == {
        "mode": "split tokens",
        "reason": two.exchange,
        "seconds": 0,
        "idle": 0.0,
        "sentence": "split tokens: the cards wait 0 % of a step",
        "cards": [{"name": name, "work": drawn.to_dict()["cards"][0]["work"]} for name in ("cuda:0", "cuda:1")],
    }
    assert drawn.timeline.seconds == pytest.approx(two.seconds(card), rel=0.001)
    assert "split tokens: the cards wait 0 % of a step" in said
    assert "Accumulate" not in said, "split tokens need one micro-batch"
    copies = replace(one, job=replace(one.job, model=replace(one.job.model, placement=COPIES)))
    each = cards_of_step(copies, card)
    assert each is not None
    assert (each.mode, each.names, each.timeline.idle) == ("copy per GPU", ("cuda:0", "cuda:1"), 0)
    assert cards_of_step(one, card) is None


def test_a_card_that_lacks_memory_takes_less_and_the_others_more() -> None:
    """5 GiB of weights lie on each card; 3 of the 4 GiB fit that its quarter of the tokens takes."""

    def memory(step: int) -> DeviceMemory:
        return DeviceMemory(weights=5 << 30, adapters=0, kept=0, phases={"step": (5 + step) << 30})

    estimate = MemoryEstimate(measures=MemoryMeasures(), devices={"cuda:0": memory(12), "cuda:1": memory(4)})

    def within(*gibibytes: int) -> tuple[int, ...]:
        room = FreeMemory(devices=dict(zip(estimate.devices, (size << 30 for size in gibibytes), strict=True)))
        return token_shares._within_memory((75, 25), cast(MemoryPlan, SimpleNamespace(room=room, estimate=estimate)))

    assert within(24, 8) == (80, 20), "75 to 18.75"
    assert (within(24, 9), within(16, 8)) == ((), ()), "both fit, and neither"
    assert within(24, 5) == (99, 1), "nothing is left for tokens"
