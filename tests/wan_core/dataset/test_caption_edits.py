"""Captions written by hand: only beside files of a scan, only as the reader reads them, and back to the last byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.held import holding
from wan_core.dataset.caption_edits import CaptionEdits, ScannedFile
from wan_core.dataset.caption_files import with_caption
from wan_core.dataset.captions import read_caption
from wan_core.dataset.files import fingerprint_of_folder
from wan_core.errors import DatasetError, WanTrainerError
from wan_core.files import file_mark

posix = pytest.mark.skipif(os.name == "nt", reason="links and modes of POSIX")
BOM = b"\xef\xbb\xbf"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "input" / "clips"
    folder.mkdir(parents=True)
    for name, caption in {
        "a": b"a red fox\n",
        "b": BOM + b"a fox\r\nruns",
        "d": b"a red \xc3\xa4pfel and a red dog",
    }.items():
        (folder / f"{name}.mp4").write_bytes(name.encode() * 9)
        (folder / f"{name}.txt").write_bytes(caption)
    (folder / "c.mp4").write_bytes(b"c")
    return tmp_path / "input"


def file(path: Path, ending: str = ".txt", **values: Any) -> ScannedFile:
    return ScannedFile(path=path, name=path.name, caption_file=path.with_suffix(ending), **values)


def edits(root: Path, ending: str = ".txt", **values: Any) -> CaptionEdits:
    return CaptionEdits([file(root / "clips" / f"{name}.mp4", ending, **values) for name in "abcd"], lambda: [root])


def count(known: CaptionEdits, text: str) -> tuple[int, int, int]:
    found = known.find(text, 1)
    assert len(found.first) <= 1
    return found.count, found.can_change, found.places


def loose(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_caption_is_written_beside_its_clip_and_put_back_to_the_byte(root: Path) -> None:
    known, before = edits(root), loose(root)
    assert [one.caption for one in known.find("", 9).first] == [
        "a red fox",
        "a fox runs",
        "",
        "a red äpfel and a red dog",
    ]
    marks = fingerprint_of_folder(root / "clips")
    changes = [
        known.write(0, "a red fox", "  a grey\nfox "),
        known.write(1, "a fox runs", "狐 runs"),
        known.write(2, "", "new"),
    ]
    assert [one.clips for one in changes] == [1, 1, 1]
    after = loose(root)
    assert (after["a.txt"], after["b.txt"], after["c.txt"]) == (b"a grey fox\n", BOM + "狐 runs".encode(), b"new")
    assert read_caption(root / "clips" / "b.txt") == "狐 runs"
    assert fingerprint_of_folder(root / "clips") != marks
    assert known.write(0, "a grey fox", "a grey  fox ").change == 0, "the same words are no change"
    for one in changes:
        assert known.undo(one.change).clips == 1
    assert loose(root) == before
    with pytest.raises(DatasetError, match="no longer known"):
        known.undo(changes[0].change)


def test_an_edit_of_the_same_size_is_seen_by_the_next_scan(root: Path) -> None:
    path = root / "clips" / "a.txt"
    before = file_mark(path)
    edits(root).write(0, "a red fox", "a red cat")
    os.utime(path, ns=(before[1], before[1]))
    assert file_mark(path) != before
    assert (path.stat().st_size, path.stat().st_mtime_ns) == tuple(before[:2])


def test_what_somebody_else_wrote_meanwhile_stays(root: Path) -> None:
    known = edits(root)
    change = known.write(0, "a red fox", "mine").change
    (root / "clips" / "a.txt").write_bytes(b"theirs")
    with pytest.raises(DatasetError, match="changed by another program"):
        known.write(0, "mine", "mine again")
    undone = known.undo(change)
    assert (undone.clips, undone.change) == (0, change)
    assert "changed since" in undone.refused[0]
    assert (root / "clips" / "a.txt").read_bytes() == b"theirs"


def test_a_text_is_counted_and_then_replaced_in_all_captions(root: Path) -> None:
    known, before = edits(root), loose(root)
    (root / "clips" / "c.png").write_bytes(b"beside c.mp4: it shares its caption")
    counted = count(known, "red")
    assert counted == (2, 2, 3)
    with pytest.raises(DatasetError, match="Count them again"):
        known.replace("red", "blue", (2, 2))
    done = known.replace("red", "", counted[1:])
    assert (done.clips, done.refused) == (2, ())
    assert [one.caption for one in known.find("", 9).first][::3] == ["a fox", "a äpfel and a dog"]
    assert count(known, "red") == (0, 0, 0)
    assert count(known, "") == (4, 0, 0)
    (root / "clips" / "d.txt").write_bytes(b"edited since")
    undone = known.undo(done.change)
    assert (undone.clips, len(undone.refused)) == (1, 1)
    assert loose(root)["a.txt"] == before["a.txt"]
    assert loose(root)["d.txt"] == b"edited since"


def test_two_files_that_share_a_caption_file_are_one_write(root: Path) -> None:
    both = [file(root / "clips" / name) for name in ("a.mp4", "a.png")]
    known = CaptionEdits(both, lambda: [root])
    done = known.replace("fox", "foxfox", (2, 2))
    assert (done.clips, loose(root)["a.txt"]) == (2, b"a red foxfox\n")
    assert known.undo(done.change).clips == 1
    assert loose(root)["a.txt"] == b"a red fox\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, b'{"caption": "\xe7\x8b\x90"}'),
        (b" \n", b'{"caption": "\xe7\x8b\x90"}\n'),
        (b'"a fox"', b'"\xe7\x8b\x90"'),
        (BOM + b'{"n": 1%030d, "text": "a"}\r\n' % 1, BOM + b'{"n": 1%030d, "text": "\xe7\x8b\x90"}\r\n' % 1),
        (b'{"title": "t"}', b'{"title": "t", "caption": "\xe7\x8b\x90"}'),
        (b'{"caption": "\\udfff", "n": 1}', b'{"caption": "\xe7\x8b\x90", "n": 1}'),
        (b'{"caption": ', b'{"caption": "\xe7\x8b\x90"}'),
        (b"\xff\xfe{\0", b'{"caption": "\xe7\x8b\x90"}'),
        (b'{\n "half": "\\ud800",\n "prompt": "a"\n}', b'{\n  "half": "\\ud800",\n  "prompt": "\xe7\x8b\x90"\n}'),
    ],
)  # fmt: skip
def test_of_json_only_the_caption_changes(tmp_path: Path, before: bytes | None, after: bytes) -> None:
    made = with_caption(tmp_path / "a.json", before, "狐")
    assert made == after
    assert json.loads(made.decode("utf-8-sig"))


@pytest.mark.parametrize(
    ("name", "before", "caption", "says"),
    [
        ("a.txt", None, "half \ud800", "cannot store this caption"),
        ("a.txt", None, "zero \0 byte", "cannot store this caption"),
        ("a.txt", None, "\ufeffmark", "cannot store this caption"),
        ("a.json", None, "half \udfff", "cannot store this caption"),
        ("a.json", b'{"caption": "a", "n": NaN}', "b", "cannot store this caption"),
        ("a.json", b'{"caption": "a", "n": 1e999}', "b", "cannot store this caption"),
        ("a.txt", None, "x" * (1 << 16) + "y", "longer than 64 KiB"),
    ],
)
def test_what_would_not_be_read_back_is_not_written(
    tmp_path: Path, name: str, before: bytes | None, caption: str, says: str
) -> None:
    with pytest.raises(DatasetError, match=says):
        with_caption(tmp_path / name, before, caption)


def test_a_caption_nobody_can_read_is_written_over_and_put_back(root: Path) -> None:
    bad = root / "clips" / "b.txt"
    bad.write_bytes(b"caf\xe9 fox")
    known = edits(root)
    seen = known.caption(1)
    assert (seen.caption, seen.refusal) == ("", "")
    assert seen.unreadable.startswith("b.txt is not saved as UTF-8 (byte 0xe9 at offset 3)")
    assert count(known, "fox") == (1, 1, 1), "what cannot be read is not searched"
    change = known.write(1, "", "café fox").change
    assert (bad.read_text(encoding="utf-8"), known.caption(1).unreadable) == ("café fox", "")
    known.undo(change)
    assert bad.read_bytes() == b"caf\xe9 fox"
    bad.write_bytes(b"x" * (64 << 10) + b"y")
    with pytest.raises(DatasetError, match="longer than 64 KiB"):
        known.write(1, "", "x")


@pytest.mark.parametrize("ending", [".mp4", ".py", ".txt.exe", ".TXT.js"])
def test_no_other_kind_of_file_is_written(root: Path, ending: str) -> None:
    known, before = edits(root, ending), loose(root)
    with pytest.raises(DatasetError, match="cannot be written"):
        known.write(2, "", "import os")
    assert loose(root) == before


def test_a_caption_in_a_list_says_where_it_is_edited(root: Path) -> None:
    known, before = edits(root, listed_in="all.jsonl", said="a red hen"), loose(root)
    assert count(known, "red") == (4, 0, 0)
    assert known.caption(0).refusal.startswith("The caption of a.mp4 is in all.jsonl. Edit it there")
    with pytest.raises(DatasetError, match=r"is in all.jsonl"):
        known.write(0, "a red hen", "x")
    assert loose(root) == before


@pytest.mark.parametrize("clip", [-1, 4, 10**30])
def test_only_files_of_the_scan_have_a_number(root: Path, clip: int) -> None:
    known = edits(root)
    for ask in (known.caption, known.open_media, lambda number: known.write(number, "", "x")):
        with pytest.raises(DatasetError, match="is none of the 4 of this scan"):
            ask(clip)


@posix
def test_links_lead_nowhere(root: Path, tmp_path: Path) -> None:
    """A folder, a clip and a caption that became links after the scan."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(b"a red secret")
    (outside / "c.mp4").write_bytes(b"secret")
    known = edits(root)
    (root / "clips" / "c.txt").symlink_to(outside / "secret.txt")
    (root / "clips" / "c.mp4").unlink()
    (root / "clips" / "c.mp4").symlink_to(outside / "c.mp4")
    before = loose(tmp_path)
    assert count(known, "red") == (2, 2, 3)
    with pytest.raises(DatasetError, match="is a link"):
        known.write(2, "", "x")
    with pytest.raises(DatasetError, match="leads outside"):
        known.open_media(2)
    (root / "clips" / "c.txt").unlink()
    (root / "clips" / "c.txt").symlink_to("a.txt")
    assert known.caption(2).refusal == "c.txt is a link. Edit the file it leads to.", "also a link within the folder"
    change = known.write(0, "a red fox", "x").change
    (root / "clips").rename(root / "old")
    (root / "clips").symlink_to(outside)
    (outside / "a.txt").write_bytes(b"x\n")
    (outside / "a.mp4").write_bytes(b"secret")
    for ask in (known.open_media, lambda number: known.write(number, "x", "y")):
        with pytest.raises(DatasetError, match="outside the allowed folders"):
            ask(0)
    assert known.undo(change).clips == 0
    assert loose(outside) == {name: data for name, data in before.items() if name in ("secret.txt", "c.mp4")} | {
        "a.txt": b"x\n", "a.mp4": b"secret"
    }  # fmt: skip


@posix
def test_a_root_that_a_person_took_back_is_closed(root: Path, tmp_path: Path) -> None:
    allowed = [root]
    known = CaptionEdits([file(root / "clips" / "a.mp4")], lambda: allowed)
    ending, opened = known.open_media(0)
    with opened:
        assert (ending, opened.read()) == (".mp4", b"a" * 9)
    allowed.clear()
    with pytest.raises(WanTrainerError, match="outside the allowed folders"):
        known.open_media(0)
    with pytest.raises(DatasetError, match="outside the allowed folders"):
        known.write(0, "a red fox", "x")


def test_a_full_disk_leaves_the_caption_and_names_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, *_within: Path, **_options: bool) -> None:
        if path.name == "d.txt":
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr("wan_core.dataset.caption_files.atomic_write_bytes", full)
    known, before = edits(root), loose(root)
    done = known.replace("red", "blue", (2, 3))
    assert (done.clips, loose(root)["a.txt"]) == (1, b"a blue fox\n")
    assert done.refused == (
        "d.txt cannot be written: No space left on device. Free disk space, or make its folder writable.",
    )
    assert known.undo(done.change).clips == 1
    assert loose(root) == before


def test_a_caption_that_another_program_holds_open_stays_and_can_be_put_back_later(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, before = edits(root), loose(root)
    change = known.write(0, "a red fox", "a cat").change
    new = known.write(2, "", "new").change
    held = holding(monkeypatch)
    held |= {"a.txt", "c.txt"}
    with pytest.raises(DatasetError, match=r"^a\.txt is held open by another program, such as an editor"):
        known.write(0, "a cat", "a dog")
    refused = [*known.undo(change).refused, *known.undo(new).refused]
    assert refused == [
        "a.txt is held open by another program, such as an editor or one that syncs folders. Close it there, then "
        "try again.",
        "c.txt cannot be removed. Make its folder writable, or close it in the program that holds it.",
    ]
    held.clear()
    assert [known.undo(one).clips for one in (change, new)] == [1, 1]
    assert loose(root) == before


def test_captions_of_a_captioner_are_one_change_and_spare_what_changed_meanwhile(root: Path) -> None:
    known, before = edits(root), loose(root)
    missing = {one.name: one for one in known.to_write() if not one.caption}
    assert list(missing) == ["c.mp4"]
    new = [(one.clip, one.caption, f"new {one.name}") for one in known.to_write()]
    (root / "clips" / "b.txt").write_text("by another program")
    done = known.write_all(new)
    assert (done.clips, len(done.refused)) == (3, 1)
    assert read_caption(root / "clips" / "c.txt") == "new c.mp4"
    assert read_caption(root / "clips" / "b.txt") == "by another program"
    assert known.undo(done.change).clips == 3
    assert loose(root) == {**before, "b.txt": b"by another program"}
