"""Control and mask videos beside clips: found, checked, cut like the clip, encoded once, and weighed in the loss."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.bench import Bench, CountingText, PoolingCodec, counts, given_counts
from tests.support.caching import unsound
from wan_core.cache import Batches, Encoders, LatentCache, encode_missing
from wan_core.cache.keys import mask_key, transform_of
from wan_core.dataset import Dataset, DatasetConfig, MediaFile, ScanContext, scan_files, scan_folder
from wan_core.dataset.conditioning import control_channels, loss_mask, vace_tensor
from wan_core.dataset.control_files import with_companions
from wan_core.dataset.files import SourcePart, fingerprint_of_folder
from wan_core.dataset.report import scan_report
from wan_core.errors import ConfigError, DatasetError


@pytest.fixture
def bench(tmp_path, make_clip, video):
    """Clips a and b with captions; a control video for each, one in a folder, one by its name."""
    for number, name in enumerate("ab"):
        make_clip(f"clips/{name}.mp4", num_frames=14 + number)
        (tmp_path / "clips" / f"{name}.txt").write_text(f"caption {name}")
    make_clip("clips/control/a.mkv", frames=levels(14, 200), codec="ffv1")
    make_clip("clips/b_control.mp4", frames=levels(15, 120))
    return Bench(tmp_path / "clips", tmp_path / "cache", video)


def levels(count: int, first: int) -> list[np.ndarray]:
    return [np.full((48, 64, 3), first - 8 * k, np.uint8) for k in range(count)]


def scanned(bench: Bench, **changes):
    return scan_folder(DatasetConfig(**{**bench.settings, **changes}), bench.folder, ScanContext(bench.video))


def test_control_videos_go_with_their_clips_and_are_no_clips_of_their_own(bench):
    result = scanned(bench, conditioning="vace")
    found = [(s.name, s.control and s.control.path.relative_to(bench.folder).as_posix()) for s in result.samples]
    assert found == [("a.mp4", "control/a.mkv"), ("b.mp4", "b_control.mp4")]
    assert result.rejected == ()


def test_a_model_that_reads_no_control_video_trains_on_every_file_of_the_folder(bench):
    result = scanned(bench, trigger_word="x")
    assert [(s.name, s.control, s.mask) for s in result.samples] == [
        ("a.mp4", None, None),
        ("b.mp4", None, None),
        ("b_control.mp4", None, None),
    ]


def test_what_a_list_names_counts_before_what_lies_beside(bench):
    named = bench.folder / "control" / "a.mkv"
    files = [MediaFile(path=bench.folder / "a.mp4", control=bench.folder / "b_control.mp4"), MediaFile(path=named)]
    assert [(f.path.name, f.control.name) for f in with_companions(files, ("control",))] == [("a.mp4", "b_control.mp4")]
    assert with_companions(files, ()) == files


def reasons(bench: Bench, **changes) -> dict[str, str]:
    return {r.name: r.reason for r in scanned(bench, **{"conditioning": "vace", **changes}).rejected}


def test_clips_without_a_fitting_control_video_are_rejected_by_name(bench, make_clip):
    for name in "cdefg":
        make_clip(f"clips/{name}.mp4", num_frames=20)
    make_clip("clips/control/d.mp4", num_frames=6)
    make_clip("clips/control/e.mp4", num_frames=20, width=48)
    (bench.folder / "control" / "f.mp4").write_bytes(b"no video")
    Image.new("RGB", (64, 48)).save(bench.folder / "control" / "g.png")
    found = reasons(bench, trigger_word="x")
    assert found["c.mp4"] == "has no control video; add it as control/c.mp4 or c_control.mp4"
    assert found["d.mp4"] == "its control video d.mp4 has 6 frames at 16 fps, 9 are needed"
    assert found["e.mp4"] == "its control video e.mp4 is 48x48, another aspect ratio than 64x48"
    assert found["f.mp4"].startswith("its control video f.mp4 cannot be used: cannot be read as a video")
    assert found["g.mp4"] == "its control video g.png is a still, the file itself a clip"
    assert "  c.mp4: has no control video" in scan_report(scanned(bench, conditioning="vace", trigger_word="x"))


def test_a_control_video_outside_the_allowed_folders_is_never_opened(bench, make_clip):
    secret = make_clip("elsewhere/secret.mp4")
    part = SourcePart(name="list", files=(MediaFile(path=bench.folder / "a.mp4", control=secret),))
    config = DatasetConfig(**bench.settings, conditioning="vace")
    with pytest.raises(DatasetError, match=r"its control video secret\.mp4 is a link that leads outside"):
        scan_files(config, part, ScanContext(bench.video))
    allowed = scan_files(config, part, ScanContext(bench.video, allowed=[secret.parent]))
    assert allowed.samples[0].control is not None


def test_vace_trains_on_the_clip_and_reads_its_control_video(bench):
    report, _codec, _ = bench.run(conditioning="vace")
    assert (counts(report), given_counts(report)) == ((2, 0, 4, 0), (2, 0))
    assert "control and mask files (vace): 2 encoded, 0 reused" in report.sentences()
    cache = LatentCache(bench.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    assert unsound(cache, cache_set) == []
    for item, first in zip(cache_set.items, (200, 120), strict=True):
        wanted = torch.tensor(np.stack(levels(9, first))).float() / 255
        expected = vace_tensor(wanted, None, PoolingCodec().encode)
        found = cache.read_condition(item.condition_key)["vace"].float()
        assert found.shape == (96, 3, 6, 8)
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
    batch = Batches(cache_set, cache, seed=0, batch_size=2).at(0)
    assert batch.conditioning is not None
    assert batch.conditioning.vace is not None
    assert batch.loss_mask is None


def test_fun_control_2_1_also_gets_its_first_frame_as_start_image_and_token(bench):
    report, codec, _ = bench.run(conditioning="control_vision")
    cache = LatentCache(bench.cache_root)
    item = cache.read_set(report.fingerprint).items[0]
    control = torch.tensor(np.stack(levels(9, 200))).float() / 255
    found = cache.read_condition(item.condition_key)
    start = codec.seen[0][:1]
    assert found["image_tokens"].shape == (257, 1280)
    assert torch.equal(bench.vision.seen[0], start[0])
    expected = control_channels(control, start, PoolingCodec().encode)
    assert expected.shape == (32, 3, 6, 8)
    torch.testing.assert_close(found["channels"].float(), expected, atol=0.02, rtol=0.02)
    assert bool((found["channels"][16:, 1:] == 0).all())


def test_another_control_video_is_another_entry_and_swapped_back_none(bench, make_clip):
    bench.run(conditioning="vace")
    path = bench.folder / "b_control.mp4"
    original, before = path.read_bytes(), fingerprint_of_folder(bench.folder)
    make_clip("clips/b_control.mp4", frames=levels(15, 180))
    edited, *_ = bench.run(conditioning="vace")
    assert (counts(edited)[:2], given_counts(edited)) == ((0, 2), (1, 1))
    path.write_bytes(original)
    back, *_ = bench.run(conditioning="vace")
    assert (counts(back)[:2], given_counts(back)) == ((0, 2), (0, 2))
    make_clip("clips/control/a.mkv", frames=levels(14, 110), codec="ffv1")
    assert fingerprint_of_folder(bench.folder) != before


def test_a_control_video_that_changes_between_scan_and_encoding_is_named(bench):
    dataset = Dataset((scanned(bench, conditioning="vace"),))
    cache = LatentCache(bench.cache_root)
    plan = bench.plan(dataset, cache)
    (bench.folder / "b_control.mp4").write_bytes((bench.folder / "a.mp4").read_bytes())
    with pytest.raises(DatasetError, match=r"b_control\.mp4 changed since it was scanned"):
        encode_missing(plan, cache, Encoders(codec=PoolingCodec(), text_encoder=CountingText(), video=bench.video))


# ---- masks ---------------------------------------------------------------------------------------


@pytest.fixture
def masked(bench, make_clip):
    """Clip a with a moving mask, clip b with a picture of one."""
    frames = [np.zeros((48, 64, 3), np.uint8) for _ in range(14)]
    for number, frame in enumerate(frames):
        frame[:, : 8 * (number // 2)] = 255
    make_clip("clips/mask/a.mkv", frames=frames, codec="ffv1")
    picture = np.zeros((48, 64), np.uint8)
    picture[8:24, 4:32] = 255
    Image.fromarray(picture).save(bench.folder / "b_mask.png")
    return bench


def test_loss_masks_are_folded_like_the_vae_folds_time_and_averaged_in_space():
    mask = torch.zeros(9, 16, 24)
    mask[0] = 1
    mask[1:3, :8] = 1  # half of frames 1-4, in the upper squares
    mask[8, :4, :8] = 1  # a quarter of frames 5-8, half of the first square
    found = loss_mask(mask, 8)
    assert found.shape == (1, 3, 2, 3)
    assert found[0, 0].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert found[0, 1].tolist() == [[0.5, 0.5, 0.5], [0, 0, 0]]
    assert found[0, 2].tolist() == [[0.125, 0, 0], [0, 0, 0]]
    assert loss_mask(torch.ones(1, 16, 16), 16).tolist() == [[[[1.0]]]]


def test_masks_are_off_unless_asked_for(masked):
    report, *_ = masked.run(trigger_word="x", conditioning="none")
    cache_set = LatentCache(masked.cache_root).read_set(report.fingerprint)
    assert {item.mask_key for item in cache_set.items} == {""}
    with pytest.raises(ConfigError, match=r"mask_use is 'yes'\. Use one of: off, loss, condition, both"):
        DatasetConfig(mask_use="yes")


def test_a_mask_of_16_bits_weighs_as_one_of_8_and_has_entries_of_its_own(masked):
    def weights_of_b() -> tuple[bool, torch.Tensor]:
        """Whether the mask's entry is named as older versions named it, and what it holds."""
        report, *_ = masked.run(trigger_word="x", mask_use="loss")
        cache = LatentCache(masked.cache_root)
        cache_set = cache.read_set(report.fingerprint)
        batch = Batches(cache_set, cache, seed=0, batch_size=4).at(0)
        sample = next(s for s in scanned(masked, trigger_word="x", mask_use="loss").samples if s.name == "b.mp4")
        transform = {**transform_of(sample, 16.0), "space": "wan2.1"}
        older = mask_key(content_digest=hashlib.sha256(path.read_bytes()).hexdigest(), transform=transform)
        assert batch.loss_mask is not None
        as_before = older in {item.mask_key for item in cache_set.items}
        return as_before, dict(zip(batch.names, batch.loss_mask, strict=True))["b.mp4"]

    path = masked.folder / "b_mask.png"
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8) * 4, (48, 64))
    Image.fromarray(np.ascontiguousarray(ramp)).save(path)
    as_before, weights = weights_of_b()
    Image.fromarray(ramp.astype(np.uint16) * 257).save(path)
    deep_as_before, deep_weights = weights_of_b()
    torch.testing.assert_close(deep_weights, weights, rtol=0, atol=0)
    assert 0 < float(weights.mean()) < 0.6, "a ramp, and not white"
    assert (as_before, deep_as_before) == (True, False), "what was white once is not found again"


def test_loss_masks_reach_the_batch_and_clips_without_one_count_whole(masked, make_clip):
    make_clip("clips/c.mp4", num_frames=20)
    report, *_ = masked.run(trigger_word="x", mask_use="loss")
    assert (report.masks_encoded, report.masks_reused) == (2, 0)
    cache = LatentCache(masked.cache_root)
    cache_set = cache.read_set(report.fingerprint)
    assert unsound(cache, cache_set) == []
    batches = Batches(cache_set, cache, seed=0, batch_size=4)
    batch = batches.at(0)
    assert batch.loss_mask is not None
    weights = dict(zip(batch.names, batch.loss_mask, strict=True))
    assert weights["a.mp4"].shape == (1, 3, 6, 8)
    # Frames 1-4 are white in 0, 1, 1, 2 columns of squares; 5-8 in 2, 3, 3, 4.
    assert weights["a.mp4"][0, :, 0].tolist() == [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0.75, 0.25, 0, 0, 0, 0, 0, 0],
        [1, 1, 0.75, 0.25, 0, 0, 0, 0],
    ]
    assert weights["b.mp4"][0, 2, 1].tolist() == [0.5, 1, 1, 1, 0, 0, 0, 0]
    assert bool((weights["c.mp4"] == 1).all())
    assert bool((weights["b_control.mp4"] == 1).all())
    again, codec, _ = masked.run(trigger_word="x", mask_use="loss")
    assert (again.masks_encoded, again.masks_reused, codec.seen) == (0, 2, [])
    assert again.fingerprint == report.fingerprint
    plain, *_ = masked.run(trigger_word="x")
    assert counts(plain)[:2] == (1, 4)  # b_mask.png is a still like any other then, and the report says so
    assert plain.fingerprint != report.fingerprint
    text = scan_report(scanned(masked, trigger_word="x"))
    assert "although the name says control or mask: b_control.mp4, b_mask.png" in text
    deep = scan_report(scanned(masked, trigger_word="x", recursive=True))
    assert "although the name says control or mask: b_control.mp4, b_mask.png, control/a.mkv, mask/a.mkv" in deep


def test_the_report_counts_masks_and_warns(masked):
    text = scan_report(scanned(masked, trigger_word="x", mask_use="loss"))
    assert "loss masks: 2 of 3; trained whole: b_control.mp4" in text
    assert "makes Wan LoRAs worse" in text
    text = scan_report(scanned(masked, conditioning="vace", mask_use="condition"))
    assert "control videos: 2 of 2\nmasks: 2 of 2" in text
    assert "worse" not in text


def test_a_black_mask_is_named_because_nothing_is_trained(masked):
    Image.new("L", (64, 48)).save(masked.folder / "b_mask.png")
    report, *_ = masked.run(trigger_word="x", mask_use="loss")
    assert report.black_masks == ("b.mp4",)
    assert "masks without a white pixel, so nothing is trained: b.mp4" in report.sentences()


def test_vace_and_fun_inp_paint_inside_the_mask(masked):
    report, codec, _ = masked.run(conditioning="vace", mask_use="condition")
    cache = LatentCache(masked.cache_root)
    item = cache.read_set(report.fingerprint).items[1]
    found = cache.read_condition(item.condition_key)["vace"].float()
    assert set(found[32:].unique().tolist()) == {0.0, 1.0}
    assert found[32:, 0].sum() == 16 * 28
    assert item.mask_key == ""

    report, codec, _ = masked.run(conditioning="first", mask_use="both")
    cache_set = LatentCache(masked.cache_root).read_set(report.fingerprint)
    assert cache_set.conditioning == "inpaint"
    channels = cache.read_condition(cache_set.items[1].condition_key)["channels"].float()
    assert channels.shape == (20, 3, 6, 8)
    assert channels[0, 1, 1].tolist() == [1 - 0.5, 0, 0, 0, 1, 1, 1, 1]
    painted = next(p for p in codec.seen if bool((p[:, 8:24, 4:32] == 0.5).all()))
    assert bool((painted[1, 0] != 0.5).any())
    assert cache_set.items[1].mask_key
    (masked.folder / "b_mask.png").unlink()
    assert "has no mask" in reasons(masked, conditioning="first", mask_use="both")["b.mp4"]
