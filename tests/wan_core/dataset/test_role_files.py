"""Reference, pose and identity masks beside clips (SCAIL): found, checked, encoded as WanSCAILToVideo does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.bench import Bench, PoolingCodec, counts, given_counts
from tests.support.caching import unsound
from wan_core.cache import Batches, LatentCache
from wan_core.dataset import DatasetConfig, ScanContext, scan_folder
from wan_core.dataset.conditioning import driven_tensors, identity_channels
from wan_core.errors import ConfigError
from wan_core.importers import SourceFile, source_fingerprint

SIZE = {"width": 64, "height": 64, "size_multiple": 32}
BLUE, BLACK, WHITE = (0, 0, 255), (0, 0, 0), (255, 255, 255)


def halves(left: tuple[int, ...], right: tuple[int, ...]) -> np.ndarray:
    found = np.empty((64, 64, 3), np.uint8)
    found[:, :32], found[:, 32:] = left, right
    return found


@pytest.fixture
def bench(tmp_path, make_clip, video):
    """Clip a with all its files, lossless; clip b without a pose video."""
    for name in "ab":
        make_clip(f"clips/{name}.mp4", num_frames=12, width=64, height=64)
        (tmp_path / "clips" / f"{name}.txt").write_text(f"caption {name}")
    make_clip("clips/a_pose.mkv", frames=[np.full((64, 64, 3), 20 * k, np.uint8) for k in range(12)], codec="ffv1")
    make_clip("clips/a_pose_mask.mkv", frames=[halves(BLUE, WHITE)] * 12, codec="ffv1")
    Image.fromarray(halves(BLUE, BLACK)).save(tmp_path / "clips" / "a_ref1_mask.png")
    for name in "ab":
        Image.fromarray(np.full((64, 64, 3), 200, np.uint8)).save(tmp_path / "clips" / f"{name}_ref1.png")
    return Bench(tmp_path / "clips", tmp_path / "cache", video, **SIZE)


def test_files_of_a_clip_are_no_clips_and_a_clip_without_one_is_refused_by_name(bench):
    config = DatasetConfig(**bench.settings, conditioning="driven_masked")
    found = scan_folder(config, bench.folder, ScanContext(bench.video))
    assert [sample.name for sample in found.samples] == ["a.mp4"]
    roles = [(file.role, file.path.name) for file in found.samples[0].context]
    assert roles == [
        ("ref1", "a_ref1.png"),
        ("pose", "a_pose.mkv"),
        ("ref1_mask", "a_ref1_mask.png"),
        ("pose_mask", "a_pose_mask.mkv"),
    ]
    reasons = {one.name: one.reason for one in found.rejected}
    assert reasons == {"b.mp4": "has no pose video; add it as b_pose.mp4"}


def test_they_are_encoded_as_the_node_does(bench):
    report, *_ = bench.run(conditioning="driven_masked")
    assert (counts(report), given_counts(report)) == ((1, 0, 3, 0), (1, 0))
    cache = LatentCache(bench.cache_root)
    clips = cache.read_set(report.fingerprint)
    assert unsound(cache, clips) == []
    found = {name: tensor.float() for name, tensor in cache.read_condition(clips.items[0].condition_key).items()}
    pose = torch.stack([torch.full((64, 64, 3), 20 * k / 255) for k in range(9)])
    masks = [torch.tensor(halves(BLUE, other)).float() / 255 for other in (BLACK, WHITE)]
    reference = torch.full((1, 64, 64, 3), 200 / 255)
    both = (masks[0][None], masks[1].expand(9, -1, -1, -1))
    expected = driven_tensors(reference, pose, both, PoolingCodec().encode)
    assert found.keys() == {*expected, "image_tokens"}
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=0.02, rtol=0.02)
    assert found["replaces"].tolist() == [1.0], "the pose mask has a white background"
    assert float(found["references"][..., 4:].abs().max()) == 0, "of the reference its character alone is given"
    assert float(found["image_tokens"].mean()) == pytest.approx(200 / 255, abs=0.01)
    batch = Batches(clips, cache, seed=0, batch_size=1).at(0)
    assert batch.conditioning is not None
    assert batch.conditioning.replaces
    assert batch.conditioning.pose_stream is not None
    assert batch.conditioning.pose_stream.shape == (1, 16, 3, 4, 4)


def test_another_reference_is_encoded_again_and_counts_in_the_fingerprint_of_a_list(bench):
    first, *_ = bench.run(conditioning="driven")
    source = SourceFile(path=bench.folder.parent / "list.jsonl", allowed=[bench.folder.parent])
    source.path.write_text('{"file": "clips/a.mp4", "caption": "x"}\n')
    before = source_fingerprint(source)
    Image.fromarray(np.full((64, 64, 3), 90, np.uint8)).save(bench.folder / "a_ref1.png")
    again, *_ = bench.run(conditioning="driven")
    assert (given_counts(first), given_counts(again)) == ((1, 0), (1, 0))
    assert (counts(again)[0], again.fingerprint == first.fingerprint) == (0, False)
    assert source_fingerprint(source) != before


def test_identity_masks_are_shares_of_seven_colours_in_four_frames():
    frames = torch.zeros(5, 16, 16, 3)
    frames[0, :, :8, 2] = 1  # blue on the left
    frames[2, :4] = 1  # white on half of each upper square
    found = identity_channels(frames)
    assert found.shape == (28, 2, 2, 2)
    blue = found[3::7, 0]
    assert blue.tolist() == [[[1.0, 0.0], [1.0, 0.0]]] * 4, "frame 0 counts four times"
    assert found[7, 1].tolist() == [[0.5, 0.5], [0.0, 0.0]]
    assert float(found.sum()) == 4 * 2 + 2 * 0.5


def test_a_folder_for_s2v_is_refused_with_the_way_through_a_graph() -> None:
    with pytest.raises(ConfigError, match=r"S2V reads the sound .* through WanSoundImageToVideo in a graph"):
        DatasetConfig(conditioning="s2v")
