"""Which size and which part of the picture, computed by hand."""

from __future__ import annotations

import pytest

from wan_core.dataset import DatasetConfig
from wan_core.dataset.bucket import Bucket
from wan_core.dataset.cutting import find_bucket, find_framings
from wan_core.video import ClipInfo, Framing, covered_size


def info(width: int, height: int) -> ClipInfo:
    return ClipInfo(kind="clip", width=width, height=height, num_frames=40, fps=16, duration_s=2.5)


def config(**changes) -> DatasetConfig:
    return DatasetConfig(**{"width": 64, "height": 48, "num_frames": 9, "enable_bucket": False, **changes})


@pytest.mark.parametrize(
    ("source", "multiple", "size"),
    [
        ((100, 70), 16, (96, 64)),  # fits: only the edges go
        ((64, 48), 16, (64, 48)),
        ((31, 17), 16, (16, 16)),
        ((100, 70), 32, (96, 64)),
        ((127, 63), 32, (96, 32)),
        ((1920, 1080), 16, (832, 464)),  # scaled by sqrt(832 * 480 / (1920 * 1080)) = 0.4388: 842.6 x 473.9
        ((1080, 1920), 16, (464, 832)),
        ((1920, 1080), 32, (832, 448)),
    ],
)
def test_without_a_crop_a_source_keeps_its_own_size_on_the_grid(source, multiple, size):
    settings = config(crop="none", width=832, height=480, size_multiple=multiple)
    bucket = find_bucket(info(*source), 9, settings)
    assert bucket == Bucket(9, size[1], size[0])
    framing = find_framings(info(*source), bucket, settings, "s")[0]
    scaled = source if framing.native else covered_size(source, size)
    assert all(0 <= have - wanted < multiple for have, wanted in zip(scaled, size, strict=True))
    assert framing.native == (source[0] * source[1] <= 832 * 480)


def test_a_source_below_the_grid_has_no_size_of_its_own():
    assert find_bucket(info(31, 200), 9, config(crop="none", width=64, height=64, size_multiple=32)) is None


def test_random_crops_move_along_the_axis_that_is_cut():
    settings = config(crop="random", variants=6)
    bucket = Bucket(9, 48, 64)
    framings = find_framings(info(128, 48), bucket, settings, "s")  # covered: 128 x 48, 64 columns to spare
    assert len(set(framings)) == 6
    lefts = {framing.place((128, 48), (64, 48))[0] for framing in framings}
    assert len(lefts) == 6
    assert all(0 <= left <= 64 for left in lefts)
    assert {framing.place((128, 48), (64, 48))[1] for framing in framings} == {0}
    assert find_framings(info(128, 48), bucket, config(crop="random", variants=2), "s") == framings[:2]
    assert find_framings(info(128, 48), bucket, settings, "other") != framings


def test_where_nothing_is_cut_random_is_the_centre():
    assert find_framings(info(640, 480), Bucket(9, 48, 64), config(crop="random"), "s") == [Framing()]


def test_a_random_crop_in_the_centre_is_the_centre():
    """So that it shares the cache entry of the centre crop."""
    framings = find_framings(info(66, 48), Bucket(9, 48, 64), config(crop="random", variants=9), "s")
    assert sorted(framings, key=repr) == sorted([Framing(), Framing(offset=(0, 0)), Framing(offset=(2, 0))], key=repr)


@pytest.mark.parametrize("multiple", [16, 32])
@pytest.mark.parametrize("source", [(1920, 1080), (1080, 1920), (500, 500), (3000, 700), (333, 777), (17, 400)])
def test_buckets_by_area_stay_on_the_grid_and_within_the_area(source, multiple):
    settings = DatasetConfig(width=832, height=480, size_multiple=multiple)
    bucket = find_bucket(info(*source), 33, settings)
    assert bucket is not None
    assert bucket.width % multiple == bucket.height % multiple == 0
    assert bucket.width * bucket.height <= 832 * 480
    assert bucket.width * bucket.height >= 0.8 * 832 * 480


def test_a_framing_never_leaves_the_picture():
    assert Framing(offset=(900, -5)).place((100, 80), (64, 48)) == (36, 0)
    assert Framing().place((101, 80), (64, 48)) == (18, 16)
