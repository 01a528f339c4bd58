"""A folder with its subfolders: repeats from their names, links that lead round or out, what is hidden."""

from __future__ import annotations

import os

import pytest
from PIL import Image

from wan_core.dataset import DatasetConfig, ScanContext, fingerprint_of_folder, scan_folder
from wan_core.dataset.files import MAX_DEPTH, files_of_folder, repeats_of
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError


def place(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48)).save(path)
        path.with_suffix(".txt").write_text(f"caption {path.stem}")


def listing(folder, **options):
    return [(file.name or file.path.name, file.repeats) for file in files_of_folder(folder, **options).files]


@pytest.mark.parametrize(
    ("name", "repeats"),
    [
        ("10_walk", 10),
        ("3_ohwx man", 3),
        ("walk", 1),
        ("0_walk", 1),
        ("10", 1),
        ("10_", 1),
        ("99999_x", 1),
        ("-2_x", 1),
    ],
)
def test_the_number_in_front_of_a_folders_name_is_how_often_it_is_seen(name, repeats):
    assert repeats_of(name) == repeats


def test_subfolders_count_only_when_asked_and_bring_their_repeats(tmp_path):
    place(tmp_path, "a.png", "10_walk/b.png", "10_walk/inner/c.png", "2_run/d.png", ".hidden/e.png", "walk/.f.png")
    assert listing(tmp_path) == [("a.png", 1)]
    found = files_of_folder(tmp_path, recursive=True)
    assert [(f.name, f.repeats) for f in found.files] == [
        ("a.png", 1),
        ("10_walk/b.png", 10),
        ("10_walk/inner/c.png", 1),
        ("2_run/d.png", 2),
    ]
    assert found.notes == (
        "10_walk: 1 files, each seen 10 times because of the folder's name",
        "2_run: 1 files, each seen 2 times because of the folder's name",
    )


def test_the_chosen_folders_own_name_means_nothing(tmp_path):
    place(tmp_path, "10_walk/b.png")
    assert listing(tmp_path / "10_walk", recursive=True) == [("b.png", 1)]


def test_a_scan_multiplies_the_repeats_and_reports_them(tmp_path, video):
    place(tmp_path, "5_walk/b.png", "c.png")
    config = DatasetConfig(width=64, height=48, num_frames=1, recursive=True, num_repeats=2, weight=0.5)
    result = scan_folder(config, tmp_path, ScanContext(video))
    assert [(s.name, s.caption, s.repeats, s.weight) for s in result.samples] == [
        ("c.png", "caption c", 2, 0.5),
        ("5_walk/b.png", "caption b", 10, 0.5),
    ]
    assert "5_walk: 1 files, each seen 5 times because of the folder's name" in scan_report(result).splitlines()
    assert (
        "weight: 0.5, how often its files are trained compared with those of other datasets"
        in scan_report(result).splitlines()
    )


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_links_are_entered_once_and_never_lead_out(tmp_path):
    data, outside = tmp_path / "data", tmp_path / "outside"
    place(data, "sub/a.png")
    place(outside, "secret.png")
    (data / "loop").symlink_to(data)
    (data / "sub" / "up").symlink_to("..")
    (data / "again").symlink_to("sub")
    (data / "self").symlink_to("self")
    (data / "out").symlink_to(outside)
    found = files_of_folder(data, recursive=True)
    assert len(found.files) == 1
    assert [r.name for r in found.rejected] == ["out"]
    assert "leads outside the allowed folders" in found.rejected[0].reason
    assert len(files_of_folder(data, recursive=True, allowed=[outside]).files) == 2


def test_a_very_deep_tree_is_cut_by_name(tmp_path):
    deep = tmp_path
    for _ in range(MAX_DEPTH + 2):
        deep /= "d"
    place(tmp_path, "a.png")
    place(deep, "b.png")
    found = files_of_folder(tmp_path, recursive=True)
    assert [f.name for f in found.files] == ["a.png"]
    assert [r.reason for r in found.rejected] == [f"is more than {MAX_DEPTH} folders deep"]


def test_the_fingerprint_sees_edits_in_subfolders(tmp_path):
    place(tmp_path, "a.png", "sub/b.png")
    before = fingerprint_of_folder(tmp_path)
    (tmp_path / "sub" / "b.txt").write_text("something else")
    changed = fingerprint_of_folder(tmp_path)
    assert changed != before
    (tmp_path / "sub").rename(tmp_path / "5_sub")
    assert fingerprint_of_folder(tmp_path) != changed


def test_an_empty_tree_is_refused(tmp_path):
    (tmp_path / "sub").mkdir()
    with pytest.raises(DatasetError, match="and its subfolders hold no clips or stills"):
        files_of_folder(tmp_path, recursive=True)
