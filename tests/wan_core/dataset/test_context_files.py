"""Context files beside clips (Bernini-R): found, checked, cut like the clip, encoded once, and batched by size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.bench import Bench, given_counts, set_of
from wan_core.cache import Batches, LatentCache
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError


@pytest.fixture
def bench(tmp_path, make_clip, video):
    """Clip a with a source, a reference video and two pictures; clip b with a source alone."""
    for number, name in enumerate("ab"):
        make_clip(f"clips/{name}.mp4", num_frames=14 + number)
        (tmp_path / "clips" / f"{name}.txt").write_text(f"caption {name}")
        make_clip(f"clips/{name}_source.mkv", frames=levels(14 + number), codec="ffv1")
    (tmp_path / "clips" / "a_source.txt").write_text("no caption of a clip")
    make_clip("clips/a_refvideo.mp4", num_frames=7, width=32, height=48)
    Image.new("RGB", (96, 40), "white").save(tmp_path / "clips" / "a_ref1.png")
    Image.new("RGB", (1696, 848), "black").save(tmp_path / "clips" / "a_ref4.png")
    return Bench(tmp_path / "clips", tmp_path / "cache", video)


def levels(count: int) -> list[np.ndarray]:
    return [np.full((48, 64, 3), 200 - 8 * k, np.uint8) for k in range(count)]


def scanned(bench: Bench, **changes):
    settings = {**bench.settings, "conditioning": "context", **changes}
    return scan_folder(DatasetConfig(**settings), bench.folder, ScanContext(bench.video))


def test_context_files_go_with_their_clips_and_are_no_clips_of_their_own(bench):
    result = scanned(bench)
    found = [(s.name, s.caption, [f"{f.role} {f.of_sample(s)}" for f in s.context]) for s in result.samples]
    assert found == [
        ("a.mp4", "caption a", ["source 64x48x9", "refvideo 32x48x5", "ref1 96x32x1", "ref4 848x416x1"]),
        ("b.mp4", "caption b", ["source 64x48x9"]),
    ]
    assert result.rejected == ()
    assert "training as Bernini-R: source video (2), reference image (2), reference video (1)" in scan_report(result)


def test_a_folder_without_context_files_is_one_of_text_to_video(bench):
    for path in bench.folder.glob("*_*"):
        path.unlink()
    result = scanned(bench)
    assert (result.config.conditioning, [s.name for s in result.samples]) == ("none", ["a.mp4", "b.mp4"])
    plain, *_ = bench.run(conditioning="none")
    same, *_ = bench.run(conditioning="context")
    assert (same.fingerprint, same.latents_reused) == (plain.fingerprint, 2)


def test_a_model_that_reads_no_context_trains_on_every_file_of_the_folder(bench):
    names = [sample.name for sample in scanned(bench, conditioning="none", trigger_word="x", num_frames=1).samples]
    assert [name for name in names if "_" in name] == [
        "a_ref1.png", "a_ref4.png", "a_refvideo.mp4", "a_source.mkv", "b_source.mkv",
    ]  # fmt: skip


def test_clips_without_fitting_context_files_are_rejected_by_name(bench, make_clip):
    for name in "cdefg":
        make_clip(f"clips/{name}.mp4", num_frames=20)
    make_clip("clips/d_source.mp4", num_frames=6)
    make_clip("clips/e_source.mp4", num_frames=20, width=48)
    (bench.folder / "f_ref1.png").write_bytes(b"no picture")
    Image.new("RGB", (64, 48)).save(bench.folder / "g_refvideo.png")
    found = {r.name: r.reason for r in scanned(bench, trigger_word="x").rejected}
    assert found["c.mp4"] == "has no context files, but other clips have some; add one as c_source.mp4"
    assert found["d.mp4"] == "its source video d_source.mp4 has 6 frames at 16 fps, 9 are needed"
    assert found["e.mp4"] == "its source video e_source.mp4 is 48x48, another aspect ratio than 64x48"
    assert found["f.mp4"].startswith("its reference image f_ref1.png cannot be used")
    assert found["g.mp4"] == "its reference video g_refvideo.png is a still, the file itself a clip"


def test_streams_are_encoded_in_order_and_clips_are_batched_by_their_sizes(bench):
    report, codec, _ = bench.run(conditioning="context")
    assert given_counts(report) == (2, 0)
    assert sorted(tuple(seen.shape[:3]) for seen in codec.seen) == [
        (1, 32, 96), (1, 416, 848), (5, 48, 32), (9, 48, 64), (9, 48, 64), (9, 48, 64), (9, 48, 64),
    ]  # fmt: skip
    cache, cache_set = LatentCache(bench.cache_root), set_of(bench, report)
    sizes = {item.name: item.context for item in cache_set.items}
    assert sizes == {"a.mp4": ((3, 6, 8), (2, 6, 4), (1, 4, 12), (1, 52, 106)), "b.mp4": ((3, 6, 8),)}
    assert cache_set.tokens(cache_set.items[0]) in (2 * 36 + 12 + 12 + 26 * 53, 2 * 36)
    batches = Batches(cache_set, cache, seed=0, batch_size=4)
    assert sorted(names for n in range(2) for names in batches.at(n).names) == ["a.mp4", "b.mp4"]
    streams = {batches.at(n).names[0]: batches.at(n).conditioning.context for n in range(2)}
    assert [tuple(stream.shape) for stream in streams["a.mp4"]] == [(1, 16, *size) for size in sizes["a.mp4"]]
    # The source is cut as the clip is: its frame k has the level 200 - 8 k; the first latent frame is frame 0.
    assert float(streams["b.mp4"][0][0, 0, 0].mean()) == pytest.approx(200 / 255, abs=0.01)
    assert float(streams["a.mp4"][2].mean()) == pytest.approx(1, abs=0.01)
    assert float(streams["a.mp4"][3].mean()) == pytest.approx(0, abs=0.01)
    assert batches.largest_item.name == "a.mp4"
    again, codec, _ = bench.run(conditioning="context")
    assert (given_counts(again), codec.seen, again.fingerprint) == ((0, 2), [], report.fingerprint)
    Image.new("RGB", (96, 40), "red").save(bench.folder / "a_ref1.png")
    edited, *_ = bench.run(conditioning="context")
    assert given_counts(edited) == (1, 1)


def test_a_mirrored_clip_has_mirrored_context(bench):
    ramp = np.broadcast_to(np.linspace(0, 255, 96).astype(np.uint8)[None, :, None], (40, 96, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(bench.folder / "a_ref1.png")
    report, codec, _ = bench.run(conditioning="context", horizontal_flip="both")
    pictures = [seen for seen in codec.seen if seen.shape[:3] == (1, 32, 96)]
    assert len(pictures) == 2
    assert torch.equal(pictures[0], pictures[1].flip(2))
    assert len(set_of(bench, report).items) == 4


def test_folders_with_and_without_context_are_not_trained_together(bench, tmp_path, make_clip, video):
    make_clip("others/c.mp4", num_frames=14)
    (tmp_path / "others" / "c.txt").write_text("c")
    other = scanned(Bench(tmp_path / "others", tmp_path / "cache", video))
    with pytest.raises(DatasetError, match=r"one has context files .* and one has none"):
        Dataset((scanned(bench), other))
