"""Which caption file belongs to a clip where names are written in another way, and what lies there unread."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from wan_core.dataset import (
    Dataset,
    DatasetConfig,
    MediaFile,
    Sample,
    ScanContext,
    ScanResult,
    held_out_digests,
    scan_files,
    scan_folder,
)
from wan_core.dataset.caption_edits import CaptionEdits, scanned_files
from wan_core.dataset.files import SourcePart
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError
from wan_core.files import digest_file
from wan_core.video import VideoProcess


def put(folder: Path, *names: str) -> Path:
    """Stills, and text files that say their own names."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".png":
            Image.new("RGB", (64, 48), (len(name), 9, 9)).save(path)
        else:
            path.write_text(f"of {name}", encoding="utf-8")
    return folder


def captions(video: VideoProcess, folder: Path, **settings: Any) -> dict[str, str]:
    return {sample.name: sample.caption for sample in scanned(video, folder, **settings).samples}


def scanned(video: VideoProcess, folder: Path, **settings: Any) -> ScanResult:
    return scan_folder(DatasetConfig(width=64, height=48, **settings), folder, ScanContext(video, allowed=[folder]))


def said(result: ScanResult) -> str:
    with pytest.raises(DatasetError) as caught:
        Dataset((result,)).require_captions()
    return str(caught.value)


COMPOSED = ["café", "한국어", "Ünïcödé"]


@pytest.mark.parametrize(("clips", "texts"), [("NFD", "NFC"), ("NFC", "NFD"), ("NFC", "NFC")])
def test_a_caption_in_the_other_unicode_form_is_found(
    video: VideoProcess, tmp_path: Path, clips: Any, texts: Any
) -> None:
    put(tmp_path, *(unicodedata.normalize(clips, f"{name}.png") for name in COMPOSED))
    put(tmp_path, *(unicodedata.normalize(texts, f"{name}.txt") for name in COMPOSED))
    found = {unicodedata.normalize("NFC", name): text for name, text in captions(video, tmp_path).items()}
    assert found == {f"{name}.png": f"of {unicodedata.normalize(texts, name)}.txt" for name in COMPOSED}


def test_the_ending_of_a_caption_may_be_in_capitals(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, "Video (10).PNG", "Video (10).TXT", "b.png", "b.Txt")
    assert captions(video, tmp_path) == {"Video (10).PNG": "of Video (10).TXT", "b.png": "of b.Txt"}
    put(tmp_path / "other", "a.png", "a.CAPTION")
    assert captions(video, tmp_path / "other", caption_extension=".caption") == {"a.png": "of a.CAPTION"}


def test_of_two_the_exact_one_is_read(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, "a.png", "a.TXT", "a.txt", "b.png", "b.TXT", "b.Txt", "c.png", "c.txt")
    if len(list(tmp_path.glob("a.[tT]*"))) < 2:
        pytest.skip("this file system tells no capitals")
    result = scanned(video, tmp_path)
    assert {s.name: s.caption for s in result.samples} == {
        "a.png": "of a.txt", "b.png": "of b.TXT", "c.png": "of c.txt"
    }  # fmt: skip


def test_another_name_than_the_clips_is_no_caption_of_it(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, "A.png", "a.txt")
    if (tmp_path / "a.png").exists():
        pytest.skip("this file system tells no capitals")
    assert "a.txt differs in capital letters: rename it to A.txt. Write A.txt" in said(scanned(video, tmp_path))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.png.txt"], "a.png.txt exists but is not read: rename it to a.txt"),
        (["a.caption"], "a.caption exists but is not read: set caption_extension to .caption"),
        (["a.json"], "a.json exists but is not read: set caption_extension to .json"),
        (["captions/a.txt"], "captions/a.txt exists but is not read: move it next to a.png"),
        (["metadata.jsonl"], "metadata.jsonl exists: Wan Dataset From File reads lists"),
        (["prompt.txt"], "prompt.txt exists but is not read: put its lines into a list"),
    ],
)
def test_what_looks_like_the_caption_is_named(
    video: VideoProcess, tmp_path: Path, names: list[str], expected: str
) -> None:
    put(tmp_path, "a.png", *names)
    result = scanned(video, tmp_path)
    assert f"1 of 1 files have no caption: a.png. {expected}" in said(result)
    assert expected in scan_report(result)
    assert expected in scan_report(scanned(video, tmp_path, trigger_word="x")), "also where the trigger word is alone"
    put(tmp_path, "a.txt")
    assert expected not in scan_report(scanned(video, tmp_path)), "the caption is there"


def test_captions_in_a_folder_beside_that_of_the_clips_are_named(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, "videos/0.png", "captions/0.txt")
    expected = "captions/0.txt exists but is not read: move it next to 0.png"
    assert expected in said(scanned(video, tmp_path, recursive=True))
    config = DatasetConfig(width=64, height=48)
    assert expected in said(scan_folder(config, tmp_path / "videos", ScanContext(video, allowed=[tmp_path])))
    outside = scan_folder(config, tmp_path / "videos", ScanContext(video, allowed=[tmp_path / "videos"]))
    assert "captions/0.txt" not in said(outside), "what lies in other folders is nobody's business"


def test_clips_one_folder_down_are_counted(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, "videos/0.png", "videos/1.png", "captions/0.txt", ".hidden/2.png")
    with pytest.raises(DatasetError) as caught:
        scanned(video, tmp_path)
    assert "2 clips or stills lie in its folder videos: choose that, or set recursive in Wan Dataset Settings" in str(
        caught.value
    )
    put(tmp_path, "more/3.png")
    with pytest.raises(DatasetError, match="3 clips or stills lie in its folders more, videos: choose one of them"):
        scanned(video, tmp_path)
    with pytest.raises(DatasetError, match=r"holds no clips or stills\. Put files into it"):
        scanned(video, tmp_path / "captions")


def test_the_page_edits_the_caption_that_was_read(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, "Video (10).png", "Video (10).TXT", "new.png")
    files = scanned_files(Dataset((scanned(video, tmp_path),)))
    assert [file.caption_file.name for file in files] == ["Video (10).TXT", "new.txt"]
    edits = CaptionEdits(files, lambda: [tmp_path])
    edits.write(0, "of Video (10).TXT", "a fox")
    assert sorted(path.name for path in tmp_path.glob("Video*")) == ["Video (10).TXT", "Video (10).png"]
    assert captions(video, tmp_path)["Video (10).png"] == "a fox"


def test_masks_go_with_a_clip_of_the_other_unicode_form(video: VideoProcess, tmp_path: Path) -> None:
    for form, name in (("NFD", "café.png"), ("NFC", "mask/café.png"), ("NFC", "café.txt")):
        put(tmp_path, unicodedata.normalize(form, name))
    (sample,) = scanned(video, tmp_path, mask_use="loss").samples
    assert sample.mask is not None


def test_a_file_is_held_out_by_its_name_in_either_form(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, *(unicodedata.normalize("NFD", name) for name in ("café.png", "café.txt")), "b.png", "b.txt")
    named = unicodedata.normalize("NFC", "café")
    dataset = Dataset((scanned(video, tmp_path, held_out=(named,)),))
    held = {sample.name for sample in dataset.samples if digest_file(sample.path) in held_out_digests(dataset, digest)}
    assert held == {unicodedata.normalize("NFD", "café.png")}


def digest(sample: Sample) -> str:
    return digest_file(sample.path)


def test_a_list_without_captions_names_the_column_they_may_stand_in(video: VideoProcess, tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    config = DatasetConfig(width=64, height=48)
    files = (MediaFile(path=tmp_path / "a.png"),)
    part = SourcePart(name="list.json", files=files, caption_hint="The column may be cap")
    result = scan_files(config, part, ScanContext(video))
    assert "files have no caption: a.png. The column may be cap. Write a.txt" in said(result)
