"""A clip that cannot be read costs itself, is named, and is tried again when requested."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.bench import set_of
from tests.support.caching import unsound
from wan_core.cache import LatentCache
from wan_core.cache.encoding_report import LeftOut, left_out_lines, require_enough
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.dataset.report import dataset_report
from wan_core.errors import DatasetError
from wan_core.video import VideoProcess
from wan_core.video.sources import TooSlowError, UnreadableError


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
    told = (
        "skipped: parts of 1 clip that cannot be read to the end (mode rebuild tries again); the other clips are "
        "trained\n"
    )
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
        "skipped: 1 clip that cannot be read to the end, and parts of 1 more (mode rebuild tries again); the other "
        "clips are trained",
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
    wanted = "no caption, so nothing is trained yet: b.mp4. Write b.txt with a description of the clip"
    assert wanted in dataset_report(dataset)
    with pytest.raises(DatasetError, match=r"1 of 3 files have no caption: b\.mp4\. Write b\.txt"):
        bench.plan(dataset, LatentCache(bench.cache_root))
