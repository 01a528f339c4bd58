"""Where windows begin, counted by hand on frame numbers."""

from __future__ import annotations

import pytest

from wan_core.dataset.windows import Window, draw_different, find_windows, round_frames


def firsts(mode: str, available: int, lengths=(33,), **changes) -> list[int]:
    return [window.first for window in windows(mode, available, lengths, **changes)]


def windows(mode: str, available: int, lengths=(33,), **changes) -> list[Window]:
    settings = {"stride": 16, "count": 4, "variants": 4, "seed": "s"}
    return find_windows(mode, available, lengths, **{**settings, **changes})


def test_head_takes_the_first_frames_and_no_more():
    assert windows("head", 100) == [Window(0, 33)]


def test_chunks_follow_each_other_without_a_gap_or_an_overlap():
    assert firsts("chunk", 100) == [0, 33, 66]  # the 100th frame is left over
    assert firsts("chunk", 98) == [0, 33]
    assert firsts("chunk", 99) == [0, 33, 66]


def test_chunks_fill_what_is_left_with_shorter_buckets():
    assert windows("chunk", 120, (17, 33, 81)) == [Window(0, 81), Window(81, 33)]  # 6 left
    assert windows("chunk", 98, (17, 33, 81)) == [Window(0, 81), Window(81, 17)]


def test_slide_begins_a_window_every_stride_frames():
    assert firsts("slide", 100) == [0, 16, 32, 48, 64]  # 80 + 33 would be 113
    assert firsts("slide", 97) == [0, 16, 32, 48, 64]
    assert firsts("slide", 96) == [0, 16, 32, 48]
    assert firsts("slide", 40, stride=3) == [0, 3, 6]


def test_uniform_windows_lie_evenly_from_the_first_frame_to_the_last():
    assert firsts("uniform", 100) == [0, 22, 45, 67]  # 67 * (0, 1/3, 2/3, 1)
    assert firsts("uniform", 100, count=1) == [0]
    assert firsts("uniform", 35, count=9) == [0, 1, 2]  # no more beginnings than these


@pytest.mark.parametrize(("available", "length"), [(1, 1), (4, 1), (5, 5), (80, 77), (81, 81), (100, 81)])
def test_full_takes_the_longest_count_that_fits_up_to_the_most(available, length):
    assert windows("full", available, range(1, 82, 4)) == [Window(0, length)]


def test_a_window_gets_the_longest_bucket_it_fills():
    assert windows("head", 80, (17, 33, 81)) == [Window(0, 33)]
    assert windows("slide", 40, (17, 33, 81), stride=4) == [Window(0, 33), Window(4, 33)]


@pytest.mark.parametrize("mode", ["head", "chunk", "slide", "uniform", "random"])
def test_a_stretch_shorter_than_the_shortest_gives_nothing(mode):
    assert windows(mode, 16, (17, 33)) == []
    assert len(windows(mode, 17, (17, 33))) == 1


def test_random_windows_differ_fit_and_depend_on_nothing_but_the_seed():
    found = firsts("random", 200, variants=8)
    assert len(set(found)) == 8
    assert all(0 <= first <= 167 for first in found)
    assert firsts("random", 200, variants=8) == found
    assert firsts("random", 200, variants=8, seed="other") != found
    assert firsts("random", 200, variants=3) == found[:3]  # more variants keep the cached ones
    assert sorted(firsts("random", 35, variants=8)) == [0, 1, 2]


def test_draws_cover_their_range():
    counts = [0] * 10
    for seed in range(1000):
        counts[draw_different(str(seed), "window", 10, 1)[0]] += 1
    assert min(counts) > 60  # 100 expected, 9.5 standard deviation
    assert max(counts) < 140


@pytest.mark.parametrize(
    ("asked", "down", "nearest"),
    [(75, 73, 73), (76, 73, 77), (74, 73, 73), (73, 73, 73), (3, 1, 1), (4, 1, 5), (1, 1, 1), (81, 81, 81)],
)
def test_counts_are_rounded_down_or_to_the_nearest(asked, down, nearest):
    assert round_frames(asked, "down") == down
    assert round_frames(asked, "nearest") == nearest  # 75 is as far from 73 as from 77: the lower one
    assert round_frames(asked, "refuse") == asked
