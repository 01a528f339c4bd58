"""Clips that are held out: encoded with their noise, never trained."""

from __future__ import annotations

import hashlib

import pytest
import torch

from tests.support.bench import CountingText, PoolingCodec, set_of
from tests.support.caching import unsound
from wan_core.cache import Batches, Encoders, LatentCache, encode_missing
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.errors import ConfigError, DatasetError
from wan_core.flow import EVALUATION_TIMESTEPS, draw_noise, seeded_generator


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
    with pytest.raises(DatasetError, match=r"held_out names 'z\.mp4', which is not a usable file"):
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
        bench.plan(dataset, cache), cache, Encoders(codec=PoolingCodec(), text_encoder=Words(), video=bench.video)
    )
    assert report.text_lengths is not None
    assert report.text_lengths.longest == 8
