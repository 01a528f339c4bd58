"""Camera poses beside clips: found, checked, cut like the clip, and trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.bench import Bench
from tests.support.sessions import train_here
from tests.support.tiny_run import TINY_CAMERA, make_run, short
from wan_core.cache import Batches, LatentCache
from wan_core.dataset import DatasetConfig, ScanContext, scan_folder
from wan_core.dataset.camera import camera_path, packed_path, rays_of_packed, read_poses
from wan_core.errors import DatasetError
from wan_core.events import DecodeWanted, StepDone
from wan_core.job import choose_run, prepare_run
from wan_core.job.config import DataConfig
from wan_core.sampler import SampleConfig
from wan_core.video import Framing


def write_poses(clip: Path, count: int, *, first: str = "", columns: int = 19) -> Path:
    """Poses that stand `k` to the right of the world at frame k, with another focal length for x and y."""
    lines = [first]
    for frame in range(count):
        lens, pose = "0.5 0.8 0.5 0.5 0 0", f"1 0 0 {-frame} 0 1 0 0 0 0 1 0"
        lines.append(" ".join([str(frame * 1000), lens, pose][19 - columns :]))
    path = clip.with_name(f"{clip.stem}.camera.txt")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def bench(tmp_path, make_clip, video):
    """Clip a of 30 frames a second, b of 16; frame k of both is of grey level 8 k."""
    for name, fps in (("a", 30), ("b", 16)):
        write_poses(make_clip(f"clips/{name}.mp4", num_frames=24, fps=fps), 24)
        (tmp_path / "clips" / f"{name}.txt").write_text(f"caption {name}")
    return Bench(tmp_path / "clips", tmp_path / "cache", video)


def scanned(bench: Bench, **changes):
    config = DatasetConfig(**{**bench.settings, "conditioning": "camera", **changes})
    return scan_folder(config, bench.folder, ScanContext(bench.video))


def path_of(sample) -> torch.Tensor:
    return camera_path(read_poses(sample.camera.path), sample, 16.0)


def test_each_frame_gets_the_pose_of_the_frame_that_is_shown(bench):
    report, codec, _ = bench.run(conditioning="camera", frame_extraction="chunk", num_frames=5)
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    samples = scanned(bench, frame_extraction="chunk", num_frames=5).samples
    assert len(samples) == len(cache_set.items) == 6
    shown = [pixels.mean((1, 2, 3)) * 255 / 8 for pixels in codec.seen if len(pixels) > 1]
    for sample, levels in zip(samples, shown, strict=True):
        numbers = path_of(sample)[:, 9]
        assert torch.equal(numbers, (levels.round() - levels[0].round())), "places are told from the first frame"
    item = cache_set.items[1]
    batch = Batches(cache_set, cache, seed=0, batch_size=1).load([item])
    assert batch.conditioning is not None
    assert batch.conditioning.camera is not None
    assert torch.equal(batch.conditioning.camera[0], rays_of_packed(packed_path(path_of(samples[1]))))
    channels = cache.read_condition(item.condition_key)["channels"]
    assert channels.shape == (20, 2, 6, 8)
    assert torch.equal(channels[4:, :1].float(), cache.read_latent(item.latent_key)[:, :1].float())
    assert channels[:4, :, 0, 0].tolist() == [[1.0, 0.0]] * 4
    assert not bool(channels[4:, 1:].any())


def test_crop_and_mirror_move_the_lens_and_turn_the_world(bench):
    sample = replace(scanned(bench, width=48).samples[0])
    left, flipped = (
        replace(sample, cut=replace(sample.cut, framing=framing))
        for framing in (Framing(offset=(0, 0)), Framing(offset=(0, 0), flip=True))
    )
    assert path_of(sample)[0, :6].tolist() == pytest.approx([48, 48, 32, 0.8 * 48, 24, 24]), "8 pixels off each side"
    assert path_of(left)[0, :6].tolist() == pytest.approx([48, 48, 32, 0.8 * 48, 32, 24])
    one, other = (rays_of_packed(packed_path(path_of(cut))).view(6, -1, 48, 48) for cut in (left, flipped))
    # A mirror swaps left and right of pictures; of a product of two vectors it changes the other two signs.
    signs = torch.tensor([1.0, -1, -1, -1, 1, 1])[:, None, None, None]
    torch.testing.assert_close(other, signs * one.flip(-1), atol=1e-6, rtol=0)


def test_a_clip_without_fitting_poses_is_refused_by_name(bench, make_clip):
    for name in "cdefghij":
        make_clip(f"clips/{name}.mp4", num_frames=20)
    make_clip("clips/k.mp4", times_ms=[0, 40, 200, *range(240, 2000, 60)])
    write_poses(bench.folder / "k.mp4", 33)
    for name, text in {
        "d": "1 2 3\n" * 20, "e": "a title\nand another\n", "f": "nan " * 19 + "\n", "g": "",
        "h": "0 0.5 0 0 0 0 0 " * 2,
        "i": "0 .5 .5 .5 .5 0 0 1 0 0 0 0 0 1 0 0 1 0 0\n" + "0 .5 .5 .5 .5 0 0 1 0 0 0 0 2 0 0 0 0 1 0\n",
    }.items():  # fmt: skip
        (bench.folder / f"{name}.camera.txt").write_text(text)
    write_poses(bench.folder / "j.mp4", 19, first="an address")
    found = {r.name: r.reason for r in scanned(bench, trigger_word="x").rejected}
    bad = {name: f"its camera poses {name}.camera.txt cannot be used: " for name in "defghi"}
    assert found == {
        "c.mp4": "has no camera poses; write a line for each frame into c.camera.txt",
        "d.mp4": bad["d"] + "line 1 has 3 numbers; each line needs 19 (or 18, 22, 23)",
        "e.mp4": bad["e"] + "line 2 contains text that is not a number",
        "f.mp4": bad["f"] + "line 1 contains text that is not a number",
        "g.mp4": bad["g"] + "holds no poses; write a line of 19 numbers for each frame",
        "h.mp4": bad["h"] + "line 1 has 14 numbers; each line needs 19 (or 18, 22, 23)",
        "i.mp4": bad["i"] + "line 2 holds no rotation; write a pose as [R|t], row by row",
        "j.mp4": "its camera poses j.camera.txt have 19 lines, and it has 20 frames; write a line for each frame",
        "k.mp4": "its camera poses k.camera.txt have a line for each frame, and its frame rate varies; write it at a "
        "constant rate",
    }
    assert len(scanned(bench, conditioning="none", trigger_word="x").samples) == 11, "other models read none"


def test_a_file_of_poses_is_read_up_to_a_limit(tmp_path):
    path = tmp_path / "x.camera.txt"
    with path.open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(DatasetError, match=r"x\.camera\.txt is larger than 32 MiB"):
        read_poses(path)


def test_numbers_that_overflow_are_no_rotation(tmp_path):
    path = tmp_path / "x.camera.txt"
    path.write_text("1e308 " * 19)
    with pytest.raises(DatasetError, match=r"x\.camera\.txt line 1 holds no rotation"):
        read_poses(path)


def test_other_poses_are_another_entry(bench):
    bench.run(conditioning="camera")
    write_poses(bench.folder / "a.mp4", 24, columns=18, first="moved")
    report, codec, _ = bench.run(conditioning="camera")
    assert (report.conditions_encoded, report.conditions_reused, report.latents_encoded) == (1, 1, 0)
    assert [len(pixels) for pixels in codec.seen] == [1], "the clip itself is not encoded again"


def test_a_tiny_model_trains_from_a_folder_and_previews_the_path_of_the_held_out_clip(bench, tmp_path):
    run = make_run(tmp_path / "job", shape=TINY_CAMERA)
    bench.cache_root = Path(run.roots.first("cache"))
    report, *_ = bench.run(conditioning="camera", held_out=("b.mp4",))
    config = replace(
        run.config,
        run_name="from a folder",
        data=DataConfig(fingerprint=report.fingerprint, num_items=1),
        preview=SampleConfig(sampling="custom", steps=2),
        train=short(steps=2, preview_every_n_steps=2),
    )
    decision = choose_run(tmp_path / "runs", config)
    run = replace(run, directory=decision.directory, config=prepare_run(decision, config))
    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        found = LatentCache.read_condition
        patch.setattr(LatentCache, "read_condition", lambda *given: read.append(given[1]) or found(*given))
        events = train_here(run)
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    assert any(isinstance(event, DecodeWanted) for event in events)
    held_out = LatentCache(bench.cache_root).read_set(report.fingerprint).held_out[0]
    assert read[0] == held_out.condition_key, "inputs of previews are read first"
