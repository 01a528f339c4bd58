"""Captions are UTF-8 or named; nothing is guessed."""

from __future__ import annotations

import os

import pytest

from wan_core.data.sources.captions import caption_with_trigger, read_caption
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
        ("a car".encode("utf-16"), "0x00", 3),
        (b"a\x00b", "0x00", 1),
        (b"car \xed\xa0\x80", "0xed", 4),
    ],
)
def test_undecodable_text_is_named_with_its_offset(tmp_path, content, byte, offset):
    path = tmp_path / "clip.txt"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"clip\.txt is not UTF-8: byte {byte} at offset {offset}"):
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
