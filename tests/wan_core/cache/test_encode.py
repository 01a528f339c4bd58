"""Encoded once, and again only what changed."""

from __future__ import annotations

import hashlib
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.caching import unsound
from wan_core.cache import Batches, LatentCache, encode_missing, plan_encoding
from wan_core.cache.encoding_report import LeftOut, left_out_lines, require_enough
from wan_core.dataset import (
    DEFAULT_NEGATIVE_PROMPT,
    NOTHING_TO_PREDICT,
    CaptionEdits,
    Dataset,
    DatasetConfig,
    ScanContext,
    known_files,
    scan_folder,
    scanned_files,
)
from wan_core.dataset.files import folder_fingerprint
from wan_core.dataset.report import dataset_report
from wan_core.errors import CacheError, ConfigError, DatasetError, Stopped
from wan_core.flow import EVALUATION_TIMESTEPS, draw_noise, seeded_generator
from wan_core.job.remarks import remarks_on_clips
from wan_core.model.latents import WAN21_LATENTS, LatentSpace
from wan_core.video import VideoProcess
from wan_core.video.sources import TooSlowError, UnreadableError


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
        self.codec = codec
        config = DatasetConfig(**{**self.settings, **changes})
        dataset = Dataset((scan_folder(config, self.folder, ScanContext(self.video)),))
        plan = self.plan(dataset, cache)
        self.told = []
        report = encode_missing(
            plan,
            cache,
            codec=codec,
            text_encoder=text,
            image_encoder=self.vision,
            video=self.video,
            progress=lambda _done, _total, name: self.told.append(name),
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


def test_progress_names_what_is_encoded_and_no_prompt_of_ours(bench):
    bench.run()
    assert {"the empty prompt", "the negative prompt", "a.mp4"} <= set(bench.told)
    assert not [name for name in bench.told if not name.isascii() or not name]


def test_the_first_run_encodes_all_and_the_second_nothing(bench, monkeypatch):
    report, codec, text = bench.run()
    assert counts(report) == (3, 0, 5, 0)
    assert (report.clips, report.frames) == (3, 27)
    assert text.seen == ["", DEFAULT_NEGATIVE_PROMPT, "caption a", "caption b", "caption c"]
    for pixels in codec.seen:
        assert pixels.shape == (9, 48, 64, 3)
        assert pixels.dtype == torch.float32
        torch.testing.assert_close(pixels[:, 24, 32, 1], torch.arange(9) * 8 / 255, atol=0.01, rtol=0)
    monkeypatch.setattr(known_files, "digest_file", lambda *a: pytest.fail("hashed again"))
    again, codec, text = bench.run()
    assert counts(again) == (0, 3, 0, 5)
    assert codec.seen == text.seen == []
    assert again.fingerprint == report.fingerprint


def test_what_was_encoded_is_what_is_trained(bench):
    report, codec, _ = bench.run()
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    assert unsound(cache, cache_set) == []
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
    """As the contact sheet edits it; put back, nothing is encoded."""
    first, *_ = bench.run()
    scan = scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video))
    edits = CaptionEdits(scanned_files(Dataset((scan,))), lambda: [bench.folder])
    b = edits.find("", 9).first[1]
    change = edits.write(b.clip, b.caption, "another caption").change
    assert (bench.folder / "b.txt").read_text() == "another caption"
    report, _, text = bench.run()
    assert counts(report) == (0, 3, 1, 4)
    assert text.seen == ["another caption"]
    edits.undo(change)
    back, _, text = bench.run()
    assert (back.fingerprint, text.seen) == (first.fingerprint, [])


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
    """What was encoded is kept, also what was still being written when somebody stopped it."""
    with pytest.raises(Stopped):
        bench.run(should_stop=lambda: len(bench.codec.seen) == 2)
    report, *_ = bench.run()
    assert counts(report) == (1, 2, 0, 5)


def test_rebuild_encodes_everything_again(bench):
    bench.run()
    cache = LatentCache(bench.cache_root)
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
    plan = bench.plan(dataset, cache, rebuild=True)
    assert (plan.missing("latent"), plan.missing("text")) == (3, 5)
    assert bench.plan(dataset, cache).is_complete


def test_a_file_that_changes_between_scan_and_encoding_is_named(bench):
    cache = LatentCache(bench.cache_root)
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
    plan = bench.plan(dataset, cache)
    (bench.folder / "c.mp4").write_bytes(b"other")
    with pytest.raises(DatasetError, match=r"c\.mp4 changed since it was scanned"):
        bench.plan(dataset, cache)
    with pytest.raises(DatasetError, match=r"c\.mp4"):
        encode_missing(plan, cache, codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video)


def edit_in_place(file):
    """Turn one bit of the last byte around; size and modification time stay."""
    before, data = file.stat(), file.read_bytes()
    with open(file, "r+b") as opened:
        opened.write(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of the last change")
def test_a_file_that_is_touched_while_it_is_encoded_is_compared_and_one_edited_and_dated_back_is_named(bench):
    cache = LatentCache(bench.cache_root)
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
    plan = bench.plan(dataset, cache)
    os.link(bench.folder / "b.mp4", bench.folder.parent / "backup.mp4")
    (bench.folder / "a.mp4").chmod(0o600)
    assert bench.plan(dataset, cache).missing("latent") == 3
    edit_in_place(bench.folder / "c.mp4")
    with pytest.raises(DatasetError, match=r"c\.mp4 changed since it was scanned"):
        encode_missing(plan, cache, codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video)
    assert [cache.has("latent", task.key) for task in plan.missing_clips] == [True, True, False]


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of the last change")
def test_nothing_is_encoded_again_of_files_that_were_touched_renamed_or_copied_back(bench):
    first, *_ = bench.run()
    mark = folder_fingerprint(bench.folder)
    for file in bench.folder.iterdir():
        file.chmod(0o600)
    assert folder_fingerprint(bench.folder) != mark
    touched, *_ = bench.run()
    away = bench.folder.with_name("away")
    bench.folder.rename(away)
    shutil.copytree(away, bench.folder)
    (bench.folder / "c.mp4").rename(bench.folder / "d.mp4")
    (bench.folder / "c.txt").rename(bench.folder / "d.txt")
    copied, *_ = bench.run()
    assert [counts(touched), counts(copied)] == [(0, 3, 0, 5)] * 2
    assert touched.fingerprint == copied.fingerprint == first.fingerprint
    edit_in_place(bench.folder / "a.txt")
    edited, *_ = bench.run()
    assert counts(edited) == (0, 3, 1, 4)


def test_a_complete_cache_needs_no_encoder_and_an_incomplete_one_says_which(bench):
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
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

    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
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

    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
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
    assert [remarks_on_clips(clips) for clips in sets] == [[NOTHING_TO_PREDICT], []]


def test_a_still_is_given_whole(bench, tmp_path):
    Image.new("RGB", (64, 48), (200, 100, 50)).save(bench.folder / "d.png")
    (bench.folder / "d.txt").write_text("a still")
    report, *_ = bench.run(conditioning="first")
    assert "stills: 1, each given whole as its own first frame" in report.sentences()
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
        encode_missing(plan, cache, codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video)


def test_camera_rays_are_not_made_from_clips(bench):
    config = DatasetConfig(**bench.settings, conditioning="camera")
    dataset = Dataset((scan_folder(config, bench.folder, ScanContext(bench.video)),))
    with pytest.raises(DatasetError, match="conditioned on channels and camera tensors"):
        bench.plan(dataset, LatentCache(bench.cache_root))


def test_datasets_of_different_models_do_not_mix(bench):
    parts = tuple(
        scan_folder(DatasetConfig(**bench.settings, conditioning=kind), bench.folder, ScanContext(bench.video))
        for kind in ("none", "first")
    )
    with pytest.raises(DatasetError, match=r"differ in conditioning \(none and first\)"):
        Dataset(parts)


# ---- held out, and how entries are stored -------------------------------------------------------


def set_of(bench, report):
    return LatentCache(bench.cache_root).read_set(report.fingerprint)


def test_clips_held_out_by_name_are_encoded_and_never_trained(bench):
    plain, *_ = bench.run()
    report, codec, text = bench.run(held_out=("b.mp4",))
    assert (report.clips, report.held_out) == (2, 1)
    assert codec.seen == text.seen == []  # what is held out was in the cache already
    assert "held out for evaluation: 1" in report.sentences()
    assert report.fingerprint != plain.fingerprint
    cache, cache_set = LatentCache(bench.cache_root), set_of(bench, report)
    assert unsound(cache, cache_set) == []
    batches = Batches(cache_set, cache, seed=0, batch_size=1)
    assert {batches.items_at(step)[0].name for step in range(20)} == {"a.mp4", "c.mp4"}
    assert [item.name for item in batches.evaluation_items(4)] == ["b.mp4"]
    again, *_ = bench.run(held_out=("b",))
    assert again.fingerprint == report.fingerprint
    assert bench.run()[0].fingerprint == plain.fingerprint


def test_the_noise_of_a_held_out_clip_is_stored_as_an_evaluation_would_draw_it(bench):
    report, *_ = bench.run(held_out=("b",))
    cache, cache_set = LatentCache(bench.cache_root), set_of(bench, report)
    [item] = cache_set.held_out
    shape = cache_set.latent_shape(item)
    stored = cache.read_evaluation(item.evaluation_key, shape)
    assert tuple(stored) == EVALUATION_TIMESTEPS
    for timestep, noise in stored.items():
        drawn = draw_noise((1, *shape), seeded_generator("evaluation", item.latent_key, timestep))
        assert torch.equal(noise, drawn[0])
    path = cache.entry_path("evaluation", item.evaluation_key)
    written = path.stat().st_mtime_ns
    bench.run(held_out=("b",))
    assert path.stat().st_mtime_ns == written
    path.write_bytes(path.read_bytes()[:-4])
    assert unsound(cache, cache_set) == ["evaluation"]
    bench.run(held_out=("b",))
    assert torch.equal(cache.read_evaluation(item.evaluation_key, shape)[125.0], stored[125.0])


def test_a_share_is_held_out_by_content_so_that_new_clips_move_no_other(bench, make_clip):
    """Whether a clip is held out says its own digest: renaming, adding and removing others change nothing."""

    def held(report) -> set[str]:
        return {item.latent_key for item in set_of(bench, report).held_out}

    digests = [hashlib.sha256((bench.folder / f"{name}.mp4").read_bytes()).hexdigest() for name in "abc"]
    low, middle, high = sorted(int(digest[:8], 16) / 2**32 for digest in digests)
    one, two = (held(bench.run(held_out_ratio=ratio)[0]) for ratio in ((low + middle) / 2, (middle + high) / 2))
    assert (len(one), len(two)) == (1, 2)
    assert one < two
    make_clip("clips/d.mp4", num_frames=20)
    (bench.folder / "d.txt").write_text("caption d")
    with_more = held(bench.run(held_out_ratio=(middle + high) / 2)[0])
    assert two <= with_more
    assert len(with_more - two) <= 1


def test_a_held_out_name_or_folder_that_holds_nothing_out_is_said(bench):
    with pytest.raises(DatasetError, match=r"held_out names 'z\.mp4', which is no usable file"):
        bench.run(held_out=("a", "z.mp4"))
    with pytest.raises(DatasetError, match="held_out_folder 'evaluation' holds no usable file"):
        bench.run(held_out_folder="evaluation")
    with pytest.raises(DatasetError, match="All 3 files are held out"):
        bench.run(held_out=("a", "b", "c"))
    with pytest.raises(DatasetError, match="All 3 files are held out"):
        bench.run(held_out_folder=bench.folder.name)
    with pytest.raises(ConfigError, match=r"held_out_ratio is -0\.5"):
        bench.run(held_out_ratio=-0.5)
    with pytest.raises(ConfigError, match="held_out_ratio is 1"):
        bench.run(held_out_ratio=1.0)


def test_what_is_held_out_is_held_out_under_every_name_and_in_every_part(bench, tmp_path):
    """A copy in the folder, and the same files once more at another size in a second part that holds out nothing."""
    (bench.folder / "copy.mp4").write_bytes((bench.folder / "b.mp4").read_bytes())
    (bench.folder / "copy.txt").write_text("another caption")
    held, plain = ({**bench.settings, **more} for more in ({"held_out": ("b",)}, {"width": 48}))
    parts = tuple(
        scan_folder(DatasetConfig(**settings), bench.folder, ScanContext(bench.video)) for settings in (plain, held)
    )
    cache_set = bench.plan(Dataset(parts), LatentCache(bench.cache_root)).cache_set
    assert sorted(item.name for item in cache_set.held_out) == ["b.mp4", "b.mp4", "copy.mp4", "copy.mp4"]
    assert sorted(item.name for item in cache_set.items) == ["a.mp4", "a.mp4", "c.mp4", "c.mp4"]
    assert not {i.latent_key for i in cache_set.items} & {i.latent_key for i in cache_set.held_out}


def test_a_held_out_folder_holds_what_lies_below_it_and_names_may_say_the_folder(bench, make_clip):
    for number, place in enumerate(("eval/a", "eval/deep/d", "other/e")):
        path = make_clip(f"clips/{place}.mp4", num_frames=20 + number)
        path.with_suffix(".txt").write_text(place)

    def held(**settings) -> list[str]:
        report, *_ = bench.run(recursive=True, **settings)
        return sorted(item.name for item in set_of(bench, report).held_out)

    assert held(held_out_folder="eval") == ["eval/a.mp4", "eval/deep/d.mp4"]
    assert held(held_out_folder="eval/deep") == ["eval/deep/d.mp4"]
    assert held(held_out=("eval/a.mp4",)) == ["eval/a.mp4"]
    assert held(held_out=("a",)) == ["a.mp4", "eval/a.mp4"]


def test_names_to_hold_out_may_lie_in_any_part_with_the_same_settings(bench, make_clip):
    """As with settings of another trainer: several parts, one list of names."""
    make_clip("more/d.mp4", num_frames=20).with_suffix(".txt").write_text("d")
    config = DatasetConfig(**bench.settings, held_out=("a", "d"))
    folders = (bench.folder, bench.folder.parent / "more")
    parts = tuple(scan_folder(config, folder, ScanContext(bench.video)) for folder in folders)
    cache_set = bench.plan(Dataset(parts), LatentCache(bench.cache_root)).cache_set
    assert sorted(item.name for item in cache_set.held_out) == ["a.mp4", "d.mp4"]
    elsewhere = scan_folder(DatasetConfig(**bench.settings), folders[1], ScanContext(bench.video))
    with pytest.raises(DatasetError, match="held_out names 'd'"):
        bench.plan(Dataset((parts[0], elsewhere)), LatentCache(bench.cache_root))


def test_captions_of_held_out_clips_are_measured_too(bench):
    (bench.folder / "b.txt").write_text("by far the longest caption of them all")

    class Words(CountingText):
        def count_tokens(self, text: str) -> int:
            return len(text.split())

    dataset = Dataset(
        (scan_folder(DatasetConfig(**bench.settings, held_out=("b",)), bench.folder, ScanContext(bench.video)),)
    )
    cache = LatentCache(bench.cache_root)
    report = encode_missing(
        bench.plan(dataset, cache), cache, codec=PoolingCodec(), text_encoder=Words(), video=bench.video
    )
    assert report.text_lengths is not None
    assert report.text_lengths.longest == 8


def test_fp16_is_another_entry_of_latents_only_and_compression_is_not(bench):
    first, *_ = bench.run(conditioning="first")
    wide, *_ = bench.run(conditioning="first", latent_dtype="fp16")
    assert (counts(wide), given_counts(wide)) == ((3, 0, 0, 5), (3, 0))
    cache = LatentCache(bench.cache_root)
    for report, dtype in ((first, torch.bfloat16), (wide, torch.float16)):
        item = set_of(bench, report).items[0]
        assert cache.read_latent(item.latent_key).dtype == dtype
        assert cache.read_condition(item.condition_key)["channels"].dtype == dtype
        assert cache.read_text(item.text_key).dtype == torch.bfloat16
    again, *_ = bench.run(conditioning="first", latent_dtype="fp16", cache_compression="zstd")
    assert (counts(again), again.fingerprint) == ((0, 3, 0, 5), wide.fingerprint)
    for name, value in (("latent_dtype", "fp8"), ("cache_compression", "gzip"), ("cache_limit_gb", -1.0)):
        with pytest.raises(ConfigError, match=name):
            bench.run(**{name: value})


def test_compressed_entries_are_smaller_and_train_the_same(bench, tmp_path):
    report, *_ = bench.run()
    other = Bench(bench.folder, tmp_path / "compressed", bench.video)
    compressed, *_ = other.run(cache_compression="zstd")
    assert compressed.fingerprint == report.fingerprint
    sizes = [sum(path.stat().st_size for path in root.glob("*/??/*")) for root in (bench.cache_root, other.cache_root)]
    assert sizes[1] < 0.9 * sizes[0]
    one, two = (Batches(set_of(b, report), LatentCache(b.cache_root), seed=0, batch_size=2) for b in (bench, other))
    for step in range(4):
        assert torch.equal(one.at(step).latents, two.at(step).latents)
        assert torch.equal(one.at(step).texts, two.at(step).texts)


def test_the_limit_evicts_other_sets_and_says_so(bench):
    old, *_ = bench.run(num_frames=5)
    for path in bench.cache_root.glob("sets/*"):
        os.utime(path, (100, 100))
    report, *_ = bench.run(cache_limit_gb=1e-9)
    cache = LatentCache(bench.cache_root)
    assert unsound(cache, set_of(bench, report)) == []
    assert "cache: 3 entries evicted" in report.sentences()
    assert "over the limit" in report.sentences()
    assert len(unsound(cache, set_of(bench, old))) == 3
    back, *_ = bench.run(num_frames=5)
    assert counts(back) == (3, 0, 0, 5)


def damage(path) -> None:
    """Zeroes among the pictures: the index is whole, so a scan sees nothing."""
    data = bytearray(path.read_bytes())
    middle = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 3
    data[middle : middle + 4000] = bytes(4000)
    path.write_bytes(data)


@pytest.fixture
def damaged(bench, make_clip):
    """A fourth clip of which a picture is destroyed."""
    noise = np.random.default_rng(0).integers(0, 255, (12, 48, 64, 3), np.uint8)
    make_clip("clips/d.mp4", frames=list(noise))
    (bench.folder / "d.txt").write_text("caption d")
    damage(bench.folder / "d.mp4")
    return bench


def test_a_damaged_clip_costs_itself_and_is_named(damaged):
    report, codec, _ = damaged.run()
    assert len(codec.seen) == 3
    assert (report.clips, report.latents_encoded, len(report.left_out)) == (3, 3, 1)
    assert "skipped: 1 clip that cannot be read to the end (mode rebuild tries again)" in report.sentences()
    assert "\n  d.mp4 cannot be read as a video (Invalid data found when processing input)\n" in report.sentences()
    names = {item.name for item in set_of(damaged, report).all_items}
    assert names == {"a.mp4", "b.mp4", "c.mp4"}
    assert unsound(LatentCache(damaged.cache_root), set_of(damaged, report)) == []


def test_a_damaged_clip_is_not_tried_again_until_asked_and_the_job_stays_the_same(damaged, make_clip):
    first, *_ = damaged.run()
    cache = LatentCache(damaged.cache_root)
    dataset = Dataset((scan_folder(DatasetConfig(**damaged.settings), damaged.folder, ScanContext(damaged.video)),))
    assert damaged.plan(dataset, cache).is_complete, "no encoder is loaded for it"
    again, *_ = damaged.run()
    assert (again.fingerprint, again.left_out) == (first.fingerprint, first.left_out)
    assert damaged.plan(dataset, cache, rebuild=True).missing("latent") == 4
    make_clip("clips/d.mp4", num_frames=18)
    mended, codec, _ = damaged.run()
    assert (mended.clips, len(codec.seen), mended.left_out) == (4, 1, ())


def test_of_a_clip_damaged_further_on_only_the_windows_there_are_left_out_and_counted(bench, make_clip, monkeypatch):
    make_clip("clips/d.mp4", num_frames=48)
    real = VideoProcess.read

    def torn(self, path, **options):
        if path.name == "d.mp4" and options["start_s"] > 1.3:
            raise UnreadableError("d.mp4 is damaged at frame 27. Write it again.")
        return real(self, path, **options)

    monkeypatch.setattr(VideoProcess, "read", torn)
    report, codec, _ = bench.run(frame_extraction="chunk", missing_captions="empty caption")
    assert (report.clips, len(codec.seen)) == (len(codec.seen), report.latents_encoded)
    (left,) = report.left_out
    assert (left.lost, left.of, left.whole) == (2, 5, False)
    told = "skipped: parts of 1 clip that cannot be read to the end (mode rebuild tries again); the rest is trained\n"
    assert told + "  d.mp4 is damaged at frame 27: 2 of the 5 samples cut from it\n" in report.sentences()
    again, codec, _ = bench.run(frame_extraction="chunk", missing_captions="empty caption")
    assert (codec.seen, again.left_out) == ([], report.left_out)


def test_a_damaged_clip_of_many_windows_costs_itself_not_the_dataset(bench, make_clip, monkeypatch):
    """Most windows of the dataset are lost, and of one clip of four a part."""
    make_clip("clips/d.mp4", num_frames=96)
    real = VideoProcess.read

    def torn(self, path, **options):
        if path.name == "d.mp4" and options["start_s"] > 1:
            raise UnreadableError("d.mp4 is damaged at frame 18. Write it again.")
        return real(self, path, **options)

    monkeypatch.setattr(VideoProcess, "read", torn)
    for _ in range(2):  # the second time the plan judges by what it remembers
        report, *_ = bench.run(frame_extraction="chunk", missing_captions="empty caption")
        (left,) = report.left_out
        assert (left.lost, left.of) == (8, 10)
        assert 2 * left.lost > report.clips + left.lost


def test_clips_left_out_whole_and_in_part_are_told_apart():
    whole, part = LeftOut("a.mp4 is torn. Write it again.", 2, 2), LeftOut("b.mp4 is torn. Write it again.", 1, 3)
    assert left_out_lines([whole, part]) == [
        "skipped: 1 clip that cannot be read to the end, and parts of 1 more (mode rebuild tries again); the rest is "
        "trained",
        "  a.mp4 is torn",
        "  b.mp4 is torn: 1 of the 3 samples cut from it",
    ]
    assert left_out_lines([]) == []


def test_a_clip_that_took_too_long_is_tried_again(bench, monkeypatch):
    real = VideoProcess.read

    def slow(self, path, **options):
        if path.name == "b.mp4":
            raise TooSlowError("b.mp4 took more than 60 s to read.")
        return real(self, path, **options)

    with monkeypatch.context() as busy:
        busy.setattr(VideoProcess, "read", slow)
        report, *_ = bench.run()
    assert [clip.why for clip in report.left_out] == ["b.mp4 took more than 60 s to read."]
    report, codec, _ = bench.run()
    assert (report.clips, len(codec.seen), report.left_out) == (3, 1, ())


def test_most_clips_damaged_is_one_sentence_and_the_next_queue_says_it_without_reading(damaged, make_clip):
    noise = np.random.default_rng(1).integers(0, 255, (12, 48, 64, 3), np.uint8)
    for name in "ab":
        make_clip(f"clips/{name}.mp4", frames=list(noise[:, :, :: 1 if name == "a" else -1]))
        damage(damaged.folder / f"{name}.mp4")
    with pytest.raises(
        DatasetError, match=r"^3 of 4 clips cannot be read: a\.mp4 [^;]*; b\.mp4 [^;]*; d\.mp4 [^;.]*\. Copy"
    ):
        damaged.run()
    dataset = Dataset((scan_folder(DatasetConfig(**damaged.settings), damaged.folder, ScanContext(damaged.video)),))
    with pytest.raises(DatasetError, match=r"^3 of 4 clips cannot be read"):
        damaged.plan(dataset, LatentCache(damaged.cache_root))


def test_ten_damaged_clips_of_ten_end_a_long_encoding_early():
    reasons = [f"{number}.mp4 is damaged at frame 0." for number in range(10)]
    require_enough(reasons[:9], 9, finished=False)
    require_enough(reasons, 20, finished=False)
    with pytest.raises(DatasetError, match=r"10 of 19 clips cannot be read: 0\.mp4 .*; and 7 more\. Copy them again"):
        require_enough(reasons, 19, finished=False)


def test_a_damaged_clip_that_is_held_out_is_dropped_there(damaged):
    report, *_ = damaged.run(held_out=("b", "d"))
    assert (report.clips, report.held_out, len(report.left_out)) == (2, 1, 1)


def test_files_without_captions_are_shown_by_the_scan_and_refused_before_encoding(bench):
    (bench.folder / "b.txt").unlink()
    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
    assert "no caption, so nothing is trained yet: b.mp4. Write b.txt with what is seen" in dataset_report(dataset)
    with pytest.raises(DatasetError, match=r"1 of 3 files have no caption: b\.mp4\. Write b\.txt"):
        bench.plan(dataset, LatentCache(bench.cache_root))
