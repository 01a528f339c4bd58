"""Captions are UTF-8 or named; nothing is guessed."""

from __future__ import annotations

import json
import os

import pytest

from wan_core.dataset.captions import caption_with_prefix, caption_with_trigger, read_caption
from wan_core.errors import DatasetError


@pytest.mark.parametrize(
    ("content", "caption"),
    [
        (b"a red car", "a red car"),
        (b"\xef\xbb\xbfa red car\r\n", "a red car"),
        (b"a red\r\ncar\n", "a red car"),
        ("eine Straße, 日本".encode(), "eine Straße, 日本"),
        (b"<b>bold</b> & more", "<b>bold</b> & more"),
        (b"", ""),
        (b" \t\r\n", ""),
        (b"\xef\xbb\xbf", ""),
    ],
)
def test_what_a_caption_file_says(tmp_path, content, caption):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert read_caption(path) == caption


def test_no_file_is_no_caption(tmp_path):
    assert read_caption(tmp_path / "a.txt") == ""


@pytest.mark.parametrize(
    ("content", "byte", "offset"),
    [
        ("ein Straßenbild".encode("latin-1"), "0xdf", 8),
        ("a car".encode("utf-16"), "0xff", 0),
        (b"a\x00b", "0x00", 1),
        (b"car \xed\xa0\x80", "0xed", 4),
    ],
)
def test_undecodable_text_is_named_with_its_offset(tmp_path, content, byte, offset):
    path = tmp_path / "clip.txt"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"clip\.txt is not saved as UTF-8 \(byte {byte} at offset {offset}"):
        read_caption(path)


def test_a_book_is_not_a_caption(tmp_path):
    path = tmp_path / "clip.txt"
    path.write_bytes(b"word " * 400_000)
    with pytest.raises(DatasetError, match=r"clip\.txt is longer than 64 KiB"):
        read_caption(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_a_caption(tmp_path):
    os.mkfifo(tmp_path / "clip.txt")
    with pytest.raises(DatasetError, match="not a regular file"):
        read_caption(tmp_path / "clip.txt")


def test_the_trigger_word_is_added_once():
    assert caption_with_trigger("a man runs", "ohwx") == "ohwx, a man runs"
    assert caption_with_trigger("ohwx man runs", "ohwx") == "ohwx man runs"
    assert caption_with_trigger("", "ohwx") == "ohwx"
    assert caption_with_trigger("a man", "") == "a man"


def test_the_trigger_word_takes_the_place_that_is_kept_for_it():
    assert caption_with_trigger("a man, [trigger], runs", "ohwx") == "a man, ohwx, runs"
    assert caption_with_trigger("[trigger]", "") == "[trigger]"


def test_a_prefix_stands_in_front_with_one_space():
    assert caption_with_prefix("a man", "a video of ") == "a video of a man"
    assert caption_with_prefix("a man", "") == "a man"
    assert caption_with_prefix("", " mira, ") == "mira,"


@pytest.mark.parametrize(
    ("content", "caption"),
    [
        ({"caption": "a  red\ncar", "caption_short": "car"}, "a red car"),
        ({"text": "a boat"}, "a boat"),
        ({"tags": 3, "prompt": "a boat"}, "a boat"),
        ("only text", "only text"),
        ({"caption": ""}, ""),
    ],
)
def test_a_json_file_beside_the_clip_holds_its_caption(tmp_path, content, caption):
    path = tmp_path / "clip.json"
    path.write_text(json.dumps(content))
    assert read_caption(path) == caption


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"tags": ["a"]}', r'clip\.json holds no text under "caption"\. Write'),
        ("[1]", 'holds no text under "caption"'),
        ('{"caption": 3}', 'holds no text under "caption"'),
        ("{broken", r"clip\.json is not valid JSON"),
        ("[" * 100_000, "longer than 64 KiB"),
        ("[" * 60_000, "is not valid JSON"),
        (r'{"caption": "\ud800"}', "half a character"),
    ],
)
def test_a_json_file_without_a_caption_is_named(tmp_path, content, message):
    path = tmp_path / "clip.json"
    path.write_text(content)
    with pytest.raises(DatasetError, match=message):
        read_caption(path)


def test_an_empty_json_file_is_no_caption(tmp_path):
    (tmp_path / "clip.json").write_text(" \n")
    assert read_caption(tmp_path / "clip.json") == ""
