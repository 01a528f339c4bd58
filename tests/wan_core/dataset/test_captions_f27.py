"""Twelve kinds of caption file beside a good clip: used, counted as missing, or named with the offset."""

from __future__ import annotations

import pytest
from PIL import Image

from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError

USED = {
    "BOM": (b"\xef\xbb\xbfa red car", "a red car"),
    "CRLF": (b"a red car\r\nat night\r\n", "a red car at night"),
    "markup": (b"<b>a</b> <script>alert(1)</script> {car:1.2}", "<b>a</b> <script>alert(1)</script> {car:1.2}"),
    "other scripts": ("eine Straße, 日本".encode(), "eine Straße, 日本"),
}
MISSING = {"no file": None, "empty": b"", "only spaces": b" \t\r\n\n "}
REFUSED = {
    "UTF-16": ("a car".encode("utf-16"), "byte 0xff at offset 0; it looks like UTF-16"),
    "Latin-1": ("ein Straßenbild".encode("latin-1"), "byte 0xdf at offset 8"),
    "NUL": (b"a\x00b", "byte 0x00 at offset 1"),
    "lone surrogate": (b"car \xed\xa0\x80", "byte 0xed at offset 4"),
    "2 MB": (b"word " * 420_000, "longer than 64 KiB"),
}


@pytest.fixture
def folder(tmp_path):
    """One good still, to stand beside the caption."""
    path = tmp_path / "clips"
    path.mkdir()
    Image.new("RGB", (64, 48)).save(path / "a.png")
    return path


def scan(folder, video, content, **changes):
    if content is not None:
        (folder / "a.txt").write_bytes(content)
    return scan_folder(DatasetConfig(width=64, height=48, num_frames=1, **changes), folder, ScanContext(video))


def test_there_are_twelve_kinds():
    assert len(USED) + len(MISSING) + len(REFUSED) == 12


@pytest.mark.parametrize("kind", USED)
def test_readable_text_is_the_caption(folder, video, kind):
    content, caption = USED[kind]
    assert [s.caption for s in scan(folder, video, content).samples] == [caption]


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("missing_captions", ["refuse", "skip the file", "empty caption"])
def test_undecodable_text_costs_its_file_whatever_is_done_with_missing_ones(folder, video, kind, missing_captions):
    content, words = REFUSED[kind]
    Image.new("RGB", (64, 48)).save(folder / "b.png")
    result = scan(folder, video, content, missing_captions=missing_captions, trigger_word="ohwx")
    assert [s.name for s in result.samples] == ["b.png"]
    assert [r.name for r in result.rejected] == ["a.png"]
    assert result.rejected[0].reason.startswith("its caption a.txt is ")
    assert words in result.rejected[0].reason


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_caption_needs_a_choice(folder, video, kind):
    found = scan(folder, video, MISSING[kind])
    with pytest.raises(DatasetError, match=r"1 of 1 files have no caption: a\.png\. Write a\.txt"):
        Dataset((found,)).require_captions()


@pytest.mark.parametrize("kind", MISSING)
def test_a_file_without_a_caption_may_be_skipped_by_name(folder, video, kind):
    Image.new("RGB", (64, 48)).save(folder / "b.png")
    (folder / "b.txt").write_text("a boat")
    result = scan(folder, video, MISSING[kind], missing_captions="skip the file")
    assert [s.name for s in result.samples] == ["b.png"]
    assert [r.name for r in result.rejected] == ["a.png"]
    assert "  a.png: has no caption (.txt file missing or empty)" in scan_report(result)
    (folder / "b.txt").unlink()
    with pytest.raises(DatasetError, match=r"No file .* can be used \(a\.png: has no caption"):
        scan(folder, video, MISSING[kind], missing_captions="skip the file")


@pytest.mark.parametrize("kind", MISSING)
def test_a_file_without_a_caption_may_be_trained_with_the_empty_prompt(folder, video, kind):
    result = scan(folder, video, MISSING[kind], missing_captions="empty caption")
    assert [s.caption for s in result.samples] == [""]
    assert "no caption, trained with the empty prompt: a.png" in scan_report(result)
