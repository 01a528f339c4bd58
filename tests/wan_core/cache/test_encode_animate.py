"""The pose, face and reference files of a clip, as core's WanAnimateToVideo encodes them, and the batch of them."""

from __future__ import annotations

import shutil

import torch
from PIL import Image

from tests.support.bench import PoolingCodec, given_counts
from tests.support.caching import unsound
from wan_core.cache import Batches, LatentCache


def beside(bench, make_clip, *names: str) -> None:
    """Gives clips their companions: a pose, a face of another shape, and a picture."""
    for name in names:
        shutil.copy(bench.folder / f"{name}.mp4", bench.folder / f"{name}_pose.mp4")
        make_clip(f"clips/{name}_face.mp4", num_frames=14, width=32, height=40)
        Image.new("RGB", (80, 48), (200, 100, 50)).save(bench.folder / f"{name}_ref1.png")
        (bench.folder / f"{name}_pose.txt").write_text("no caption of a clip")


def test_a_clip_is_given_its_reference_pose_and_face(bench, make_clip):
    beside(bench, make_clip, "a", "b", "c")
    report, codec, _ = bench.run(conditioning="animate")
    assert (report.latents_encoded, given_counts(report)) == (3, (3, 0))
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    assert [item.name for item in cache_set.items] == ["a.mp4", "b.mp4", "c.mp4"]
    assert unsound(cache, cache_set) == []
    latent, reference, grey, pose = codec.seen[:4]
    assert (len(reference), len(pose)) == (1, 9)
    assert bool((grey == 0.5).all())
    torch.testing.assert_close(reference[0, 0, 0], torch.tensor([200, 100, 50]) / 255, atol=0.02, rtol=0)
    assert torch.equal(pose, latent)  # the same file, cut alike
    found = cache.read_condition(cache_set.items[0].condition_key)
    assert {name: list(tensor.shape) for name, tensor in found.items()} == {
        "channels": [20, 4, 6, 8],
        "image_tokens": [257, 1280],
        "pose": [16, 3, 6, 8],
        "face": [3, 9, 512, 512],
    }
    assert found["channels"][:4, :, 0, 0].tolist() == [[1.0, 0.0, 0.0, 0.0]] * 4
    assert float(found["face"][:, 0].max()) == -1  # black, then brighter
    assert -0.6 < float(found["face"][:, -1].min()) <= float(found["face"].max()) < -0.4
    assert torch.equal(bench.vision.seen[0], reference[0])

    batch = Batches(cache_set, cache, seed=0, batch_size=1).load(cache_set.items[:1])
    expected = torch.cat([PoolingCodec().encode(reference), PoolingCodec().encode(latent)], dim=1)
    torch.testing.assert_close(batch.latents[0], expected, atol=2e-2, rtol=1e-2)
    assert cache_set.latent_shape(cache_set.items[0]) == (16, 4, 6, 8)
    again, codec, _ = bench.run(conditioning="animate")
    assert (given_counts(again), codec.seen) == ((0, 3), [])


def test_a_clip_without_a_face_is_refused_by_name_and_companions_are_no_clips(bench, make_clip):
    beside(bench, make_clip, "a", "b", "c")
    (bench.folder / "b_face.mp4").unlink()
    report, *_ = bench.run(conditioning="animate")
    assert report.latents_encoded == 2
    from wan_core.dataset import DatasetConfig, ScanContext, scan_folder, scan_report

    config = DatasetConfig(**bench.settings, conditioning="animate")
    found = scan_folder(config, bench.folder, ScanContext(bench.video))
    said = scan_report(found)
    assert "b.mp4: has no face video; add it as b_face.mp4" in said
    assert "files next to clips: reference image (2), pose video (2), face video (2)" in said
    plain = scan_folder(DatasetConfig(**bench.settings), bench.folder, ScanContext(bench.video))
    assert len(plain.samples) > 3  # a model that reads none of them trains on every file that has a caption
