"""A memo keeps what was found, for two processes alike, and is forgotten where it is damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from wan_core.files import Memo, mark_of
from wan_core.files.memo import _LIMIT_BYTES, _key


def test_two_memos_of_one_file_keep_what_either_found_and_forget_what_either_forgot(tmp_path: Path) -> None:
    one, other = Memo(tmp_path / "memo.json", 1, 9), Memo(tmp_path / "memo.json", 1, 9)
    one.put("a", [1])
    one.put("b", 2)
    assert (one.get("a"), other.get("a")) == ([1], None)
    one.save()
    other.put("c", 3)
    other.put("a", None)
    other.save()
    found = Memo(tmp_path / "memo.json", 1, 9)
    assert (found.get("a"), found.values()) == (None, [2, 3])


def test_the_newest_stay(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.json", 1, 3)
    for name in "abcda":
        memo.put(name, name)
        memo.save()
    assert Memo(tmp_path / "memo.json", 1, 3).values() == ["c", "d", "a"]


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", '{"version": 2, "known": {"a": 1}}', '{"version": 1, "known": [1]}']
)
def test_a_damaged_memo_or_one_of_another_version_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "memo.json").write_text(text)
    memo = Memo(tmp_path / "memo.json", 1, 3)
    assert memo.get("a") is None
    memo.put("b", 1)
    memo.save()
    assert json.loads((tmp_path / "memo.json").read_text()) == {"version": 1, "known": {"b": 1}}


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path, memo = tmp_path / "clip.mp4", Memo(tmp_path / "memo.json", 1, 9)
    path.write_bytes(b"one")

    def edited() -> int:
        path.write_bytes(b"longer")
        return 1

    assert memo.recall(path, "size", edited) == 1
    assert memo.recall(path, "size", lambda: 2) == 2
    assert memo.recall(path, "size", lambda: pytest.fail("read again")) == 2
    assert memo.recalled(path, "size") == (mark_of(path), 2)
    assert memo.recall(tmp_path / "none", "size", lambda: 3) == 3
    assert memo.recalled(tmp_path / "none", "size") is None


def test_a_memo_of_400000_long_paths_is_small_enough_to_be_read_back(tmp_path: Path) -> None:
    deep = tmp_path / "/".join(["a folder of some depth"] * 9)
    assert _key("digest", deep / "1.mp4") != _key("digest", deep / "2.mp4")
    entry = {_key("digest", deep / "1.mp4"): [[2**40, 2**61, 2**40, 2**61], "f" * 64]}
    assert len(json.dumps(entry)) * 400_000 < _LIMIT_BYTES


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    memo = Memo(tmp_path / "cache" / "memo.json", 1, 3)
    memo.put("a", 1)
    memo.save()
    assert memo.get("a") == 1
    assert os.listdir(tmp_path) == ["cache"]
