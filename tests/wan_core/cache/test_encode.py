"""Encoded once, and again only what changed."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from tests.support.bench import Bench, CountingText, PoolingCodec, counts, given_counts, set_of
from tests.support.caching import unsound
from wan_core.cache import Batches, Encoders, LatentCache, encode_missing
from wan_core.dataset import (
    DEFAULT_NEGATIVE_PROMPT,
    CaptionEdits,
    Dataset,
    DatasetConfig,
    ScanContext,
    known_files,
    scan_folder,
    scanned_files,
)
from wan_core.dataset.files import fingerprint_of_folder
from wan_core.errors import CacheError, ConfigError, DatasetError, Stopped


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
        encode_missing(plan, cache, Encoders(codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video))


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
        encode_missing(plan, cache, Encoders(codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video))
    assert [cache.has("latent", task.key) for task in plan.missing_clips] == [True, True, False]


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of the last change")
def test_nothing_is_encoded_again_of_files_that_were_touched_renamed_or_copied_back(bench):
    first, *_ = bench.run()
    mark = fingerprint_of_folder(bench.folder)
    for file in bench.folder.iterdir():
        file.chmod(0o600)
    assert fingerprint_of_folder(bench.folder) != mark
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
        encode_missing(plan, cache, Encoders(codec=None, text_encoder=CountingText(), video=bench.video))
    with pytest.raises(CacheError, match="5 texts are missing"):
        encode_missing(plan, cache, Encoders(codec=PoolingCodec(), text_encoder=None, video=bench.video))
    bench.run()
    report = encode_missing(
        bench.plan(dataset, cache), cache, Encoders(codec=None, text_encoder=None, video=bench.video)
    )
    assert counts(report) == (0, 3, 0, 5)


def test_a_vae_of_another_model_is_refused(bench):
    class Wrong(PoolingCodec):
        def encode(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().encode(pixels)[:, :, :3, :4]

    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
    cache = LatentCache(bench.cache_root)
    plan = bench.plan(dataset, cache)
    with pytest.raises(CacheError, match=r"returned shape \[16, 3, 3, 4\] for a.mp4"):
        encode_missing(plan, cache, Encoders(codec=Wrong(), text_encoder=CountingText(), video=bench.video))
    other = PoolingCodec()
    other.identity = "other"
    with pytest.raises(CacheError, match="not the one the cache was planned for"):
        encode_missing(plan, cache, Encoders(codec=other, text_encoder=CountingText(), video=bench.video))


def test_captions_are_counted_by_the_encoder_and_what_is_cut_is_named(bench):
    (bench.folder / "b.txt").write_text("word " * 700)

    class Words(CountingText):
        def count_tokens(self, text: str) -> int:
            return len(text.split()) + 1

    dataset = Dataset((scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video)),))
    cache = LatentCache(bench.cache_root)
    report = encode_missing(
        bench.plan(dataset, cache), cache, Encoders(codec=PoolingCodec(), text_encoder=Words(), video=bench.video)
    )
    assert "caption length: 3 tokens (median), 701 (longest), of at most 512" in report.sentences()
    assert "truncated at 512 tokens: b.mp4" in report.sentences()
    again = encode_missing(
        bench.plan(dataset, cache), cache, Encoders(codec=None, text_encoder=None, video=bench.video)
    )
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


def test_captions_of_the_class_are_encoded_too_and_keep_the_clips(bench):
    plain, _, _ = bench.run(trigger_word="sks")
    named, codec, text = bench.run(trigger_word="sks", class_preservation=2.0, class_word="dog")
    assert codec.seen == []
    assert text.seen == ["dog, caption a", "dog, caption b", "dog, caption c"]
    items = set_of(bench, named).items
    assert {(item.caption, item.class_caption, item.class_weight) for item in items} == {
        (f"sks, caption {name}", f"dog, caption {name}", 2.0) for name in "abc"
    }
    assert named.fingerprint != plain.fingerprint
    _, _, text = bench.run(trigger_word="sks", class_preservation=1.0)
    assert text.seen == ["caption a", "caption b", "caption c"]
    with pytest.raises(DatasetError, match="class_preservation needs a trigger_word"):
        bench.run(class_preservation=1.0)
    with pytest.raises(ConfigError, match="are both set"):
        DatasetConfig(class_preservation=1.0, prior_preservation=1.0)
