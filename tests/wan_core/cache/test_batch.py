"""Order of training: deterministic, resumable anywhere, split between ranks, never mixing sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from wan_core.cache import Batches, CacheItem, CacheSet, LatentCache, pad_text, stack_texts
from wan_core.errors import CacheError, ConfigError


@pytest.fixture
def cache(tmp_path):
    return LatentCache(tmp_path)


def make_item(number: int, width: int = 32, repeats: int = 1) -> CacheItem:
    return CacheItem(
        latent_key=f"{number:064x}",
        text_key=f"{number % 3:064x}",
        num_frames=5,
        height=32,
        width=width,
        repeats=repeats,
        name=f"clip_{number}",
    )


def make_set(items: list[CacheItem]) -> CacheSet:
    return CacheSet(
        items=tuple(items),
        empty_text_key="e" * 64,
        negative_text_key="f" * 64,
        latent_space="wan2.1",
        fps=16.0,
        vae_identity="vae",
        text_identity="t5",
    )


@pytest.fixture
def cache_set(cache):
    """Seven items in two buckets, the last one seen three times: 9 + 0 repeats."""
    items = [make_item(n, 32) for n in range(4)] + [make_item(n, 48) for n in range(4, 6)]
    items.append(make_item(6, 48, repeats=3))
    for item in items:
        cache.write_latent(item.latent_key, torch.full((16, 2, 4, item.width // 8), item.width + 0.0))
        cache.write_text(item.text_key, torch.full((int(item.text_key, 16) + 1, 4096), 2.0))
    return make_set(items)


def names(batches: Batches, steps: range) -> list[tuple[str, ...]]:
    return [tuple(item.name for item in batches.items_at(step)) for step in steps]


def test_one_epoch_shows_every_item_as_often_as_it_repeats(cache_set, cache):
    batches = Batches(cache_set, cache, seed=7, batch_size=2)
    # bucket 32: 4 items = 2 batches; bucket 48: 2 + 3 = 5 items = 3 batches, the last one short
    assert batches.batches_per_epoch == 5
    seen = Counter(name for batch in names(batches, range(5)) for name in batch)
    assert seen == {**{f"clip_{n}": 1 for n in range(6)}, "clip_6": 3}
    assert sorted(len(batch) for batch in names(batches, range(5))) == [1, 2, 2, 2, 2]


def test_no_batch_mixes_buckets(cache_set, cache):
    batches = Batches(cache_set, cache, seed=1, batch_size=3)
    for step in range(40):
        assert len({item.bucket for item in batches.items_at(step)}) == 1


def test_the_order_is_a_pure_function_of_seed_and_micro_step(cache_set, cache):
    forward = names(Batches(cache_set, cache, seed=3, batch_size=1), range(60))
    other = Batches(cache_set, cache, seed=3, batch_size=1)
    backward = [names(other, range(step, step + 1))[0] for step in reversed(range(60))]
    assert backward[::-1] == forward
    assert names(Batches(cache_set, cache, seed=4, batch_size=1), range(60)) != forward
    per_epoch = [forward[start : start + 9] for start in range(0, 54, 9)]
    assert len({tuple(epoch) for epoch in per_epoch}) == 6


def test_the_order_is_the_same_on_every_machine(cache):
    items = [make_item(n) for n in range(6)]
    batches = Batches(make_set(items), cache, seed=0, batch_size=1)
    # by hand: places sorted by blake2b("0/0/0/<place>"), then by blake2b("0/0/batches/<place>")
    assert [name for (name,) in names(batches, range(6))] == [
        "clip_5",
        "clip_4",
        "clip_3",
        "clip_2",
        "clip_0",
        "clip_1",
    ]


def test_ranks_share_an_epoch_without_overlap(cache_set, cache):
    alone = names(Batches(cache_set, cache, seed=5, batch_size=1), range(18))
    ranks = [names(Batches(cache_set, cache, seed=5, batch_size=1, rank=rank, world=3), range(6)) for rank in range(3)]
    assert [ranks[i % 3][i // 3] for i in range(18)] == alone


def test_a_batch_carries_float32_latents_and_padded_texts(cache_set, cache):
    batches = Batches(cache_set, cache, seed=7, batch_size=2)
    for step in range(5):
        batch, items = batches.at(step), batches.items_at(step)
        count = len(items)
        assert batch.latents.dtype == batch.texts.dtype == torch.float32
        assert batch.latents.shape == (count, 16, 2, 4, items[0].width // 8)
        assert batch.texts.shape == (count, 16, 4096)
        assert batch.names == tuple(item.name for item in items)
        assert bool((batch.latents == items[0].width).all())
        for text, item in zip(batch.texts, items, strict=True):
            rows = int(item.text_key, 16) + 1
            assert bool((text[:rows] == 2).all())
            assert bool((text[rows:] == 0).all())


def test_entries_are_read_again_when_memory_is_small(cache_set, cache):
    roomy = Batches(cache_set, cache, seed=7, batch_size=2)
    tight = Batches(cache_set, cache, seed=7, batch_size=2, memory_bytes=0)
    for step in (0, 3, 0):
        torch.testing.assert_close(roomy.at(step).latents, tight.at(step).latents)


def test_evaluation_items_are_the_first_distinct_ones(cache):
    items = [make_item(1), make_item(1), make_item(2), make_item(3)]
    batches = Batches(make_set(items), cache, seed=0, batch_size=1)
    assert [item.name for item in batches.evaluation_items(2)] == ["clip_1", "clip_2"]
    assert len(batches.evaluation_items(9)) == 3


def test_an_entry_of_the_wrong_size_is_refused_before_it_is_trained(cache_set, cache):
    cache.write_latent(cache_set.items[0].latent_key, torch.zeros(16, 2, 4, 9))
    batches = Batches(cache_set, cache, seed=0, batch_size=1)
    with pytest.raises(CacheError, match="shape"):
        batches.load(cache_set.items[:1])


def test_padding_keeps_rows_and_adds_zeros():
    padded = pad_text(torch.ones(3, 4096, dtype=torch.bfloat16))
    assert padded.dtype == torch.float32
    assert padded.sum() == 3 * 4096


@pytest.mark.parametrize(
    ("prompts", "rows"), [((3,), 16), ((15, 2), 16), ((16,), 32), ((4, 300), 304), ((496,), 512), ((511,), 512)]
)
def test_a_batch_of_texts_ends_with_a_zero_row_and_has_few_more(prompts, rows):
    stacked = stack_texts([torch.full((count, 8), 1.5, dtype=torch.bfloat16) for count in prompts])
    assert stacked.dtype == torch.float32
    assert stacked.shape == (len(prompts), rows, 8)
    for text, count in zip(stacked, prompts, strict=True):
        assert bool((text[:count] == 1.5).all())
        assert bool((text[count:] == 0).all())
    assert bool((stacked[:, -1] == 0).all()), "it stands for all that are missing"


def test_a_prompt_of_all_rows_leaves_none_to_stand_for_others():
    text = torch.arange(1.0, 513.0)[:, None].expand(512, 8)
    assert torch.equal(stack_texts([text, text[:4]])[0], text)


def test_impossible_settings_are_refused(cache):
    one = make_set([make_item(1)])
    with pytest.raises(ConfigError, match="batch_size"):
        Batches(one, cache, seed=0, batch_size=0)
    with pytest.raises(ConfigError, match="Rank 2 of 2"):
        Batches(one, cache, seed=0, batch_size=1, rank=2, world=2)
    with pytest.raises(CacheError, match="no clips"):
        Batches(make_set([]), cache, seed=0, batch_size=1)


def test_a_batch_carries_what_its_clips_are_conditioned_on(cache_set, cache):
    assert Batches(cache_set, cache, seed=7, batch_size=2).at(0).conditioning is None
    items = []
    for number, item in enumerate(cache_set.items):
        key = f"{1000 + number:064x}"
        channels = torch.full((20, 2, 4, item.width // 8), float(number))
        cache.write_condition(key, {"channels": channels, "image_tokens": torch.full((257, 20), float(number))})
        items.append(replace(item, condition_key=key))
    given = replace(cache_set, items=tuple(items), conditioning="first_vision")
    batches = Batches(given, cache, seed=7, batch_size=2)
    for step in range(5):
        batch = batches.at(step)
        numbers = [float(name.removeprefix("clip_")) for name in batch.names]
        assert batch.conditioning is not None
        assert batch.conditioning.channels is not None
        assert batch.conditioning.image_tokens is not None
        assert batch.conditioning.channels.shape == (len(numbers), 20, 2, 4, batch.latents.shape[-1])
        assert batch.conditioning.channels[:, 0, 0, 0, 0].tolist() == numbers
        assert batch.conditioning.image_tokens[:, 0, 0].tolist() == numbers
        assert batch.conditioning.channels.dtype == batch.conditioning.image_tokens.dtype == torch.float32
