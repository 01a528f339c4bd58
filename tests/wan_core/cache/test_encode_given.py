"""What conditioned models are given beside a clip: frames, image tokens, stills."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from tests.support.bench import CountingText, PoolingCodec, counts, given_counts
from tests.support.caching import unsound
from wan_core.cache import Encoders, LatentCache, encode_missing
from wan_core.dataset import NOTHING_TO_PREDICT, Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.errors import CacheError, DatasetError


def test_an_image_to_video_clip_is_given_its_first_frame_and_grey(bench):
    report, codec, _ = bench.run(conditioning="first")
    assert (counts(report), given_counts(report)) == ((3, 0, 5, 0), (3, 0))
    assert "given frames (first): 3 encoded, 0 reused" in report.sentences()
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    assert unsound(cache, cache_set) == []
    for index in range(3):
        whole, given = codec.seen[2 * index : 2 * index + 2]
        assert torch.equal(given[0], whole[0])
        assert bool((given[1:] == 0.5).all())
        found = cache.read_condition(cache_set.items[index].condition_key)
        assert set(found) == {"channels"}
        expected = PoolingCodec().encode(given)
        torch.testing.assert_close(found["channels"][4:].float(), expected, atol=5e-3, rtol=5e-3)
        assert found["channels"][:4, :, 0, 0].tolist() == [[1.0, 0.0, 0.0]] * 4
    assert bench.vision.seen == []


def test_first_and_last_frame_bring_the_tokens_of_both(bench):
    report, codec, _ = bench.run(conditioning="first_last_vision")
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    assert cache_set.vision_identity == "mean"
    whole, given = codec.seen[:2]
    assert torch.equal(given[[0, -1]], whole[[0, -1]])
    assert bool((given[1:-1] == 0.5).all())
    tokens = cache.read_condition(cache_set.items[0].condition_key)["image_tokens"].float()
    assert tokens.shape == (514, 1280)
    torch.testing.assert_close(tokens[0, 0], whole[0].mean(), atol=2e-3, rtol=0)
    torch.testing.assert_close(tokens[-1, 0], whole[-1].mean(), atol=2e-3, rtol=0)
    assert torch.equal(bench.vision.seen[1], whole[-1])


def test_conditioning_is_encoded_once_and_latents_are_shared_with_other_models(bench):
    plain, *_ = bench.run()
    given, *_ = bench.run(conditioning="first")
    assert (counts(given), given_counts(given)) == ((0, 3, 0, 5), (3, 0))
    again, codec, _ = bench.run(conditioning="first")
    assert given_counts(again) == (0, 3)
    assert codec.seen == []
    assert again.fingerprint == given.fingerprint != plain.fingerprint
    vision, *_ = bench.run(conditioning="first_vision")
    assert given_counts(vision) == (3, 0)


def test_a_damaged_condition_is_encoded_again(bench):
    first, *_ = bench.run(conditioning="first")
    path = sorted(bench.cache_root.glob("conditions/*/*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-2])
    report, *_ = bench.run(conditioning="first")
    assert (counts(report)[0], given_counts(report), report.damaged) == (0, (1, 2), 1)
    assert report.fingerprint == first.fingerprint


def test_stills_alone_leave_a_model_that_is_given_them_nothing_to_predict(bench):
    for clip in bench.folder.glob("*.mp4"):
        Image.new("RGB", (64, 48), (200, 100, 50)).save(clip.with_suffix(".png"))
        clip.unlink()
    given, *_ = bench.run(conditioning="first")
    plain, *_ = bench.run()
    sets = [LatentCache(bench.cache_root).read_set(report.fingerprint) for report in (given, plain)]
    assert [clips.given_whole for clips in sets] == [True, False]
    assert [NOTHING_TO_PREDICT in report.sentences() for report in (given, plain)] == [True, False]


def test_a_still_is_given_whole(bench, tmp_path):
    Image.new("RGB", (64, 48), (200, 100, 50)).save(bench.folder / "d.png")
    (bench.folder / "d.txt").write_text("a still")
    report, *_ = bench.run(conditioning="first")
    assert "stills: 1, each given completely as its own first frame" in report.sentences()
    assert "nothing is left to predict" not in report.sentences(), "a clip is there too"
    cache = LatentCache(bench.cache_root)
    item = next(i for i in cache.read_set(report.fingerprint).items if i.num_frames == 1)
    channels = cache.read_condition(item.condition_key)["channels"]
    assert channels.shape == (20, 1, 6, 8)
    assert bool((channels[:4] == 1).all())
    assert torch.equal(channels[4:], cache.read_latent(item.latent_key))


def test_a_model_with_image_tokens_needs_an_encoder_for_them(bench):
    config = DatasetConfig(**bench.settings, conditioning="first_vision")
    dataset = Dataset((scan_folder(config, bench.folder, ScanContext(bench.video)),))
    cache = LatentCache(bench.cache_root)
    with pytest.raises(CacheError, match="Connect Load CLIP Vision with clip_vision_h to clip_vision of Cache Latents"):
        bench.plan(dataset, cache, vision_identity="")
    plan = bench.plan(dataset, cache)
    assert plan.needs_vision
    with pytest.raises(CacheError, match="image tokens of 3 clips are missing"):
        encode_missing(plan, cache, Encoders(codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video))


def test_datasets_of_different_models_do_not_mix(bench):
    parts = tuple(
        scan_folder(DatasetConfig(**bench.settings, conditioning=kind), bench.folder, ScanContext(bench.video))
        for kind in ("none", "first")
    )
    with pytest.raises(DatasetError, match=r"differ in conditioning \(none and first\)"):
        Dataset(parts)
