"""Only folders below input/ and below roots named on the server (rule S2)."""

from __future__ import annotations

import json

import pytest

from wan_core.dataset import allowed_file, allowed_folder, list_folders, read_roots
from wan_core.errors import ConfigError, DatasetError


@pytest.fixture
def tree(tmp_path):
    """input/clips, an extra root big/ with films/, and a secret folder beside them."""
    for folder in ("input/clips", "big/films", "secret"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "secret" / "canary.mp4").write_bytes(b"canary")
    return tmp_path


def allow(tree, reference):
    return allowed_folder(reference, input_root=tree / "input", extra_roots=[tree / "big"])


@pytest.mark.parametrize("reference", ["clips", "input:clips", ' "clips" ', "clips/../clips"])
def test_folders_below_input_are_allowed(tree, reference):
    assert allow(tree, reference) == (tree / "input/clips").resolve()


def test_folders_below_an_extra_root_are_allowed(tree):
    assert allow(tree, "big:films") == (tree / "big/films").resolve()
    assert allow(tree, str(tree / "big" / "films")) == (tree / "big/films").resolve()


@pytest.mark.parametrize(
    "reference",
    [
        "/",
        "/proc",
        "/etc",
        "..",
        "../secret",
        "clips/../../secret",
        "input:../secret",
        "big:../secret",
        "C:\\Users",
        "\\\\server\\share",
        "//server/share",
    ],
)
def test_everything_else_is_refused_with_the_line_to_add(tree, reference):
    with pytest.raises(DatasetError, match=r"outside the allowed folders.*user/wan_trainer/roots\.json"):
        allow(tree, reference)


def test_the_refusal_carries_the_exact_line(tree):
    folder = str(tree / "secret")
    with pytest.raises(DatasetError) as caught:
        allow(tree, folder)
    assert json.dumps([folder], ensure_ascii=False) in str(caught.value)
    (tree / "roots.json").write_text(json.dumps([folder]))
    roots = read_roots(tree / "roots.json")
    assert allowed_folder(folder, input_root=tree / "input", extra_roots=roots).name == "secret"


def test_a_link_out_of_input_is_refused(tree):
    try:
        (tree / "input" / "link").symlink_to(tree / "secret")
        (tree / "input" / "loop").symlink_to(tree / "input" / "loop")
    except OSError:
        pytest.skip("this account may not make links")
    with pytest.raises(DatasetError, match="outside"):
        allow(tree, "link")
    with pytest.raises(DatasetError, match="does not exist"):
        allow(tree, "loop")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("", "No dataset folder"),
        ("a\0b", "No dataset folder"),
        ("a\ud800b", "No dataset folder"),
        ("nothing", "does not exist"),
        ("~", "does not exist"),
        ("file.txt", "is a file"),
        ("http://127.0.0.1/x", "unknown"),
        ("other:clips", "unknown"),
    ],
)
def test_what_cannot_be_a_folder_is_said(tree, reference, message):
    (tree / "input" / "file.txt").write_text("x")
    with pytest.raises(DatasetError, match=message):
        allow(tree, reference)


def test_a_folder_of_a_graph_made_on_windows_is_found(tmp_path):
    inside, root = tmp_path / "input", tmp_path / "far"
    for place in (inside / "my sets" / "one", root / "two" / "three", inside / "odd\\name"):
        place.mkdir(parents=True)
    (inside / "my sets" / "list.jsonl").write_text("{}")
    where = {"input_root": inside, "extra_roots": [root]}
    assert allowed_folder("my sets\\one", **where) == inside / "my sets" / "one"
    assert allowed_folder("far:two\\three", **where) == root / "two" / "three"
    assert allowed_file("input:my sets\\list.jsonl", **where) == inside / "my sets" / "list.jsonl"
    assert allowed_folder("odd\\name", **where) == inside / "odd\\name"
    with pytest.raises(DatasetError, match="outside the allowed folders"):
        allowed_folder("my sets\\..\\..\\..", **where)
    with pytest.raises(DatasetError, match="does not exist"):
        allowed_folder("my sets\\two", **where)


def test_the_menu_lists_input_first(tree):
    (tree / "input" / ".hidden").mkdir()
    assert list_folders(tree / "input", [tree / "big", tree / "gone"]) == [
        "clips",
        "big:",
        "big:films",
    ]


def test_a_roots_file_must_be_a_list_of_full_paths(tree):
    path = tree / "roots.json"
    assert read_roots(path) == []
    for content in (
        '{"a": 1}',
        '["relative"]',
        "[3]",
        '"text"',
        '["/data", null]',
        '[["/data"]]',
        r'["/a\u0000b"]',
        r'["/\ud800"]',
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match="list of full paths"):
            read_roots(path)


def test_roots_of_the_same_name_are_told_apart_and_every_one_is_reached(tree):
    roots = [tree / "A" / "clips", tree / "B" / "clips", tree / "clips-2", tree / "C" / "clips", tree / "D" / "input"]
    for number, root in enumerate(roots):
        (root / f"films{number}").mkdir(parents=True)
    menu = list_folders(tree / "input", roots)
    assert menu == [
        *("clips", "clips:", "clips:films0", "clips-2:", "clips-2:films1", "clips-2-2:", "clips-2-2:films2"),
        *("clips-3:", "clips-3:films3", "input-2:", "input-2:films4"),
    ]
    found = [allowed_folder(reference, input_root=tree / "input", extra_roots=roots) for reference in menu[1:]]
    assert found == [folder.resolve() for n, root in enumerate(roots) for folder in (root, root / f"films{n}")]


def test_a_root_written_twice_is_one_root(tree):
    (tree / "roots.json").write_text(json.dumps([str(tree / "big"), str(tree / "big") + "/"]))
    assert read_roots(tree / "roots.json") == [tree / "big"]
