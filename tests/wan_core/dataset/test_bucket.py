"""Bucket sizes, by hand-computed numbers."""

from __future__ import annotations

import pytest

from wan_core.dataset.bucket import Bucket, assign_bucket, frames_sentence, is_frame_count, nearest_frames


def size_of(source: tuple[int, int], width: int, height: int, multiple: int = 16) -> tuple[int, int]:
    bucket = assign_bucket(*source, num_frames=33, width=width, height=height, multiple=multiple)
    return bucket.width, bucket.height


def test_a_source_of_nearly_the_asked_shape_gets_the_asked_size():
    # 1920/1080 = 1.778 and 832/480 = 1.733 differ by 2.5 %; 1.778 and 1280/704 = 1.818 by 2.2 %
    assert size_of((1920, 1080), 832, 480) == (832, 480)
    assert size_of((1920, 1080), 1280, 704, 32) == (1280, 704)


def test_four_by_three_gets_720_by_544_in_the_area_of_832_by_480():
    # 720 * 544 = 391,680 <= 399,360 and 720/544 = 1.324; 736 * 544 would be 400,384
    assert size_of((640, 480), 832, 480) == (720, 544)


def test_a_square_keeps_its_shape():
    # 624 * 624 = 389,376 (2.5 % below the area, no crop); 640 * 640 = 409,600 is too large
    assert size_of((1000, 1000), 832, 480) == (624, 624)


def test_portrait_is_landscape_turned():
    assert size_of((1080, 1920), 832, 480) == (480, 832)


def test_extreme_strips_are_held_to_four_by_one():
    width, height = size_of((10_000, 10), 832, 480)
    assert width * height <= 832 * 480
    assert width / height == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("multiple", [16, 32])
def test_no_bucket_exceeds_the_area_or_leaves_the_grid(multiple):
    for source in [(w, h) for w in range(100, 2000, 270) for h in range(100, 2000, 310)]:
        width, height = size_of(source, 1280, 704, multiple)
        assert width % multiple == 0
        assert height % multiple == 0
        assert 0.85 * 1280 * 704 <= width * height <= 1280 * 704


def test_without_buckets_every_source_gets_the_asked_size():
    bucket = assign_bucket(640, 480, num_frames=33, width=832, height=480, multiple=16, enable_bucket=False)
    assert bucket == Bucket(33, 480, 832)
    assert str(bucket) == "832x480x33"


def test_frame_counts_are_four_n_plus_one():
    assert [n for n in range(14) if is_frame_count(n)] == [1, 5, 9, 13]
    assert [nearest_frames(n) for n in (1, 4, 5, 30, 33)] == [1, 1, 5, 29, 33]
    assert frames_sentence(30) == "Set num_frames to 29 or 33."
