"""Tensors made elsewhere: stored under what they hold, trained as they are, and refused by name."""

from __future__ import annotations

import pytest
import torch

from tests.support.caching import unsound
from wan_core.cache import Batches, LatentCache
from wan_core.errors import DatasetError
from wan_core.importers import PromptKeys, TensorClip, checked_text, store_clips, store_text
from wan_core.importers.graph_tensors import space_of
from wan_core.model import WAN21_LATENTS, WAN22_LATENTS, condition_named


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def clip(number: int = 1, **changes) -> TensorClip:
    made = {
        "latent": drawn(16, 2, 4, 6, seed=number),
        "text": drawn(3, 4096, seed=number),
        "name": f"clip {number}",
    }
    return TensorClip(**{**made, **changes})


def store(cache, clips, kind="none", space=WAN21_LATENTS):
    empty, negative = (store_text(cache, drawn(n, 4096, seed=100 + n), "prompt") for n in (1, 2))
    return store_clips(
        clips, cache, prompts=PromptKeys(empty, negative), space=space, kind=condition_named(kind), fps=16.0
    )


def test_what_was_given_is_what_is_trained(tmp_path):
    cache = LatentCache(tmp_path)
    clips = [clip(1), clip(2)]
    cache_set, report = store(cache, clips)
    assert (report.latents_encoded, report.texts_encoded, report.clips, report.frames) == (2, 2, 2, 10)
    assert cache.read_set(report.fingerprint) == cache_set
    assert unsound(cache, cache_set) == []
    batch = Batches(cache_set, cache, seed=0, batch_size=2).at(0)
    for latent, text, name in zip(batch.latents, batch.texts, batch.names, strict=True):
        given = clips[int(name[-1]) - 1]
        assert torch.equal(latent, given.latent.bfloat16().float())
        assert torch.equal(text[:3], given.text.bfloat16().float())
        assert not text[3:].any()
    assert {(item.num_frames, item.height, item.width) for item in cache_set.items} == {(5, 32, 48)}


def test_the_same_tensors_are_written_once_and_other_ones_beside_them(tmp_path):
    cache = LatentCache(tmp_path)
    _, first = store(cache, [clip(1), clip(2)])
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    _, again = store(LatentCache(tmp_path), [clip(2), clip(1)])
    assert (again.latents_encoded, again.latents_reused, again.texts_encoded, again.texts_reused) == (0, 2, 0, 2)
    assert again.fingerprint == first.fingerprint, "the order is no other job"
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")} == before
    other_text = clip(1, text=drawn(3, 4096, seed=9))
    _, changed = store(cache, [other_text, clip(2)])
    assert (changed.latents_encoded, changed.texts_encoded) == (0, 1)
    assert changed.fingerprint != first.fingerprint


def test_a_damaged_entry_is_written_again(tmp_path):
    cache = LatentCache(tmp_path)
    cache_set, _ = store(cache, [clip(1)])
    key = cache_set.items[0].latent_key
    path = tmp_path / "latents" / key[:2] / f"{key}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    _, report = store(cache, [clip(1)])
    assert (report.latents_encoded, report.latents_reused) == (1, 0)
    assert unsound(cache, cache_set) == []


def test_conditioning_is_kept_where_the_model_reads_it(tmp_path):
    cache = LatentCache(tmp_path)
    given = {"channels": drawn(20, 2, 4, 6), "image_tokens": drawn(257, 1280)}
    cache_set, report = store(cache, [clip(1, condition=given)], kind="first")
    kept = cache.read_condition(cache_set.items[0].condition_key)
    assert list(kept) == ["channels"], "the rest is not read by this model"
    assert torch.equal(kept["channels"], given["channels"].bfloat16())
    assert report.conditions_encoded == 1
    with pytest.raises(DatasetError, match="clip 1 lacks image_tokens"):
        store(cache, [clip(1, condition={"channels": given["channels"]})], kind="first_vision")
    with pytest.raises(DatasetError, match=r"The conditioning of clip 1 does not fit it: its channels have shape"):
        store(cache, [clip(1, condition={"channels": drawn(20, 2, 4, 8)})], kind="first")


def test_padding_is_taken_off_and_inner_zero_rows_are_not():
    padded = torch.zeros(1, 512, 4096)
    padded[0, :7] = drawn(7, 4096)
    padded[0, 3] = 0
    assert torch.equal(checked_text(padded, "x"), padded[0, :7])
    full = drawn(512, 4096)
    assert torch.equal(checked_text(full, "x"), full)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"latent": drawn(16, 2, 4)}, r"clip 1 has shape \[16, 2, 4\]; a Wan clip is \(channels, frames"),
        ({"latent": drawn(4, 2, 4, 6)}, "clip 1 has 4 channels, the model needs 16"),
        ({"latent": drawn(48, 2, 4, 6)}, "clip 1 has 48 channels, the model needs 16"),
        ({"latent": drawn(16, 2, 5, 6)}, "clip 1 is 6x5 latents; both must be even. Make clips whose sides are multip"),
        ({"latent": torch.full((16, 1, 2, 2), torch.inf)}, "clip 1 holds NaN or infinity"),
        ({"text": drawn(3, 768)}, r"The text of clip 1 has shape \[3, 768\]; umT5 gives 4096"),
        ({"text": torch.zeros(512, 4096)}, "The text of clip 1 is all zeros; even the empty prompt has its end"),
        ({"text": drawn(513, 4096)}, "The text of clip 1 has 513 tokens; Wan reads 512"),
        ({"text": torch.full((3, 4096), torch.nan)}, "The text of clip 1 holds NaN"),
    ],
)
def test_what_cannot_be_trained_is_named(tmp_path, changes, said):
    with pytest.raises(DatasetError, match=said):
        store(LatentCache(tmp_path), [clip(1, **changes)])


def test_nothing_is_no_set(tmp_path):
    with pytest.raises(DatasetError, match="There are no latents"):
        store(LatentCache(tmp_path), [])


def test_the_space_follows_from_the_channels():
    assert space_of(16, "x") is WAN21_LATENTS
    assert space_of(48, "x") is WAN22_LATENTS
    with pytest.raises(DatasetError, match="x has 4 channels; Wan latents have 16"):
        space_of(4, "x")
