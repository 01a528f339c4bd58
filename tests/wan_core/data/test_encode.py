"""Encoded once, and again only what changed."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from wan_core.data import (
    DEFAULT_NEGATIVE_PROMPT,
    Batches,
    Dataset,
    DatasetConfig,
    LatentCache,
    encode_missing,
    plan_encoding,
    scan_folder,
)
from wan_core.data.cache import digests as digests_module
from wan_core.errors import CacheError, DatasetError, Stopped
from wan_core.model.latents import WAN21_LATENTS, LatentSpace
from wan_core.video import VideoProcess


class PoolingCodec:
    """A codec of the right shape: mean colours over 8x8 squares, first frame and groups of four."""

    identity = "pooling"
    space: LatentSpace = WAN21_LATENTS

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append(pixels)
        frames = torch.cat([pixels[:1], pixels[1:].unflatten(0, (-1, 4)).mean(1)])
        small = torch.nn.functional.avg_pool2d(frames.permute(0, 3, 1, 2), 8)
        return small.mean(1, keepdim=True).expand(-1, 16, -1, -1).permute(1, 0, 2, 3)

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class CountingText:
    """Text features that hold the number of characters."""

    identity = "counting"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def encode(self, text: str) -> torch.Tensor:
        self.seen.append(text)
        return torch.full((min(len(text), 511) + 1, 4096), float(len(text)))


class MeanVision:
    """Image tokens that hold the mean colour."""

    identity = "mean"

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append(pixels)
        return pixels.mean().expand(257, 1280)


class Bench:
    """A folder, a cache and encoders that remember what they were asked."""

    def __init__(self, folder, cache_root, video, **settings) -> None:
        self.folder, self.video = folder, video
        self.cache_root = cache_root
        self.settings = {"width": 64, "height": 48, "num_frames": 9, **settings}

    def run(self, should_stop=None, **changes):
        """One queue of the whole data side in a fresh cache object; returns report and encoders."""
        cache = LatentCache(self.cache_root)
        codec, text, self.vision = PoolingCodec(), CountingText(), MeanVision()
        config = DatasetConfig(**{**self.settings, **changes})
        dataset = Dataset((scan_folder(config, self.folder, self.video),))
        plan = self.plan(dataset, cache)
        report = encode_missing(
            plan,
            cache,
            codec=codec,
            text_encoder=text,
            image_encoder=self.vision,
            video=self.video,
            should_stop=should_stop,
        )
        return report, codec, text

    def plan(self, dataset, cache, **options):
        return plan_encoding(
            dataset,
            cache,
            vae_identity="pooling",
            text_identity="counting",
            space=WAN21_LATENTS,
            **{"vision_identity": "mean", **options},
        )


@pytest.fixture(scope="module")
def video():
    with VideoProcess() as process:
        yield process


@pytest.fixture
def bench(tmp_path, make_clip, video):
    """Three different clips with captions."""
    for number, name in enumerate("abc"):
        make_clip(f"clips/{name}.mp4", num_frames=12 + number)
        (tmp_path / "clips" / f"{name}.txt").write_text(f"caption {name}")
    return Bench(tmp_path / "clips", tmp_path / "cache", video)


def counts(report) -> tuple[int, int, int, int]:
    return (
        report.latents_encoded,
        report.latents_reused,
        report.texts_encoded,
        report.texts_reused,
    )


def test_the_first_run_encodes_all_and_the_second_nothing(bench, monkeypatch):
    report, codec, text = bench.run()
    assert counts(report) == (3, 0, 5, 0)
    assert (report.clips, report.frames) == (3, 27)
    assert text.seen == ["", DEFAULT_NEGATIVE_PROMPT, "caption a", "caption b", "caption c"]
    for pixels in codec.seen:
        assert pixels.shape == (9, 48, 64, 3)
        assert pixels.dtype == torch.float32
        torch.testing.assert_close(pixels[:, 24, 32, 1], torch.arange(9) * 8 / 255, atol=0.01, rtol=0)
    monkeypatch.setattr(digests_module, "digest_file", lambda *a: pytest.fail("hashed again"))
    again, codec, text = bench.run()
    assert counts(again) == (0, 3, 0, 5)
    assert codec.seen == text.seen == []
    assert again.fingerprint == report.fingerprint


def test_what_was_encoded_is_what_is_trained(bench):
    report, codec, _ = bench.run()
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    cache.verify(cache_set)
    batches = Batches(cache_set, cache, seed=0, batch_size=3)
    batch, items = batches.at(0), batches.items_at(0)
    assert batch.latents.shape == (3, 16, 3, 6, 8)
    for latent, text, item in zip(batch.latents, batch.texts, items, strict=True):
        expected = PoolingCodec().encode(codec.seen["abc".index(item.name[0])])
        torch.testing.assert_close(latent, expected, atol=5e-3, rtol=5e-3)
        assert text[:10].eq(9.0).all()
        assert text[10:].eq(0.0).all()


def test_editing_one_clip_encodes_exactly_that_clip_and_back_again_none(bench, make_clip):
    first, *_ = bench.run()
    original = (bench.folder / "b.mp4").read_bytes()
    make_clip("clips/b.mp4", num_frames=17)
    edited, *_ = bench.run()
    assert counts(edited) == (1, 2, 0, 5)
    assert edited.fingerprint != first.fingerprint
    (bench.folder / "b.mp4").write_bytes(original)
    back, *_ = bench.run()
    assert counts(back) == (0, 3, 0, 5)
    assert back.fingerprint == first.fingerprint


def test_editing_one_caption_encodes_exactly_that_caption(bench):
    bench.run()
    (bench.folder / "b.txt").write_text("another caption")
    report, _, text = bench.run()
    assert counts(report) == (0, 3, 1, 4)
    assert text.seen == ["another caption"]


def test_renaming_encodes_nothing(bench):
    bench.run()
    for suffix in ("mp4", "txt"):
        (bench.folder / f"b.{suffix}").rename(bench.folder / f"z.{suffix}")
    report, *_ = bench.run()
    assert counts(report) == (0, 3, 0, 5)


def test_the_same_clip_and_caption_twice_are_encoded_once(bench):
    for suffix in ("mp4", "txt"):
        (bench.folder / f"copy.{suffix}").write_bytes((bench.folder / f"a.{suffix}").read_bytes())
    report, *_ = bench.run()
    assert counts(report) == (3, 0, 5, 0)
    assert report.clips == 4


@pytest.mark.parametrize(
    "change",
    [
        {"width": 128, "height": 96},
        {"num_frames": 5},
        {"fps": 12.0},
        {"enable_bucket": False, "width": 48},
    ],
)
def test_every_setting_that_changes_pixels_makes_new_entries(bench, change):
    bench.run()
    report, *_ = bench.run(**change)
    assert counts(report)[:2] == (3, 0)
    back, *_ = bench.run()
    assert counts(back)[:2] == (0, 3)


def test_settings_that_change_no_pixels_make_none(bench):
    first, *_ = bench.run()
    report, *_ = bench.run(num_repeats=5)
    assert counts(report) == (0, 3, 0, 5)
    assert report.fingerprint != first.fingerprint


def test_a_damaged_entry_is_encoded_again_with_one_line(bench):
    first, *_ = bench.run()
    path = sorted(bench.cache_root.glob("latents/*/*.safetensors"))[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    report, *_ = bench.run()
    assert counts(report) == (1, 2, 0, 5)
    assert "1 damaged cache entries were replaced" in report.sentences()
    assert report.fingerprint == first.fingerprint
    assert bench.run()[0].damaged == 0


def test_stopping_keeps_what_is_finished(bench):
    def stop_after_two_latents() -> bool:
        return len(list(bench.cache_root.glob("latents/*/*.safetensors"))) == 2

    with pytest.raises(Stopped):
        bench.run(should_stop=stop_after_two_latents)
    report, *_ = bench.run()
    assert counts(report) == (1, 2, 0, 5)


def test_rebuild_encodes_everything_again(bench):
    bench.run()
    cache = LatentCache(bench.cache_root)
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, bench.video),))
    plan = bench.plan(dataset, cache, rebuild=True)
    assert (len(plan.missing_latents), len(plan.missing_texts)) == (3, 5)
    assert bench.plan(dataset, cache).is_complete


def test_a_file_that_changes_between_scan_and_encoding_is_named(bench):
    cache = LatentCache(bench.cache_root)
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, bench.video),))
    plan = bench.plan(dataset, cache)
    (bench.folder / "c.mp4").write_bytes(b"other")
    with pytest.raises(DatasetError, match=r"c\.mp4 changed since it was scanned"):
        bench.plan(dataset, cache)
    with pytest.raises(DatasetError, match=r"c\.mp4"):
        encode_missing(plan, cache, codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video)


def test_a_complete_cache_needs_no_encoder_and_an_incomplete_one_says_which(bench):
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, bench.video),))
    cache = LatentCache(bench.cache_root)
    plan = bench.plan(dataset, cache)
    assert not plan.is_complete
    with pytest.raises(CacheError, match="3 latents are missing"):
        encode_missing(plan, cache, codec=None, text_encoder=CountingText(), video=bench.video)
    with pytest.raises(CacheError, match="5 texts are missing"):
        encode_missing(plan, cache, codec=PoolingCodec(), text_encoder=None, video=bench.video)
    bench.run()
    report = encode_missing(bench.plan(dataset, cache), cache, codec=None, text_encoder=None, video=bench.video)
    assert counts(report) == (0, 3, 0, 5)


def test_a_vae_of_another_model_is_refused(bench):
    class Wrong(PoolingCodec):
        def encode(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().encode(pixels)[:, :, :3, :4]

    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, bench.video),))
    cache = LatentCache(bench.cache_root)
    plan = bench.plan(dataset, cache)
    with pytest.raises(CacheError, match=r"returned shape \[16, 3, 3, 4\] for a.mp4"):
        encode_missing(plan, cache, codec=Wrong(), text_encoder=CountingText(), video=bench.video)
    other = PoolingCodec()
    other.identity = "other"
    with pytest.raises(CacheError, match="not the one the cache was planned for"):
        encode_missing(plan, cache, codec=other, text_encoder=CountingText(), video=bench.video)


def test_captions_are_counted_by_the_encoder_and_what_is_cut_is_named(bench):
    (bench.folder / "b.txt").write_text("word " * 700)

    class Words(CountingText):
        def count_tokens(self, text: str) -> int:
            return len(text.split()) + 1

    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, bench.video),))
    cache = LatentCache(bench.cache_root)
    report = encode_missing(
        bench.plan(dataset, cache), cache, codec=PoolingCodec(), text_encoder=Words(), video=bench.video
    )
    assert "caption length: 3 tokens in the middle, 701 at most, of 512" in report.sentences()
    assert "cut at 512 tokens, the rest is not seen: b.mp4" in report.sentences()
    again = encode_missing(bench.plan(dataset, cache), cache, codec=None, text_encoder=None, video=bench.video)
    assert again.text_lengths is None


def test_weights_and_turns_reach_the_cache_set_and_the_usual_ones_leave_no_trace(bench):
    plain, *_ = bench.run()
    weighed, *_ = bench.run(weight=2.0)
    shuffled, _, text = bench.run(caption_shuffles=2)
    assert len({plain.fingerprint, weighed.fingerprint}) == 2
    assert shuffled.fingerprint == plain.fingerprint  # one tag has one order
    cache = LatentCache(bench.cache_root)
    assert {item.weight for item in cache.read_set(weighed.fingerprint).items} == {2.0}
    (bench.folder / "a.txt").write_text("one, two, three")
    turning, _, text = bench.run(caption_shuffles=2)
    assert len(text.seen) == 2
    assert counts(turning)[0] == 0  # both orders share the latent
    items = [item for item in cache.read_set(turning.fingerprint).items if item.name == "a.mp4"]
    assert sorted((item.turn, item.turns) for item in items) == [(0, 2), (1, 2)]


def given_counts(report) -> tuple[int, int]:
    return (report.conditions_encoded, report.conditions_reused)


def test_an_image_to_video_clip_is_given_its_first_frame_and_grey(bench):
    report, codec, _ = bench.run(conditioning="first")
    assert (counts(report), given_counts(report)) == ((3, 0, 5, 0), (3, 0))
    assert "given frames (first): 3 encoded, 0 reused" in report.sentences()
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    cache.verify(cache_set)
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


def test_a_still_is_given_whole(bench, tmp_path):
    Image.new("RGB", (64, 48), (200, 100, 50)).save(bench.folder / "d.png")
    (bench.folder / "d.txt").write_text("a still")
    report, *_ = bench.run(conditioning="first")
    assert "stills: 1, each given whole as its own first frame" in report.sentences()
    cache = LatentCache(bench.cache_root)
    item = next(i for i in cache.read_set(report.fingerprint).items if i.num_frames == 1)
    channels = cache.read_condition(item.condition_key)["channels"]
    assert channels.shape == (20, 1, 6, 8)
    assert bool((channels[:4] == 1).all())
    assert torch.equal(channels[4:], cache.read_latent(item.latent_key))


def test_a_model_with_image_tokens_needs_an_encoder_for_them(bench):
    config = DatasetConfig(**bench.settings, conditioning="first_vision")
    dataset = Dataset((scan_folder(config, bench.folder, bench.video),))
    cache = LatentCache(bench.cache_root)
    with pytest.raises(CacheError, match="Connect CLIPVisionLoader with clip_vision_h to clip_vision of CacheLatents"):
        bench.plan(dataset, cache, vision_identity="")
    plan = bench.plan(dataset, cache)
    assert plan.needs_vision
    with pytest.raises(CacheError, match="image tokens of 3 clips are missing"):
        encode_missing(plan, cache, codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video)


def test_control_tensors_are_not_made_from_clips(bench):
    config = DatasetConfig(**bench.settings, conditioning="vace")
    dataset = Dataset((scan_folder(config, bench.folder, bench.video),))
    with pytest.raises(DatasetError, match="conditioned on vace tensors"):
        bench.plan(dataset, LatentCache(bench.cache_root))


def test_datasets_of_different_models_do_not_mix(bench):
    parts = tuple(
        scan_folder(DatasetConfig(**bench.settings, conditioning=kind), bench.folder, bench.video)
        for kind in ("none", "first")
    )
    with pytest.raises(DatasetError, match=r"differ in conditioning \(none and first\)"):
        Dataset(parts)
