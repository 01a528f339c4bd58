"""Lists name files: every row is one, or is named by its line with the reason."""

from __future__ import annotations

import csv
import json
import unicodedata

import pytest

from wan_core.dataset.allowed import OUTSIDE
from wan_core.errors import DatasetError
from wan_core.importers import Columns, open_source
from wan_core.importers.listing import read_listing
from wan_core.importers.source import SourceFile


@pytest.fixture
def folder(tmp_path):
    """Names of media files; a list never opens one."""
    for name in ("a.mp4", "sub/b.png", "sub/b_depth.mp4", "sub/b_mask.png", "c d.webm", "notes.txt"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "data"


def read(path, **options):
    (part,) = open_source(SourceFile(path=path, allowed=[path.parent], **options))
    return part


def write_jsonl(folder, rows, name="list.jsonl"):
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


FULL = [
    {"file": "a.mp4", "caption": "a  walk\nat night", "repeats": 3, "weight": 0.5},
    {"file": "sub/b.png", "caption": "a boat", "control": "sub/b_depth.mp4", "mask": "sub/b_mask.png"},
    {"file": "c d.webm"},
]


def check_full(part, folder):
    a, b, c = part.files
    assert (a.path, a.caption, a.repeats, a.weight) == (folder / "a.mp4", "a walk at night", 3, 0.5)
    assert (b.control, b.mask) == (folder / "sub" / "b_depth.mp4", folder / "sub" / "b_mask.png")
    assert (b.caption, b.repeats, b.weight, b.name) == ("a boat", 1, 1.0, "sub/b.png")
    assert (c.path, c.caption, c.control) == (folder / "c d.webm", None, None)
    assert part.rejected == ()


def test_lines_of_json_name_files_captions_repeats_control_and_mask(folder):
    check_full(read(write_jsonl(folder, FULL)), folder)


def test_a_json_list_is_the_same(folder):
    path = folder / "list.json"
    path.write_text(json.dumps(FULL))
    check_full(read(path), folder)


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".csv", ";"), (".tsv", "\t")])
def test_tables_as_text_are_the_same(folder, suffix, delimiter):
    path = folder / f"list{suffix}"
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["file", "caption", "repeats", "weight", "control", "mask"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(FULL)
    check_full(read(path), folder)


def test_parquet_is_the_same(folder):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(FULL_COLUMNS), folder / "list.parquet")
    check_full(read(folder / "list.parquet"), folder)


FULL_COLUMNS = [
    {key: row.get(key) for key in ("file", "caption", "repeats", "weight", "control", "mask")} for row in FULL
]


@pytest.mark.parametrize("path_column", ["file", "path", "video", "media", "file_name", "video_path", "File_Name"])
@pytest.mark.parametrize("caption_column", ["caption", "text", "prompt"])
def test_usual_names_of_columns_are_found(folder, path_column, caption_column):
    part = read(write_jsonl(folder, [{path_column: "a.mp4", caption_column: "a car", "width": 832}]))
    assert [(file.path.name, file.caption) for file in part.files] == [("a.mp4", "a car")]
    assert part.notes == ["list.jsonl: columns not used: width"]


def test_columns_can_be_named(folder):
    path = write_jsonl(folder, [{"clip_id": "a.mp4", "long": "a long story", "caption": "short"}])
    part = read(path, columns=Columns(path="clip_id", caption="long"))
    assert [(file.path.name, file.caption) for file in part.files] == [("a.mp4", "a long story")]
    with pytest.raises(DatasetError, match=r'list\.jsonl has no column "nope"\. It has: \'clip_id\', \'long\''):
        read(path, columns=Columns(path="nope"))
    with pytest.raises(DatasetError, match=r'no column with the paths of files.*Call it "file"'):
        read(path)


def test_several_captions_take_turns(folder):
    (file,) = read(write_jsonl(folder, [{"file": "a.mp4", "caption": ["one", " two ", "one", ""]}])).files
    assert (file.caption, file.more_captions) == ("one", ("two",))


BAD_ROWS = [
    ({"file": "gone.mp4"}, "line 1 (gone.mp4)", "does not exist"),
    ({"file": ""}, "line 1", 'has nothing in column "file"'),
    ({"file": "../outside.mp4"}, "line 1 (outside.mp4)", OUTSIDE),
    ({"file": "/etc/passwd"}, "line 1 (passwd)", OUTSIDE),
    ({"file": "http://127.0.0.1/x.mp4"}, "line 1 (x.mp4)", "is a web address; only files on this machine are read"),
    ({"file": "sub"}, "line 1 (sub)", "is a folder; name a clip or a still"),
    ({"file": "notes.txt"}, "line 1 (notes.txt)", "is no clip and no still by its suffix '.txt'"),
    ({"file": "a\0.mp4"}, "line 1 (a?.mp4)", "is not a path"),
    ({"file": 7}, "line 1", 'has no path in column "file"'),
    ({"file": "a.mp4", "caption": 7}, "line 1 (a.mp4)", "has a caption that is no text"),
    ('{"file": "a.mp4", "caption": "\\ud800"}', "line 1 (a.mp4)", "has a caption with half a character"),
    ('{"file": "a.mp4", "caption": "a\\u0000b"}', "line 1 (a.mp4)", "has a caption with a zero character"),
    ({"file": "a.mp4", "caption": "x" * 70_000}, "line 1 (a.mp4)", "has a caption longer than 64 KiB"),
    ({"file": "a.mp4", "repeats": 0}, "line 1 (a.mp4)", "has repeats '0'; write a whole number from 1 to 10000"),
    ({"file": "a.mp4", "repeats": "two"}, "line 1 (a.mp4)", "has repeats 'two'"),
    ({"file": "a.mp4", "weight": -1}, "line 1 (a.mp4)", "has weight '-1'; write a number from 0.0001 to 10000"),
    ({"file": "a.mp4", "control": "gone.mp4"}, "line 1 (a.mp4)", "control gone.mp4 does not exist"),
    ({"file": "a.mp4", "mask": "../m.png"}, "line 1 (a.mp4)", f"mask m.png {OUTSIDE}"),
    ("{broken", "line 1", "is not valid JSON"),
    ("[1, 2]", "line 1", "is not an object such as {...}"),
]


@pytest.mark.parametrize(("row", "name", "reason"), BAD_ROWS, ids=[str(i) for i in range(len(BAD_ROWS))])
def test_a_bad_row_is_named_by_its_line_and_the_rest_goes_on(folder, row, name, reason):
    columns = Columns(path="file")
    part = read(write_jsonl(folder, [row, "", {"file": "a.mp4", "caption": "fine"}]), columns=columns)
    assert [file.caption for file in part.files] == ["fine"]
    (rejected,) = part.rejected
    assert rejected.name == name
    assert rejected.reason.startswith(reason)


def test_text_that_is_not_utf8_is_named_with_its_offset(folder):
    path = folder / "list.jsonl"
    path.write_bytes(b'{"file": "a.mp4", "caption": "stra\xdfe"}\n{"file": "a.mp4"}\n')
    part = read(path)
    assert [(r.name, r.reason) for r in part.rejected] == [
        ("line 1", "is not saved as UTF-8 (byte 0xdf at offset 34); save the file again as UTF-8")
    ]
    table = folder / "list.csv"
    table.write_bytes(b"file,caption\na.mp4,stra\xdfe\n")
    with pytest.raises(DatasetError, match=r"list\.csv is not saved as UTF-8 \(byte 0xdf at offset 23\)"):
        read(table)


def test_a_csv_row_with_too_many_cells_is_named(folder):
    path = folder / "list.csv"
    path.write_text('file,caption\na.mp4,one, two\na.mp4,"one, two"\n\n')
    part = read(path)
    assert [file.caption for file in part.files] == ["one, two"]
    assert [r.name for r in part.rejected] == ["line 2"]
    assert "quote commas in captions" in part.rejected[0].reason


def test_a_backslash_in_a_list_from_windows_is_a_folder(folder):
    assert read(write_jsonl(folder, [{"file": "sub\\b.png"}])).files[0].path == folder / "sub" / "b.png"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.jsonl", b"", "has no column with the paths"),
        ("list.csv", b"file,caption\n", r"list\.csv has no rows"),
        ("list.json", b'{"a": 1}', "has an unknown format. Known formats: musubi-tuner"),
        ("list.json", b"[1", "not valid JSON"),
        ("list.csv", b'file,caption\n"a.mp4,x\n', r"Line \d+ of list\.csv cannot be read"),
        ("list.jsonl", b"x" * (1 << 20) + b"y", "Line 1 of list.jsonl is longer than 1 MiB"),
        ("list.xlsx", b"x", r"has a suffix that no list of files has.*\.jsonl"),
    ],
)
def test_a_file_that_is_no_list_is_refused_in_one_sentence(folder, name, content, message):
    path = folder / name
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        read(path)


def test_a_damaged_table_is_refused(folder):
    pytest.importorskip("pyarrow")
    for name in ("list.parquet", "list.arrow"):
        (folder / name).write_bytes(b"PAR1 not really")
        with pytest.raises(DatasetError, match=rf"{name} cannot be read"):
            read(folder / name)


def test_a_table_without_pyarrow_says_what_to_install(folder, monkeypatch):
    import sys

    from wan_core.errors import DependencyError
    from wan_core.parsers.child import Parser

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (folder / "list.parquet").write_bytes(b"PAR1")
    answer, _ = Parser().answer(
        {"do": "open", "path": str(folder / "list.parquet"), "name": "list.parquet"}, bytearray()
    )
    assert answer["error"] == "dependency"
    monkeypatch.setattr("wan_core.children.Child.ask", lambda self, *_: self.answers.put((answer, b"")))
    with pytest.raises(DependencyError, match=r'list\.parquet needs .* -m pip install "pyarrow"'):
        read(folder / "list.parquet")


def test_a_column_of_captions_that_nobody_knows_is_named(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"x")
    listing = tmp_path / "videos2caption.json"
    listing.write_text('[{"path": "a.mp4", "cap": ["a fox", "a red fox"], "fps": 16, "resolution": {"width": 64}}]')
    part = read_listing(SourceFile(path=listing, allowed=[tmp_path]))
    assert part.caption_hint == 'Captions may be in column "cap" of videos2caption.json: name it in caption_column'
    listing.write_text('[{"path": "a.mp4", "cap": "a fox", "words": "a red fox"}]')
    part = read_listing(SourceFile(path=listing, allowed=[tmp_path]))
    assert 'column "cap" of' in part.caption_hint
    listing.write_text('[{"path": "a.mp4", "words": "a red fox", "n": 1}]')
    part = read_listing(SourceFile(path=listing, allowed=[tmp_path]))
    assert 'in one of the columns "words", "n" of' in part.caption_hint
    listing.write_text('[{"path": "a.mp4", "caption": "a fox", "cap": "b"}]')
    assert read_listing(SourceFile(path=listing, allowed=[tmp_path])).caption_hint == ""


ROW = '{"file": "a.mp4", "caption": "a fox"}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROW.replace("a.mp4", "clips\\one.mp4"), "line 1 is not valid JSON (Invalid \\escape"),
        (ROW.replace("a.mp4", "clips\\one.mp4"), "a single \\ has to be written as \\\\ or /"),
        (f"{ROW},\n{ROW},\n", "line 1 is not valid JSON (Extra data"),
        (f"{ROW},\n{ROW},\n", "a line ends without a comma"),
        (f"\n{ROW[:-1]}, }}\n", "line 2 is not valid JSON"),
        (f"\n{ROW[:-1]}, }}\n", "a closing bracket must not follow a comma"),
        ("{'file': 'a.mp4'}\n", "names and texts need double quotes"),
        (f"[{ROW},\n{ROW},\n]", "rename a file that is one array to .json"),
        ('"a.mp4"\n"b.mp4"\n', "line 1 is not an object such as {...}"),
    ],
)
def test_lines_that_are_no_json_are_the_cause_and_no_column(tmp_path, text, said):
    listing = tmp_path / "list.jsonl"
    listing.write_text(text)
    with pytest.raises(DatasetError) as caught:
        read_listing(SourceFile(path=listing, allowed=[tmp_path]))
    assert said in str(caught.value)
    assert "column" not in str(caught.value)


@pytest.mark.parametrize(("listed", "there"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_listed_file_is_found_in_the_other_unicode_form(tmp_path, listed, there):
    (tmp_path / unicodedata.normalize(there, "café.mp4")).write_bytes(b"x")
    listing = tmp_path / "list.csv"
    listing.write_text("file,caption\n" + unicodedata.normalize(listed, "café.mp4") + ",a cup\n", encoding="utf-8")
    part = read_listing(SourceFile(path=listing, allowed=[tmp_path]))
    assert ([file.caption for file in part.files], part.rejected) == (["a cup"], ())
