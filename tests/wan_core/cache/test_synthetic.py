"""Random data for benchmarks: right sizes, the same for the same seed, and nothing on disk but the list."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

from tests.support.caching import unsound
from tests.support.sessions import train_here
from tests.support.tiny_run import ONE_LOOK, TINY_I2V, TINY_TI2V, make_run
from wan_core.cache import Batches, LatentCache, SyntheticConfig, synthetic_set
from wan_core.errors import ConfigError
from wan_core.files import atomic_write_json
from wan_core.model import CONDITION_KINDS, WAN21_LATENTS, WAN22_LATENTS, Conditioning, condition_named
from wan_core.train import TrainConfig

SMALL = {"width": 64, "height": 48, "num_frames": 9, "text_length": 5}


def make(kind="none", channels=0, space=WAN21_LATENTS, **changes):
    return synthetic_set(
        SyntheticConfig(**{"count": 3, **SMALL, **changes}),
        space=space,
        size_multiple=2 * space.spatial_stride,
        kind=condition_named(kind),
        condition_channels=channels,
    )


def epochs(cache_set, cache, count, seed=0):
    batches = Batches(cache_set, cache, seed=seed, batch_size=1)
    per_epoch = batches.batches_per_epoch
    return [[batches.at(epoch * per_epoch + place) for place in range(per_epoch)] for epoch in range(count)]


def test_a_count_is_the_same_clips_every_epoch_and_every_time(tmp_path):
    cache = LatentCache(tmp_path / "cache")
    first, second = epochs(make(), cache, 2)
    assert len(first) == 3
    assert {b.names for b in first} == {b.names for b in second} == {(f"synthetic {n}",) for n in range(3)}
    drawn = {b.names: b for b in first}
    for batch in [*second, *epochs(make(), LatentCache(tmp_path / "elsewhere"), 1)[0]]:
        assert torch.equal(batch.latents, drawn[batch.names].latents)
        assert torch.equal(batch.texts, drawn[batch.names].texts)
    assert first[0].latents.shape == (1, 16, 3, 6, 8)
    assert first[0].texts[0, :5].abs().min() > 0
    assert not first[0].texts[0, 5:].any()
    assert not (tmp_path / "cache").exists(), "reading writes nothing"


@pytest.mark.parametrize("name", CONDITION_KINDS)
def test_every_kind_of_conditioning_is_drawn(tmp_path, name):
    """Fun-Control and Fun-InP models among them: what a model of that kind reads, in the sizes it reads."""
    kind = condition_named(name)
    channels = {"context": 16, "animate": 20}.get(name, 36)
    batch = Batches(make(name, channels=channels), LatentCache(tmp_path), seed=0, batch_size=2).at(0)
    given = batch.conditioning or Conditioning()
    drawn = {name: getattr(given, name) for name in kind.tensors if not name.startswith("context")}
    drawn |= {f"context.{number}": stream for number, stream in enumerate(given.context, 1)}
    assert drawn.keys() == set(kind.tensors)
    assert drawn.pop("replaces", False) is False
    assert all(len(tensor) == len(batch.latents) and tensor.isfinite().all() for tensor in drawn.values())


def test_endless_never_gives_a_clip_twice_and_the_same_ones_to_the_same_seed(tmp_path):
    cache = LatentCache(tmp_path)

    def three_epochs(**ranks):
        batches = Batches(make(count=0), cache, seed=0, batch_size=2, **ranks)
        assert batches.batches_per_epoch == 32
        return [item for micro_step in range(3 * 32) for item in batches.items_at(micro_step)]

    items = three_epochs()
    assert items == three_epochs()
    latents = [cache.read_latent(item.latent_key) for item in items]
    texts = [cache.read_text(item.text_key) for item in items]
    for entries in (latents, texts):
        assert len({entry.float().sum().item() for entry in entries}) == 3 * 64
    assert all(torch.equal(cache.read_latent(i.latent_key), entry) for i, entry in zip(items, latents, strict=True))
    two_ranks = {item.latent_key for rank in (0, 1) for item in three_epochs(rank=rank, world=2)}
    assert len(two_ranks) == 2 * 3 * 64, "ranks do not share clips either"
    held_out = Batches(make(count=0), cache, seed=0, batch_size=1).evaluation_items(64)
    assert not {item.latent_key for item in held_out} & two_ranks


def test_latents_are_standard_normal_and_clips_differ(tmp_path):
    batches = Batches(make(width=256, height=256), LatentCache(tmp_path), seed=0, batch_size=3)
    latents = batches.at(0).latents
    assert latents.mean().item() == pytest.approx(0, abs=0.01)
    assert latents.std().item() == pytest.approx(1, abs=0.01)
    assert abs(torch.corrcoef(latents.flatten(1))[0, 1].item()) < 0.01


def test_seed_and_size_make_other_sets(tmp_path):
    sets = [make(), make(seed=1), make(count=0), make(num_frames=5), make(text_length=6), make(width=32)]
    assert len({s.fingerprint() for s in sets}) == len(sets)
    cache = LatentCache(tmp_path)
    fingerprint = cache.write_set(make())
    assert cache.read_set(fingerprint) == make()
    assert len([f for f in tmp_path.rglob("*") if f.is_file()]) == 1


@pytest.mark.parametrize(
    ("kind", "channels", "expected"),
    [
        ("first", 20, {"channels": (20, 3, 6, 8)}),
        ("first_vision", 20, {"channels": (20, 3, 6, 8), "image_tokens": (257, 1280)}),
        ("first_last_vision", 20, {"channels": (20, 3, 6, 8), "image_tokens": (514, 1280)}),
        ("vace", 96, {"vace": (96, 3, 6, 8)}),
        ("control", 32, {"channels": (32, 3, 6, 8)}),
        ("camera", 20, {"channels": (20, 3, 6, 8), "camera": (24, 3, 48, 64)}),
    ],
)
def test_every_conditioning_is_there_in_the_sizes_of_the_model(tmp_path, kind, channels, expected):
    cache_set, cache = make(kind, channels), LatentCache(tmp_path)
    item = cache_set.items[0]
    tensors = cache.read_condition(item.condition_key, cache_set.latent_shape(item))
    assert {name: tuple(t.shape) for name, t in tensors.items()} == expected
    if kind.startswith("first"):
        assert tensors["channels"][:4, 0].eq(1).all()
        assert tensors["channels"][:4, 1].eq(0).all()
    assert unsound(cache, cache_set) == []


def test_the_48_channels_of_ti2v(tmp_path):
    cache_set = make(space=WAN22_LATENTS, width=64, height=64)
    assert Batches(cache_set, LatentCache(tmp_path), seed=0, batch_size=1).at(0).latents.shape == (1, 48, 3, 4, 4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"count": -1}, "count is -1. Set it between 1 and 50000, or to 0"),
        ({"count": 50_001}, "count is 50001"),
        ({"text_length": 513}, "text_length is 513. Set it between 1 and 512"),
        ({"text_length": 0}, "text_length is 0"),
        ({"num_frames": 8}, "num_frames is 8; Wan needs 4n\\+1"),
        ({"width": 72}, "width is 72; the model needs multiples of 16. Set width to 64 or 80"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(settings, said):
    with pytest.raises(ConfigError, match=said):
        make(**settings)


def lora_trained_on(tmp_path, shape, cache_set):
    """The metadata of a LoRA trained for two steps on `cache_set`, and what the run said."""
    quick = TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, **ONE_LOOK)
    run = make_run(tmp_path, shape=shape, train=quick)
    if cache_set is not None:
        fingerprint = LatentCache(run.roots.first("cache")).write_set(cache_set)
        config = replace(run.config, data=replace(run.config.data, fingerprint=fingerprint))
        atomic_write_json(run.directory / "run.json", config.to_dict())
    said = train_here(run)
    with safe_open(next(run.directory.glob("saves/*/lora.safetensors")), "pt") as file:
        return file.metadata(), [event.text for event in said if hasattr(event, "text")]


@pytest.mark.parametrize(
    ("shape", "kind", "channels", "space"),
    [(TINY_I2V, "first", 20, WAN21_LATENTS), (TINY_TI2V, "none", 0, WAN22_LATENTS)],
)
def test_it_trains_and_the_lora_says_that_it_learned_nothing(tmp_path, shape, kind, channels, space):
    metadata, said = lora_trained_on(tmp_path, shape, make(kind, channels, space, count=0, width=64, height=64))
    assert metadata["wan_trainer.data"] == "synthetic"
    assert "random tensors, not data" in metadata["modelspec.description"]
    assert any("random tensors, not data" in text for text in said)


def test_a_lora_of_real_data_has_no_such_mark(tmp_path):
    metadata, said = lora_trained_on(tmp_path, TINY_I2V, None)
    assert not {"wan_trainer.data", "modelspec.description"} & set(metadata)
    assert not any("random tensors" in text for text in said)
