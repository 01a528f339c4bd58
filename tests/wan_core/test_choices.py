"""The file of choices: what it says is read, what it cannot mean is refused, and what others wrote stays in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from wan_core.choices import CHOICES_FILE, PLAIN, Choice, Choices, choice_of, read_choices, with_choice
from wan_core.errors import DatasetError

NAMES = ["a.mp4", "видео.mp4", "狐狸 跑.mp4", "كليب.mp4", "🦊.mov", 'say "hi".mp4', "-rf.mp4", "it's\\so.mp4", "é.mp4"]
PIECE = Choice(start_s=1.5, length_s=2.0, crop=(0.5, 0.0))


@pytest.mark.parametrize("name", [*NAMES, os.fsdecode(b"caf\xe9.mp4")])
def test_a_choice_about_a_file_of_any_name_is_read_as_it_was_written(name: str) -> None:
    data = with_choice(with_choice(None, "it", "other.mp4", Choice(excluded=True)), "it", name, PIECE)
    assert data is not None
    found = read_choices(data, "it")
    assert (choice_of(found, name), choice_of(found, "other.mp4"), choice_of(found, "none.mp4")) == (
        PIECE,
        Choice(excluded=True),
        PLAIN,
    )
    data = with_choice(data, "it", name, PLAIN)
    assert read_choices(data, "it") == {"other.mp4": Choice(excluded=True)}
    assert with_choice(data, "it", "other.mp4", PLAIN) is None, "a file that says nothing is not kept"


def test_the_file_is_read_by_people_and_keeps_what_others_wrote() -> None:
    theirs = b'\xef\xbb\xbf{"version": 1, "note": "mine", "clips": {"b.mp4": {"stars": 5, "excluded": true}}}'
    assert with_choice(theirs, "it", "a.mp4", PIECE) == (
        b'{\n  "version": 1,\n  "note": "mine",\n  "clips": {\n'
        b'    "a.mp4": {"start_s": 1.5, "length_s": 2.0, "crop": [0.5, 0.0]},\n'
        b'    "b.mp4": {"stars": 5, "excluded": true}\n  }\n}\n'
    )
    kept = with_choice(theirs, "it", "b.mp4", PLAIN)
    assert kept is not None
    assert json.loads(kept)["clips"] == {"b.mp4": {"stars": 5}}


def test_a_name_that_macos_decomposes_is_the_same_name() -> None:
    decomposed = "e\u0301.mp4"
    data = with_choice(None, "it", decomposed, PIECE)
    assert choice_of(read_choices(data, "it"), "\u00e9.mp4") == PIECE
    changed = with_choice(data, "it", "\u00e9.mp4", Choice(excluded=True))
    assert read_choices(changed, "it") == {decomposed: Choice(excluded=True), "\u00e9.mp4": Choice(excluded=True)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("[]", "is not"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"version": 1, "clips": []}', "is not"),
        ('{"version": true, "clips": {}}', ""),
        ('{"version": 2, "clips": {}}', "version 2"),
        ('{"version": 1, "clips": {"a": 3}}', "is not"),
        ('{"version": 1, "clips": {"a": {"excluded": "no"}}}', "true or false"),
        ('{"version": 1, "clips": {"a": {"start_s": NaN}}}', "seconds"),
        ('{"version": 1, "clips": {"a": {"start_s": -1}}}', "seconds"),
        ('{"version": 1, "clips": {"a": {"start_s": true}}}', "seconds"),
        ('{"version": 1, "clips": {"a": {"length_s": 0}}}', "seconds"),
        ('{"version": 1, "clips": {"a": {"length_s": null}}}', "seconds"),
        ('{"version": 1, "clips": {"a": {"length_s": 1' + "0" * 400 + "}}}", "seconds"),
        ('{"version": 1, "clips": {"a": {"crop": [0.5]}}}', "from 0 to 1"),
        ('{"version": 1, "clips": {"a": {"crop": [0.5, 2]}}}', "from 0 to 1"),
        ('{"version": 1, "clips": {"a": {"crop": "left"}}}', "from 0 to 1"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_in_words(text: str, said: str) -> None:
    if not said:
        assert read_choices(text.encode(), "it") == {}
        return
    with pytest.raises(DatasetError, match=said) as refused:
        read_choices(text.encode(), "wan_dataset.json of folder 'clips'")
    assert "wan_dataset.json of folder 'clips'" in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.skipif(os.name == "nt", reason="links and modes of POSIX")
def test_a_file_is_followed_nowhere_and_read_once(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "clips", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / CHOICES_FILE).write_bytes(with_choice(None, "it", "a.mp4", Choice(excluded=True)) or b"")
    (folder / CHOICES_FILE).symlink_to(elsewhere / CHOICES_FILE)
    with pytest.raises(DatasetError, match="leads outside"):
        Choices().of(folder / "a.mp4")
    choices = Choices([elsewhere])
    assert choices.of(folder / "a.mp4").excluded
    (folder / CHOICES_FILE).unlink()
    assert choices.of(folder / "a.mp4").excluded, "a scan has one view of a folder"
    os.mkfifo(folder / CHOICES_FILE)
    with pytest.raises(DatasetError, match="not a regular file"):
        Choices().of(folder / "a.mp4")
