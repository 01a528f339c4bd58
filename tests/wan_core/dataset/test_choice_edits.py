"""Choices written by hand: one clip at a time, never over another page's, whole or not at all, and put back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dying import forked
from wan_core.choices import CHOICES_FILE, PLAIN, Choice, read_choices
from wan_core.dataset.caption_edits import CaptionEdits, ScannedFile
from wan_core.errors import DatasetError, WanTrainerError

posix = pytest.mark.skipif(os.name == "nt", reason="signals and modes of POSIX")
OUT = Choice(excluded=True)
PIECE = Choice(start_s=1.25, length_s=2.0, crop=(0.25, 1.0))
NAMES = ["a.mp4", "狐狸.mp4", "كليب.mp4", "🦊.mp4", 'say "hi".mp4', "-rf.mp4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "input" / "clips"
    made.mkdir(parents=True)
    for name in NAMES:
        (made / name).write_bytes(b"clip")
        (made / name).with_suffix(".txt").write_text(f"the fox of {name}", encoding="utf-8")
    return made


def page(folder: Path) -> CaptionEdits:
    """A scan of its own, as each page or node has one."""
    files = [ScannedFile(path=folder / n, name=n, caption_file=(folder / n).with_suffix(".txt")) for n in NAMES]
    return CaptionEdits(files, lambda: [folder.parent], groups={"still": frozenset({1, 3})})


def on_disk(folder: Path) -> dict[str, Choice]:
    file = folder / CHOICES_FILE
    return read_choices(file.read_bytes() if file.exists() else None, CHOICES_FILE)


def test_clips_of_any_name_are_excluded_cut_and_put_back(folder: Path) -> None:
    known, before = page(folder), sorted(folder.iterdir())
    changes = [known.choose(number, PLAIN, OUT if number % 2 else PIECE) for number in range(len(NAMES))]
    assert on_disk(folder) == {name: OUT if number % 2 else PIECE for number, name in enumerate(NAMES)}
    assert known.caption(0).choice == PIECE
    assert known.choose(0, PIECE, PIECE).change == 0, "the same choice is no change"
    written = known.write(0, "the fox of a.mp4", "an owl")
    assert known.undo(written.change).clips == 1
    for change in reversed(changes):
        assert known.undo(change.change).clips == 1
    assert sorted(folder.iterdir()) == before, "a file without choices is removed"


def test_the_second_of_two_pages_is_refused_for_the_clip_that_the_first_has_changed(folder: Path) -> None:
    one, other = page(folder), page(folder)
    first = one.choose(0, PLAIN, OUT)
    with pytest.raises(DatasetError, match=r"a\.mp4 was changed elsewhere in the meantime"):
        other.choose(0, PLAIN, PIECE)
    assert other.caption(0).choice == OUT, "the second page reads the state of now"
    assert other.choose(1, PLAIN, PIECE).clips == 1, "another clip of the folder is free"
    other.choose(0, OUT, PIECE)
    with pytest.raises(DatasetError, match="in the meantime"):
        one.undo(first.change)
    assert on_disk(folder) == {NAMES[0]: PIECE, NAMES[1]: PIECE}


def test_pages_that_write_at_once_lose_nothing(folder: Path) -> None:
    def write(number: int) -> None:
        known = page(folder)
        for _ in range(5):
            known.choose(number, PLAIN, OUT)
            known.choose(number, OUT, PLAIN)
        known.choose(number, PLAIN, PIECE)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(NAMES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert on_disk(folder) == dict.fromkeys(NAMES, PIECE)


def test_excluded_clips_are_found_and_their_captions_left_alone(folder: Path) -> None:
    known = page(folder)
    known.choose(1, PLAIN, OUT)
    assert [one.clip for one in known.find("", 9, "excluded").first] == [1]
    assert [one.clip for one in known.find("fox", 9, "still").first] == [1, 3]
    assert known.find("", 9, "captionless").count == 0
    found = known.find("fox", 9)
    assert (found.count, found.can_change) == (6, 5)
    assert known.replace("fox", "hare", (5, 5)).clips == 5
    assert known.caption(1).caption == "the fox of 狐狸.mp4"
    assert 1 not in [one.clip for one in known.to_write()], "no captioner is asked for it"


@posix
def test_links_broken_files_and_places_outside_are_refused_in_words(folder: Path, tmp_path: Path) -> None:
    known, file = page(folder), folder / CHOICES_FILE
    file.write_text("{", encoding="utf-8")
    with pytest.raises(DatasetError, match="is not valid JSON"):
        known.choose(0, PLAIN, OUT)
    assert "is not valid JSON" in known.caption(0).choice_refusal
    assert file.read_text(encoding="utf-8") == "{", "what cannot be read is not written over"
    file.unlink()
    (tmp_path / "theirs.json").write_text('{"version": 1, "clips": {}}', encoding="utf-8")
    file.symlink_to(tmp_path / "theirs.json")
    with pytest.raises(DatasetError, match="is a link"):
        known.choose(0, PLAIN, OUT)
    outside = CaptionEdits([ScannedFile(path=tmp_path / "x.mp4", name="x", caption_file=tmp_path / "x.txt")], list)
    with pytest.raises(DatasetError, match="outside the allowed folders"):
        outside.choose(0, PLAIN, OUT)


@posix
def test_a_folder_that_may_not_be_written_is_refused_in_words(folder: Path) -> None:
    def as_somebody_else() -> None:
        if os.getuid() == 0:
            for place in (*folder.parents, folder):
                if place.stat().st_uid == 0 and not place.stat().st_mode & 0o001:
                    os.chmod(place, 0o755)
            os.setgid(65534)
            os.setuid(65534)
        with pytest.raises(WanTrainerError, match=r"wan_dataset\.json cannot be written: .* make its folder writable"):
            page(folder).choose(0, PLAIN, OUT)

    os.chmod(folder, 0o555)
    try:
        assert forked(as_somebody_else) == 0
    finally:
        os.chmod(folder, 0o755)
    assert not (folder / CHOICES_FILE).exists()


def _writes(folder: Path) -> Callable[[], None]:
    def work() -> None:
        known, choice = page(folder), page(folder).caption(0).choice
        while True:
            other = OUT if choice != OUT else PIECE
            known.choose(0, choice, other)
            choice = other

    return work


@posix
@pytest.mark.parametrize("kills", [3, pytest.param(300, marks=pytest.mark.soak)])
def test_a_kill_at_any_moment_leaves_the_old_choice_or_the_new_one(folder: Path, kills: int) -> None:
    page(folder).choose(0, PLAIN, OUT)
    for number in range(kills):
        pid = os.fork()
        if pid == 0:
            _writes(folder)()
        time.sleep(0.01 + 0.00037 * number % 0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert on_disk(folder) in ({NAMES[0]: OUT}, {NAMES[0]: PIECE})
