"""Turns, weights and balanced buckets: exact shares, and still nothing but a function of the micro-step."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from wan_core.cache import Batches, CacheItem, CacheSet, LatentCache
from wan_core.errors import ConfigError


def make_item(number: int, **changes) -> CacheItem:
    values = {"latent_key": f"{number:064x}", "text_key": f"{number % 3:064x}", "num_frames": 5, "height": 32}
    return CacheItem(**{**values, "width": 32, "name": f"clip_{number}", **changes})


def make_batches(items: list[CacheItem], tmp_path, **options) -> Batches:
    cache_set = CacheSet(
        items=tuple(items), empty_text_key="e" * 64, negative_text_key="f" * 64, latent_space="wan2.1", fps=16.0,
        vae_identity="vae", text_identity="t5",
    )  # fmt: skip
    return Batches(cache_set, LatentCache(tmp_path), **{"seed": 0, "batch_size": 1, **options})


def seen(batches: Batches, count: int) -> list[tuple[str, ...]]:
    return [tuple(item.name for item in batches.items_at(step)) for step in range(count)]


def tally(batches: Batches, count: int) -> Counter[str]:
    return Counter(name for names in seen(batches, count) for name in names)


def test_samples_of_one_file_take_turns(tmp_path):
    """Three windows of one file and a clip of its own: two batches an epoch."""
    windows = [make_item(number, turn=number, turns=3) for number in range(3)]
    batches = make_batches([*windows, make_item(9)], tmp_path)
    epochs = [sorted(name for (name,) in seen(batches, 12)[start : start + 2]) for start in range(0, 12, 2)]
    assert epochs == [[f"clip_{epoch % 3}", "clip_9"] for epoch in range(6)]


def test_turns_without_a_partner_leave_epochs_empty_and_are_passed_over(tmp_path):
    batches = make_batches([make_item(0, turn=1, turns=4), make_item(1, turn=2, turns=4)], tmp_path)
    assert seen(batches, 6) == [("clip_0",), ("clip_1",)] * 3


@pytest.mark.parametrize(
    ("weight", "repeats", "appearances", "epochs"),
    [(0.5, 1, 1, 2), (0.25, 3, 3, 4), (1.5, 1, 3, 2), (0.1, 1, 1, 10), (2.0, 2, 4, 1), (1 / 3, 1, 1, 3)],
)
def test_a_weight_is_an_exact_share_over_many_epochs(tmp_path, weight, repeats, appearances, epochs):
    """Any `epochs` epochs in a row show it `appearances` times."""
    weighted = make_item(0, weight=weight, repeats=repeats)
    rounds = 100 * epochs
    whole = make_batches([weighted, make_item(1, width=48)], tmp_path)._order._groups[0].seen.counts(0, rounds)
    assert int(whole.sum()) == 100 * appearances
    for start in range(rounds - epochs):
        assert int(whole[start : start + epochs].sum()) == appearances


def test_clips_of_half_weight_do_not_all_come_in_the_same_epochs(tmp_path):
    batches = make_batches([make_item(number, weight=0.5) for number in range(40)], tmp_path)
    first = batches.batches_per_epoch
    assert 10 < first < 30
    assert set(tally(batches, 40).values()) == {1}
    assert set(tally(batches, 400).values()) == {10}


def test_weight_and_turns_go_together(tmp_path):
    items = [make_item(0, weight=0.5, turn=0, turns=2), make_item(1, weight=0.5, turn=1, turns=2), make_item(2)]
    counts = make_batches(items, tmp_path)._order._groups[0].seen.counts(0, 400).sum(axis=0).tolist()
    assert counts == [100, 100, 400]


def test_balanced_sampling_gives_every_bucket_the_same_and_starves_no_clip(tmp_path):
    """12 clips of one size and 3 of another: proportionally 4 to 1, balanced 1 to 1."""
    items = [make_item(number) for number in range(12)] + [make_item(number, width=48) for number in range(12, 15)]
    plain = tally(make_batches(items, tmp_path), 150)
    assert set(plain.values()) == {10}
    batches = make_batches(items, tmp_path, bucket_sampling="balanced")
    assert batches.batches_per_epoch == 16  # 2 buckets of round(15 / 2) batches
    balanced = tally(batches, 16 * 3)
    assert sum(count for name, count in balanced.items() if int(name[5:]) < 12) == 24
    assert set(balanced.values()) == {2, 8}
    assert {name for name, count in balanced.items() if count == 8} == {"clip_12", "clip_13", "clip_14"}
    for start in range(0, 48, 16):
        widths = [batches.items_at(step)[0].width for step in range(start, start + 16)]
        assert sorted(widths) == [32] * 8 + [48] * 8
        assert widths != sorted(widths)


def test_clips_with_different_numbers_of_references_are_not_batched_together(tmp_path):
    batches = make_batches([make_item(n, references=1 + n % 2) for n in range(4)], tmp_path, batch_size=4)
    assert sorted(map(sorted, seen(batches, 2))) == [["clip_0", "clip_2"], ["clip_1", "clip_3"]]


def test_an_unknown_way_of_sampling_is_refused(tmp_path):
    with pytest.raises(ConfigError, match='bucket_sampling "fair" is unknown'):
        make_batches([make_item(0)], tmp_path, bucket_sampling="fair")


def test_an_item_that_would_never_be_trained_is_refused():
    for changes in ({"weight": 0.0}, {"weight": -1.0}, {"turn": 2, "turns": 2}, {"turn": -1}):
        with pytest.raises(ConfigError, match="would never train correctly"):
            make_item(0, **changes)


@pytest.mark.parametrize("case", range(12))
def test_any_run_can_be_cut_anywhere_and_split_among_ranks(tmp_path, case):
    """Random sets and settings: a fresh object asked in any order, and any number of ranks, tell the same sequence."""
    chance = random.Random(case)
    items = []
    for number in range(chance.randint(1, 20)):
        turns = chance.choice([1, 1, 1, 2, 3])
        items.append(
            make_item(
                number,
                width=chance.choice([32, 48, 64]),
                repeats=chance.choice([1, 1, 2, 5]),
                weight=chance.choice([1.0, 1.0, 0.5, 0.3, 1.7]),
                turns=turns,
                turn=chance.randrange(turns),
            )
        )
    options = {
        "seed": chance.randrange(1000),
        "batch_size": chance.choice([1, 2, 3, 4]),
        "bucket_sampling": chance.choice(["proportional", "balanced"]),
    }
    alone = seen(make_batches(items, tmp_path, **options), 60)
    assert all(1 <= len(names) <= options["batch_size"] for names in alone)
    sizes = {item.name: item.width for item in items}
    assert all(len({sizes[name] for name in names}) == 1 for names in alone)
    shuffled = chance.sample(items, len(items))
    resumed = make_batches([replace(item, caption="other") for item in shuffled], tmp_path, **options)
    for step in chance.sample(range(60), 20):
        assert tuple(item.name for item in resumed.items_at(step)) == alone[step]
    world = chance.choice([2, 3, 5])
    ranks = [make_batches(items, tmp_path, rank=rank, world=world, **options) for rank in range(world)]
    for step in range(60 // world):
        for rank, batches in enumerate(ranks):
            assert tuple(item.name for item in batches.items_at(step)) == alone[step * world + rank]


def test_a_far_micro_step_is_found_without_living_through_the_epochs_before(tmp_path):
    items = [make_item(number, weight=0.5) for number in range(8)]
    batches = make_batches(items, tmp_path)
    # Eight clips of weight a half: any two epochs have 8 batches, so the 400,000th begins an even epoch.
    assert Counter(batches.items_at(400_000 + step)[0].name for step in range(8)) == tally(batches, 8)
    assert set(tally(batches, 8).values()) == {1}
