"""Which files name a dataset, what a menu offers, and which edits are noticed."""

from __future__ import annotations

import json
import os
import tarfile

import pytest
from PIL import Image

from wan_core.dataset import allowed_file
from wan_core.errors import DatasetError
from wan_core.importers import is_source, list_sources, source_fingerprint
from wan_core.importers import source_file as source_module
from wan_core.importers.source import SourceFile


@pytest.fixture
def folder(tmp_path):
    """Two stills, one with a caption file, and list.jsonl that names both and a mask."""
    folder = tmp_path / "input" / "set"
    (folder / "pictures").mkdir(parents=True)
    for name in ("a", "b", "m"):
        Image.new("RGB", (64, 48)).save(folder / "pictures" / f"{name}.png")
    rows = [{"file": "pictures/a.png", "caption": "a"}, {"file": "pictures/b.png", "mask": "pictures/m.png"}]
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "pictures" / "b.txt").write_text("b")
    return folder


def fingerprint(folder, name="list.jsonl"):
    return source_fingerprint(SourceFile(path=folder / name, allowed=[folder]))


def touch(path):
    os.utime(path, ns=(5, 5))


@pytest.mark.parametrize("name", ["list.jsonl", "pictures/a.png", "pictures/b.png", "pictures/b.txt", "pictures/m.png"])
def test_an_edit_of_the_list_or_of_anything_it_names_is_noticed(folder, name):
    before = fingerprint(folder)
    assert fingerprint(folder) == before
    touch(folder / name)
    after = fingerprint(folder)
    assert after != before
    (folder / name).unlink() if name != "list.jsonl" else (folder / name).write_text('{"file": "pictures/a.png"}')
    assert fingerprint(folder) not in (before, after)


def test_a_file_that_nobody_names_changes_nothing(folder):
    before = fingerprint(folder)
    Image.new("RGB", (64, 48)).save(folder / "pictures" / "c.png")
    (folder / "pictures" / "a.txt").write_text("not read: the list has a caption")
    assert fingerprint(folder) == before


def test_a_mask_beside_a_file_is_watched_though_no_row_names_it(folder):
    """mask_use finds it there; unwatched, an edited mask would be refused as changed since the scan for ever."""
    before = fingerprint(folder)
    (folder / "pictures" / "mask").mkdir()
    Image.new("L", (64, 48)).save(folder / "pictures" / "mask" / "a.png")
    added = fingerprint(folder)
    assert added != before
    touch(folder / "pictures" / "mask" / "a.png")
    assert fingerprint(folder) not in (before, added)


def test_settings_of_another_trainer_watch_the_folders_they_name(folder):
    (folder / "set.toml").write_text("[[directory]]\npath = 'pictures'\nresolutions = [64]\n")
    before = fingerprint(folder, "set.toml")
    (folder / "pictures" / "c.txt").write_text("new")
    assert fingerprint(folder, "set.toml") != before


def test_a_tar_is_watched_without_reading_it(folder):
    (folder / "set.tar").write_bytes(b"not a tar yet")
    before = fingerprint(folder, "set.tar")
    (folder / "set.tar").write_bytes(b"not a tar either")
    assert fingerprint(folder, "set.tar") != before


def test_a_menu_offers_what_can_be_read(folder, tmp_path):
    (folder / "captions.json").write_text('{"caption": "of a picture"}')
    (folder / "backends.json").write_text(' [{"dataset_type": "image"}]')
    (folder / "notes.txt").write_text("x")
    (folder / ".hidden.csv").write_text("x")
    saved = tmp_path / "big" / "deep" / "saved"
    saved.mkdir(parents=True)
    for name in ("state.json", "dataset_info.json", "data.arrow"):
        (saved / name).write_text("{}")
    (tmp_path / "big" / "deep" / "too" / "far" / "down").mkdir(parents=True)
    (tmp_path / "big" / "deep" / "too" / "far" / "down" / "x.csv").write_text("x")
    found = list_sources(tmp_path / "input", {"big": tmp_path / "big", "gone": tmp_path / "gone"})
    assert found == ["set/backends.json", "set/list.jsonl", "big:deep/saved"]
    # A load of the page looks again at what changed only, and opens no caption.
    (folder / "clip.mp4").write_bytes(b"x")
    (folder / "clip.json").write_text("[1]")
    again = list_sources(tmp_path / "input", {"big": tmp_path / "big"})
    assert again == found
    looks = source_module._menu_entries.cache_info().misses
    assert list_sources(tmp_path / "input", {"big": tmp_path / "big"}) == found
    assert source_module._menu_entries.cache_info().misses == looks
    assert [is_source(path) for path in (folder, saved, folder / "list.jsonl", folder / "notes.txt")] == [
        *(False, True, True, False)
    ]


@pytest.mark.parametrize("reference", ["set/list.jsonl", "input:set/list.jsonl", "big:x.csv"])
def test_files_below_input_and_the_roots_are_allowed(folder, tmp_path, reference):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "x.csv").write_text("x")
    root = tmp_path / "input"
    assert allowed_file(reference, input_root=root, extra_roots=[tmp_path / "big"]).is_file()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("", "No file is chosen"),
        ("../secret.csv", r'outside the allowed folders.*write \["'),
        ("/etc/passwd", r'write \["/etc"\] to user/wan_trainer/roots\.json'),
        ("set/gone.csv", "does not exist"),
        ("big:x.csv", "Root 'big' of folder 'big:x.csv' is unknown"),
    ],
)
def test_other_files_are_refused_with_what_to_do(folder, tmp_path, reference, message):
    (tmp_path / "secret.csv").write_text("canary")
    with pytest.raises(DatasetError, match=message):
        allowed_file(reference, input_root=tmp_path / "input", extra_roots=[])


@pytest.mark.lasts(2)
def test_the_command_line_scans_a_tar_as_it_does_a_folder(folder, wan_core_command):
    with tarfile.open(folder / "set.tar", mode="w") as tar:
        tar.add(folder / "pictures" / "b.png", "x/1.png")
        tar.add(folder / "pictures" / "b.txt", "x/1.txt")
        tar.add(folder / "pictures" / "a.png", "x/2.png")
    words = ("--width", "64", "--height", "48", "--missing-captions", "skip the file")
    ended = wan_core_command("scan", str(folder / "set.tar"), *words)
    found = json.loads(ended.stdout)
    assert (ended.returncode, [(s["name"], s["caption"]) for s in found["samples"]]) == (0, [("x/1.png", "b")])
    assert [r["name"] for r in found["rejected"]] == ["x/2.png"]
