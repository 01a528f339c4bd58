"""Tags in several orders that follow from the caption alone, and take turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from PIL import Image

from wan_core.dataset import DatasetConfig, ScanContext, lengths_of, scan_folder
from wan_core.dataset.captions import estimated_tokens, tag_orders
from wan_core.dataset.report import scan_report
from wan_core.dataset.sample import with_captions
from wan_core.errors import ConfigError


def test_every_order_holds_the_same_tags_and_keeps_the_first_ones():
    orders = tag_orders("ohwx man, a, b, c, d, e", 8, keep_tokens=2)
    assert len(set(orders)) == 8
    for order in orders:
        tags = order.split(", ")
        assert tags[:2] == ["ohwx man", "a"]
        assert sorted(tags[2:]) == ["b", "c", "d", "e"]


def test_orders_are_the_same_every_time_and_more_keep_the_first():
    assert tag_orders("a, b, c, d", 4) == tag_orders("a, b, c, d", 9)[:4]
    assert tag_orders("a, b, c, d", 4) != tag_orders("a, b, c, x", 4)


def test_few_tags_have_few_orders_and_all_of_them_come_up():
    assert set(tag_orders("a, b, c", 64)) == {", ".join(p) for p in permutations("abc")}
    assert set(tag_orders("a, b", 5)) == {"a, b", "b, a"}


@pytest.mark.parametrize(("caption", "count", "kept"), [("a car", 4, 0), ("", 4, 0), ("a, b, c", 4, 2), ("a, b", 0, 0)])
def test_what_cannot_be_shuffled_stays_as_written(caption, count, kept):
    assert tag_orders(caption, count, kept) == (caption,)


def scan(tmp_path, video, caption="one, two, three, four", **changes):
    folder = tmp_path / "clips"
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (64, 48)).save(folder / "a.png")
    (folder / "a.txt").write_text(caption)
    config = DatasetConfig(width=64, height=48, num_frames=1, **changes)
    return scan_folder(config, folder, ScanContext(video))


def test_a_scan_gives_one_sample_an_order_with_prefix_and_trigger_word_in_front(tmp_path, video):
    result = scan(tmp_path, video, caption_shuffles=3, keep_tokens=1, caption_prefix="a photo of", trigger_word="ohwx")
    assert [(s.turn, s.turns) for s in result.samples] == [(0, 3), (1, 3), (2, 3)]
    assert all(s.caption.startswith("ohwx, a photo of one, ") for s in result.samples)
    assert len({s.caption for s in result.samples}) == 3
    lines = scan_report(result).splitlines()
    assert lines[0] == "dataset: 0 clips, 1 still"
    assert "captions: 1 of 1 from .txt files" in lines
    assert "prefix 'a photo of' put in front of every caption" in lines
    assert "tags: 1 of 1 captions in up to 3 orders that take turns, one per epoch, the first 1 tags in place" in lines


def test_captions_and_windows_that_take_turns_meet_in_every_pair_once(tmp_path, video):
    (sample,) = scan(tmp_path, video).samples
    windows = [replace(sample, turn=turn, turns=2) for turn in range(2)]
    mixed = with_captions(windows, ["a", "b", "c"])
    assert sorted(s.turn for s in mixed) == list(range(6))
    assert {s.turns for s in mixed} == {6}
    by_turn = sorted(mixed, key=lambda s: s.turn)
    # The window of turn t is still t modulo 2, and no caption is seen in two epochs after each other.
    assert len({(s.turn % 2, s.caption) for s in mixed}) == 6
    assert [s.caption for s in by_turn] == ["a", "b", "b", "c", "c", "a"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"caption_shuffles": 65}, "caption_shuffles is 65. Set it between 0"),
        ({"keep_tokens": -1}, "keep_tokens is -1"),
        ({"missing_captions": "guess"}, "missing_captions is 'guess'. Choose one of \"refuse\""),
        ({"weight": 0.0}, "weight is 0. Set it between"),
        ({"weight": float("nan")}, "weight nan is not a finite number"),
    ],
)
def test_impossible_caption_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        DatasetConfig(**changes)


def test_lengths_are_told_against_the_512_tokens_of_the_text_encoder(tmp_path, video):
    assert estimated_tokens("") == 1  # the end token
    assert estimated_tokens("a red car, at night") == 7
    assert estimated_tokens("日本の夜") == 5
    long = "word " * 600
    found = lengths_of([("a", 3), ("b", estimated_tokens(long)), ("c", 10)])
    assert (found.longest, found.median, found.too_long) == (601, 10, ("b",))
    result = scan(tmp_path, video)
    assert "caption length: about 8 tokens (median), 8 (longest), of at most 512" in scan_report(result)
    assert "probably truncated at 512 tokens: a.png" in scan_report(scan(tmp_path, video, caption=long))
