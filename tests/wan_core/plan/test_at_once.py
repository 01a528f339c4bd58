"""Several cards in the plan: those of a split model at once, and the mode that `auto` takes for a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.cards import gpu, put_in
from tests.support.workloads import t2v_1_3b
from wan_core.errors import PlacementError
from wan_core.parallel.pipeline import under_way
from wan_core.placement import FreeMemory, MemoryMeasures, PlacementConfig, free_memory_of_cards
from wan_core.placement.plan import split_blocks
from wan_core.plan import Workload, modes, plan_here, plan_memory
from wan_core.plan.cards import CARDS, Card
from wan_core.plan.cards_of_step import cards_of_step
from wan_core.plan.modes import _jobs, plan_on_cards  # pyright: ignore[reportPrivateUsage]
from wan_core.plan.notes import notes_of
from wan_core.plan.split_time import split_step
from wan_core.plan.step_time import step_seconds
from wan_core.train import TrainConfig

pytestmark = pytest.mark.lasts(1)

TWO = [torch.device("cuda", 0), torch.device("cuda", 1)]
RTX_4090 = next(card for card in CARDS if card.name == "RTX 4090")
FULL: dict[str, Any] = {"checkpointing_policy": "full"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """1.3B in bf16 over two cards, clips of 832x480x49."""
    run = t2v_1_3b(tmp_path_factory.mktemp("models"), base_precision="bf16")
    return replace(run, train=TrainConfig(**FULL), placement=split_blocks(TWO, 30, "midpoint"))


def with_micro_batches(job: Workload, count: int, split_at: str = "midpoint") -> Workload:
    train = replace(job.train, gradient_accumulation_steps=count)
    return replace(job, train=train, placement=split_blocks(TWO, 30, split_at))


def seconds(job: Workload, *cards: Card, **measures: Any) -> float:
    estimate, count = job.estimate(job.shape(), MemoryMeasures(**measures)), job.train.gradient_accumulation_steps
    return step_seconds(job.shape(), job.step, estimate, list(cards), micro_batches=count)


def test_a_step_of_two_cards_takes_what_one_takes_and_less_with_several_micro_batches(small: Workload) -> None:
    one_card = replace(small, placement=split_blocks(TWO[:1], 30, "midpoint"))
    alone = seconds(one_card, RTX_4090)
    assert seconds(small, RTX_4090, RTX_4090) == pytest.approx(alone, rel=0.02), "copies between cards, and no more"
    for count, split_at, gain in ((2, "midpoint", 1.33), (4, "midpoint", 1.6), (4, "interleaved", 1.78)):
        job = with_micro_batches(small, count, split_at)
        assert count * alone / seconds(job, RTX_4090, RTX_4090) == pytest.approx(gain, abs=0.04)
        assert seconds(job, RTX_4090, RTX_4090, in_turn=True) == pytest.approx(count * alone, rel=0.02)


def test_what_lies_outside_the_blocks_is_counted(small: Workload) -> None:
    shape, estimate = small.shape(), small.estimate(small.shape(), MemoryMeasures())
    split = split_step(shape, small.step, estimate, [RTX_4090, RTX_4090], 1)
    one_card = replace(small, placement=split_blocks(TWO[:1], 30, "midpoint"))
    of_all = sum(cost.forward_s + cost.backward_s for cost in split.costs)
    assert of_all == pytest.approx(seconds(one_card, RTX_4090), rel=0.005)


def test_two_micro_batches_wait_on_the_first_card_and_one_on_the_last(small: Workload) -> None:
    assert under_way(split_blocks(TWO, 30, "midpoint"), 4) == (2, 1)
    assert under_way(split_blocks(TWO, 40, "interleaved"), 4) == (2.5, 1.5)
    assert under_way(split_blocks(TWO, 30, "midpoint"), 1) == ()
    job = with_micro_batches(small, 4)
    at_once, in_turn = (job.estimate(job.shape(), MemoryMeasures(in_turn=turn)) for turn in (False, True))
    stream = 20_280 * 1536 * 4
    more = [at_once.devices[name].step - in_turn.devices[name].step for name in ("cuda:0", "cuda:1")]
    assert more[1] == 2 * stream, "what leaves it"
    assert more[0] == pytest.approx((15 + 1 + 2) * stream, rel=0.05), "and the inputs of its 15 blocks once more"


def test_the_plan_says_in_a_line_what_working_at_once_gains(small: Workload) -> None:
    room = free_memory_of_cards([24, 24])

    def said(job: Workload) -> list[str]:
        return [one for one in notes_of(plan_memory(job, room, RTX_4090), None, RTX_4090) if " at once" in one]

    assert said(small) == [
        "Accumulate 2 or more (gradient_accumulation_steps) to let both cards work at once: predicted 1.3x as fast a "
        "clip with 2, 1.6x with 4."
    ]
    assert said(with_micro_batches(small, 4)) == [
        "Both cards work at once on 4 micro-batches: predicted 1.60x. With split_at interleaved: 1.77x."
    ]
    assert said(replace(small, placement=split_blocks(TWO[:1], 30, "midpoint"))) == []


def test_the_plan_draws_when_each_card_works(small: Workload) -> None:
    plan = plan_memory(with_micro_batches(small, 2), free_memory_of_cards([24, 24]), RTX_4090)
    drawn = cards_of_step(plan, RTX_4090)
    assert drawn is not None
    said = drawn.to_dict()
    assert (said["mode"], [card["name"] for card in said["cards"]]) == ("split blocks", ["cuda:0", "cuda:1"])
    assert said["reason"].startswith("Both cards work at once on 2 micro-batches: predicted 1.33x.")
    assert said["idle"] == pytest.approx(1 / 3, abs=0.01), "of 2 micro-batches, on paper"
    order = [[(forward, micro) for forward, micro, _, _ in card["work"]] for card in said["cards"]]
    assert order == [
        [(True, 0), (True, 1), (False, 0), (False, 1)],
        [(True, 0), (False, 0), (True, 1), (False, 1)],
    ]
    for card in said["cards"]:
        times = [time for _, _, *span in card["work"] for time in span]
        assert times == sorted(times)
        assert 0 <= times[0] <= times[-1] <= 1
    assert plan.seconds(RTX_4090) == pytest.approx(said["seconds"], rel=0.002), "and the optimizer"
    assert drawn.sentence() == "split blocks: the cards wait 34 % of a step"


def test_where_two_micro_batches_do_not_fit_the_cards_take_turns(small: Workload) -> None:
    train = TrainConfig(gradient_accumulation_steps=4, offload_activations="off", blocks_to_swap=0, **FULL)
    job = replace(small, train=train)
    turns, at_once = (
        job.estimate(job.shape(), MemoryMeasures(in_turn=turn, chunk_tokens=1024)).devices["cuda:0"].peak
        for turn in (True, False)
    )
    room = FreeMemory(devices=dict.fromkeys(("cuda:0", "cuda:1"), (turns + at_once) // 2))
    plan = plan_memory(job, room, RTX_4090)
    assert plan.fits
    assert plan.measures.in_turn
    assert "One card works after the other, so that it fits" in " ".join(notes_of(plan, None, RTX_4090))


MODES = ("one device", "split blocks", "split tokens", "copy per GPU")


def automatic(job: Workload, micro_batches: int, **train: Any) -> Workload:
    """The job with no placement of its own."""
    train = {**FULL, "gradient_accumulation_steps": micro_batches, **train}
    return replace(job, placement=None, train=TrainConfig(**train))


@pytest.mark.parametrize(
    ("gibibytes", "micro_batches", "mode"),
    [
        pytest.param([24, 24], 1, "split tokens", marks=pytest.mark.soak),
        ([24, 24], 4, "copy per GPU"),
        ([24, 24], 3, "split tokens"),
        ([24, 12], 1, "split tokens"),
    ],
)
def test_auto_takes_the_quickest_mode_for_as_many_clips_a_step(
    small: Workload, gibibytes: list[float], micro_batches: int, mode: str
) -> None:
    """By hand: two equal cards halve a clip, less what they send; cards of unequal speed take unequal parts of it."""
    plan = plan_on_cards(automatic(small, micro_batches), gibibytes, "auto")
    placement, train = plan.job.model.placement, plan.job.train
    assert (placement.mode, plan.fits) == (mode, True)
    copies = len(gibibytes) if mode == "copy per GPU" else 1
    assert train.gradient_accumulation_steps * copies == micro_batches
    assert placement.chosen.startswith(f"{mode} "), "and a line says why"
    assert all(other in placement.chosen for other in MODES)
    assert ("needs a gradient_accumulation_steps that 2 divides" in placement.chosen) == (micro_batches % 2 > 0)
    assert notes_of(plan, None, RTX_4090)[0] == f"Split Across GPUs, auto: {placement.chosen}"


@pytest.mark.parametrize(
    ("share", "mode"),
    [(0.5, "expert per GPU"), (0.9, "split tokens"), pytest.param(0.0, "split tokens", marks=pytest.mark.soak)],
)
def test_both_experts_of_a_pair_train_at_the_same_time_where_that_is_quicker(
    small: Workload, share: float, mode: str
) -> None:
    plan = plan_on_cards(replace(automatic(small, 1), longer_share=share), [24, 24], "auto")
    chosen = plan.job.model.placement.chosen
    assert plan.job.model.placement.mode == mode
    alone = float(chosen.split("one device ")[1].split()[0])
    if share:
        assert float(chosen.split("expert per GPU ")[1].split()[0]) == pytest.approx(share * alone, rel=0.06)
    else:
        assert "expert per GPU" not in chosen


def test_with_dropout_the_plan_says_that_experts_take_turns(small: Workload) -> None:
    drawing = replace(automatic(replace(small, lora=replace(small.lora, rank_dropout=0.1)), 1), longer_share=0.5)
    ways = {job.model.placement.mode: why for job, why in _jobs(drawing, dict.fromkeys(("a", "b"), RTX_4090))}
    assert ways["expert per GPU"] == "needs a LoRA without dropout"
    plan = plan_on_cards(drawing, [24], "one device")
    placement = replace(plan.job.model.placement, mode="expert per GPU")
    named = replace(plan, job=replace(plan.job, model=plan.job.model.with_placement(placement)))
    assert notes_of(named, None)[0].startswith("With dropout the experts train in turn, so one of two GPUs waits.")


@pytest.mark.lasts(1)
def test_the_plan_says_what_each_card_does_where_experts_train_at_the_same_time(small: Workload) -> None:
    placement = PlacementConfig(mode="expert per GPU", devices="cpu,cpu:0")
    for low, cards in (("diffusion_models:low", 2), ("", 0)):
        model = replace(small.model, placement=placement, low_noise_file=low)
        plan = plan_memory(replace(small, placement=None, model=model), free_memory_of_cards([24, 24]), RTX_4090)
        drawn = cards_of_step(plan, RTX_4090)
        assert (0 if drawn is None else len(drawn.names)) == cards
        assert drawn is None or drawn.reason.startswith("Each card trains one expert of the pair")


def test_cards_of_unequal_speed_share_blocks_or_tokens_within_a_tenth_of_the_ideal(small: Workload) -> None:
    plan = plan_on_cards(automatic(small, 4), [24, 12], "auto")
    cards = [next(card for card in CARDS if card.gibibytes == size) for size in (24, 12)]
    cards[0] = RTX_4090
    alone = [seconds(replace(small, placement=split_blocks(TWO[:1], 30, "midpoint")), card) for card in cards]
    together = 1 / sum(1 / one for one in alone)
    by_speed = modes._by_speed(small, {"cuda:0": cards[0], "cuda:1": cards[1]})
    assert by_speed == ["22"], "30 blocks by 165.2 and 58.3 TFLOP/s; by memory it would be 21"
    blocks = seconds(with_micro_batches(small, 4, *by_speed), *cards)
    assert 5 * together / blocks >= 0.9, "two stages of equal time, m + 1 of them"
    chosen = plan.job.model.placement.chosen
    assert plan.job.model.placement.token_shares == "75,25", "9 of 12 heads"
    assert 4 * together / float(chosen.split()[2]) >= 0.85, "a tenth of it is what they send"
    drawn = cards_of_step(plan, RTX_4090)
    assert drawn is not None
    assert (drawn.mode, drawn.reason) == ("split tokens", chosen)


@pytest.mark.parametrize("mode", ["auto", "split tokens"])
def test_token_shares_for_another_number_of_cards_are_refused(small: Workload, mode: str) -> None:
    job = automatic(small, 1)
    job = replace(job, model=job.model.with_placement(replace(job.model.placement, token_shares="2,1,1")))
    with pytest.raises(PlacementError, match=r'token_shares "2,1,1" has 3 numbers for 2 devices'):
        plan_on_cards(job, [24, 24], mode)


def test_what_does_not_fit_is_not_taken_and_the_reason_says_what_it_lacks(small: Workload) -> None:
    job = automatic(small, 2, offload_activations="off", blocks_to_swap=0)
    plan = plan_on_cards(job, [6, 6], "auto")
    assert (plan.job.model.placement.mode, plan.fits) == ("split blocks", True)
    assert "copy per GPU does not fit (" in plan.job.model.placement.chosen
    assert "one device does not fit (" in plan.job.model.placement.chosen
    tiny = plan_on_cards(job, [3, 3], "auto")
    assert not tiny.fits
    assert tiny.job.model.placement.chosen.startswith("No mode fits: ")


def test_shares_are_open_on_gpus_of_several_kinds_until_they_are_named(
    small: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_open(**placement: str) -> bool:
        asked = PlacementConfig(**{"mode": "split tokens", "devices": "all", **placement})
        return modes.leaves_shares_open(replace(small, model=small.model.with_placement(asked)))

    put_in(monkeypatch, gpu("NVIDIA GeForce RTX 4090", (8, 9), 24), gpu("NVIDIA GeForce RTX 4070", (8, 9), 12))
    assert left_open()
    closed = ({"token_shares": "1,1"}, {"mode": "split blocks"}, {"devices": "cuda:0"}, {"devices": "cuda:0,cpu"})
    assert not any(left_open(**one) for one in closed)
    put_in(monkeypatch, *[gpu("NVIDIA GeForce RTX 4090", (8, 9), 24)] * 2)
    assert not left_open()


def test_a_list_of_blocks_and_a_mode_that_is_named_stay(small: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, *[gpu("NVIDIA GeForce RTX 4090", (8, 9), 24)] * 2)
    monkeypatch.setenv("WAN_TRAINER_HOST_GIB", "64")

    def planned(devices: str = "all", **placement: str) -> PlacementConfig:
        model = small.model.with_placement(PlacementConfig(devices=devices, **placement))
        plan = plan_here(replace(automatic(small, 2), model=model))
        assert plan is not None
        return plan.job.model.placement

    found = planned(mode="auto")
    assert (found.mode, found.devices) == ("copy per GPU", "cuda:0,cuda:1")
    assert found.identity() == {"copies": 2}
    listed = planned(mode="auto", split_at="12")
    assert (listed.mode, listed.split_at, listed.chosen) == ("split blocks", "12", "")
    with_cpu = planned("cuda:0,cpu", mode="auto")
    assert (with_cpu.mode, with_cpu.chosen) == ("split blocks", ""), "a CPU has no speed to compare"
    assert planned(mode="split tokens") == PlacementConfig(mode="split tokens", devices="all"), "of one kind"
