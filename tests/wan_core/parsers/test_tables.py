"""Tables of strangers: what a cell costs is known before it is made, and damage is one sentence of ours."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.damages import damages
from wan_core.errors import DatasetError, Stopped, WanTrainerError
from wan_core.parsers import Tables
from wan_core.parsers import process as process_module
from wan_core.parsers import tables as tables_module
from wan_core.parsers.tables import OpenTable

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an extra")

ROWS = {"file": ["a.mp4", "b.mp4", "c.mp4"], "caption": ["a walk", "a walk", "日本"], "repeats": [1, 2, 3]}
PICTURES = [{"bytes": b"\x89PNG\r\n\x1a\n" + bytes([n] * 50), "path": f"{n}.png"} for n in range(3)]


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    from pyarrow import parquet as writer

    writer.write_table(pyarrow.table(columns), path, **options)
    return path


def stream(path: Path, columns: dict[str, Any]) -> Path:
    return _arrow(path, columns, "new_stream")


def arrow(path: Path, columns: dict[str, Any]) -> Path:
    return _arrow(path, columns, "new_file")


def _arrow(path: Path, columns: dict[str, Any], opened: str) -> Path:
    from pyarrow import ipc

    table = pyarrow.table(columns)
    with getattr(ipc, opened)(path, table.schema) as writer:
        writer.write_table(table)
    return path


def rows_here(path: Path, columns: list[str]) -> list[Any]:
    """As the child makes them, in this process."""
    found: list[Any] = []
    with contextlib.closing(OpenTable(path)) as table:
        while True:
            header, _ = table.next_rows(columns)
            found += header["rows"]
            if header["end"]:
                return found


def shared_text(size: int, rows: int) -> Any:
    """One text in many rows, as a dictionary: it costs the file a few bytes however long it is."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array(["a" * size]))


def test_a_text_in_a_thousand_rows_is_measured_and_never_copied(tmp_path: Path) -> None:
    """Like the file of 2,603 bytes that took 4.3 GB and a minute in the server: copied, this one takes 10 GB."""
    columns = {"file": [f"{n}.mp4" for n in range(1000)], "caption": shared_text(10_000_000, 1000)}
    path = parquet(tmp_path / "bomb.parquet", columns, compression="zstd", write_statistics=False)
    assert path.stat().st_size < 20_000
    with Tables() as table:
        assert table.open(path) == ("file", "caption")
        assert list(table.rows(["file", "caption"])) == ["holds a text of 9765 KiB; a caption is one paragraph"] * 1000


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="memory of the child is limited on Linux")
def test_what_takes_more_memory_than_the_child_has_is_one_sentence(tmp_path: Path) -> None:
    from pyarrow import compute

    many = compute.binary_repeat(pyarrow.array(["a" * 1000], pyarrow.large_string()), 1_000_000)
    path = parquet(tmp_path / "many.parquet", {"caption": pyarrow.chunked_array([many] * 6)}, compression="zstd")
    assert path.stat().st_size < 2_000_000
    with Tables() as table:
        table.open(path)
        with pytest.raises(DatasetError, match=r"^many\.parquet .*(memory|cannot be read)"):
            list(table.rows(["caption"]))


LISTS: tuple[tuple[Callable[..., Path], str], ...] = ((parquet, ".parquet"), (arrow, ".arrow"), (stream, ".arrow"))


@pytest.mark.parametrize(("write", "suffix"), [LISTS[0], pytest.param(*LISTS[1], marks=pytest.mark.soak), LISTS[2]])
def test_cells_are_those_of_the_table(tmp_path: Path, write: Callable[..., Path], suffix: str) -> None:
    several = [["one", "two"], [], None]
    path = write(tmp_path / f"x{suffix}", {**ROWS, "image": PICTURES, "several": several})
    with Tables() as table:
        table.open(path)
        found = list(table.rows(["image", "file", "caption", "repeats", "several"]))
    assert found == [
        [picture, *(ROWS[name][number] for name in ROWS), several[number]] for number, picture in enumerate(PICTURES)
    ]


def test_numbers_dates_and_lists_of_other_things_are_no_texts(tmp_path: Path) -> None:
    import datetime
    import decimal

    path = parquet(
        tmp_path / "x.parquet",
        {"a": [datetime.date(2026, 1, 1)], "b": [decimal.Decimal("1.5")], "c": [[1, 2]], "d": [{"x": 1}], "e": [True]},
    )
    assert rows_here(path, ["a", "b", "c", "d", "e"]) == [[{}, 1.5, [1, 2], {"path": None}, True]]


def limits() -> Iterator[tuple[str, int, dict[str, Any], str]]:
    yield "MOST_ROWS", 2, ROWS, "has more than 2 rows. Split it"
    yield "MOST_COLUMNS", 2, ROWS, "has more than 2 columns. Write the paths"
    yield "MOST_TEXT_BYTES", 40, ROWS, "holds more than 0 MiB of text. Split it"


@pytest.mark.parametrize(("write", "suffix"), LISTS)
@pytest.mark.parametrize(("name", "value", "columns", "sentence"), list(limits()))
def test_a_table_has_limits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[..., Path],
    suffix: str,
    name: str,
    value: int,
    columns: dict[str, Any],
    sentence: str,
) -> None:
    path = write(tmp_path / f"x{suffix}", columns)
    monkeypatch.setattr(tables_module, name, value)
    with pytest.raises(DatasetError, match=rf"^x\{suffix} {sentence}"):
        rows_here(path, list(columns))


def test_a_long_list_and_a_large_media_file_cost_their_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "x.parquet", {"caption": [["a"] * 1001, ["b"]], "image": PICTURES[:2]})
    assert rows_here(path, ["caption"]) == ["holds a list of 1001 entries; write at most 1000 captions", [["b"]]]
    monkeypatch.setattr(tables_module, "LARGEST_MEDIA_BYTES", 10)
    assert rows_here(path, ["image"]) == ["holds a media file larger than 2 GiB; name a file instead"] * 2


def test_media_that_would_fill_a_disk_from_a_small_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(OpenTable(parquet(tmp_path / "x.parquet", {"image": PICTURES}))) as table:
        table._room_bytes = 100
        with pytest.raises(DatasetError, match=r"^x\.parquet holds the same media files in many rows"):
            table.next_rows(["image"])


def test_a_media_file_costs_no_more_than_its_list_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros take a file next to nothing; clips and stills do not shrink."""
    monkeypatch.setattr(tables_module, "SPARE_MEDIA_BYTES", 1 << 20)
    path = parquet(tmp_path / "x.parquet", {"image": [bytes(3 << 20), PICTURES[0]["bytes"]]}, compression="zstd")
    assert (
        rows_here(path, ["image"])[0] == "holds a media file that a list of this size cannot hold; name a file instead"
    )
    path = parquet(tmp_path / "x.parquet", {"image": [os.urandom(3 << 20)]}, compression="zstd")
    assert len(rows_here(path, ["image"])[0]) == 1


def test_texts_as_views_are_texts(tmp_path: Path) -> None:
    types: Any = pytest.importorskip("pyarrow").types
    if not hasattr(types, "is_string_view"):
        pytest.skip("this pyarrow has none")
    columns = {"caption": pyarrow.array(["a walk", None], pyarrow.string_view())}
    columns["image"] = pyarrow.array([b"x", None], pyarrow.binary_view())
    for write, suffix in ((parquet, ".parquet"), (arrow, ".arrow")):
        found = rows_here(write(tmp_path / f"x{suffix}", columns), ["caption", "image"])
        assert found == [["a walk", {"bytes": [0, 1]}], [None, None]], suffix


def test_json_that_is_long_is_read_there(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"file": "a.mp4", "caption": ["a", "b"]}, {"file": {"path": "b.mp4"}}, 7]))
    assert rows_here(path, ["file", "caption"]) == [
        ["a.mp4", ["a", "b"]],
        [{"path": "b.mp4"}, None],
        "is not an object such as {...}",
    ]
    for text, sentence in (("{}", "is not a list of rows"), ("[" * 100_000, "is not valid JSON"), ("[1", "is not")):
        path.write_text(text)
        with pytest.raises(DatasetError, match=rf"^x\.json {sentence}"):
            rows_here(path, ["file"])


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("how", ["stop", "time", "crash"])
def test_a_child_that_hangs_or_dies_costs_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    import signal

    asked: list[None] = []
    path = parquet(tmp_path / "x.parquet", ROWS)
    with Tables(lambda: how == "stop" and len(asked) > 0) as table:
        table.open(path)
        child = table._child
        assert child is not None
        os.kill(child.pid, signal.SIGSEGV if how == "crash" else signal.SIGSTOP)
        asked.append(None)
        monkeypatch.setattr(process_module, "TABLE_S", 0.3)
        began = time.monotonic()
        kind, sentence = {
            "stop": (Stopped, "Stopped while reading x.parquet."),
            "time": (DatasetError, "x.parquet takes more than 0 s to be read."),
            "crash": (DatasetError, "x.parquet is damaged: it ends the process that reads it."),
        }[how]
        with pytest.raises(kind, match=sentence):
            list(table.rows(["file"]))
        assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def check_damages(tmp_path: Path, write: Callable[..., Path], suffix: str, count: int) -> tuple[int, int]:
    """Returns how many were refused and how many read. One child reads them; a new one where it dies."""
    columns = {**ROWS, "image": PICTURES}
    data = write(tmp_path / f"whole{suffix}", columns).read_bytes()
    path = tmp_path / f"x{suffix}"
    refused = read = 0
    asking = process_module._ParserChild(path.name, None, "Write it again.")
    asking.__enter__()
    try:
        for damaged in damages(data, count):
            path.write_bytes(damaged)
            try:
                header, _ = asking.ask({"do": "open", "path": str(path)}, b"", 60, "columns")
                there = [name for name in columns if name in header["columns"]]
                header, _ = asking.ask({"do": "rows", "columns": there}, b"", 60, "rows")
                assert all(isinstance(row, list | str) for row in header["rows"])
                read += 1
            except WanTrainerError as error:
                refused += str(error).startswith(path.name)
                if "ends the process" in str(error):
                    asking.__exit__()
                    asking.__enter__()
    finally:
        asking.__exit__()
    return refused, read


@pytest.mark.parametrize(("write", "suffix"), LISTS[::2])
def test_damage_is_a_sentence_or_a_table(tmp_path: Path, write: Callable[..., Path], suffix: str) -> None:
    refused, read = check_damages(tmp_path, write, suffix, 40)
    assert refused + read == 40
    assert refused >= 10


@pytest.mark.soak
@pytest.mark.parametrize(("write", "suffix"), LISTS)
def test_any_damage_is_a_sentence_or_a_table(tmp_path: Path, write: Callable[..., Path], suffix: str) -> None:
    assert sum(check_damages(tmp_path, write, suffix, 1000)) == 1000


def test_many_files_are_read_by_one_process(tmp_path: Path) -> None:
    paths = [parquet(tmp_path / f"{number}.parquet", {"file": [f"{number}.mp4"]}) for number in range(5)]
    with Tables() as tables:
        pids: set[int] = set()
        for number, path in enumerate(paths):
            assert tables.open(path) == ("file",)
            assert list(tables.rows(["file"])) == [[f"{number}.mp4"]]
            assert tables._child is not None
            pids.add(tables._child.pid)
    assert len(pids) == 1
