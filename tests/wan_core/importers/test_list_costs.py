"""What lists and tars of strangers cost grows with their length, and damage is a sentence of ours."""

from __future__ import annotations

import contextlib
import json
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.damages import damages
from wan_core.errors import DatasetError, Stopped, WanTrainerError
from wan_core.importers import cells as cells_module
from wan_core.importers import open_source, source_fingerprint, stated_mark, stated_settings
from wan_core.importers import rows as rows_module
from wan_core.importers.source import SourceFile
from wan_core.importers.webdataset import tar_members
from wan_core.parsers import tables as tables_module

FLOOR_S, GROWTH, HELD_S = 0.03, 3.0, 5.0
"""as in tests/test_text_costs.py"""


def growth(what: Callable[[int], Callable[[], object]], size: int) -> list[float]:
    """Processor seconds of a call at 1, 10 and 100 times `size`; fails where they grow faster than three times that."""
    found: list[float] = []
    for times in (1, 10, 100):
        most = GROWTH * 10 * max(found[-1], FLOOR_S / (GROWTH * 10)) if found else HELD_S
        found.append(least(what(size * times), most))
        assert found[-1] <= min(most, HELD_S), found
    return found


def least(call: Callable[[], object], most: float) -> float:
    """Returns the processor seconds of a call; the least of three where one takes more than `most`."""
    took: list[float] = []
    while len(took) < 3 and not (took and min(took) <= most):
        began = time.thread_time()
        with contextlib.suppress(WanTrainerError):
            call()
        took.append(time.thread_time() - began)
    return min(took)


ROWS: dict[str, Callable[[int], str]] = {
    "honest.jsonl": lambda n: "".join(f'{{"file": "{i}.mp4", "caption": "a walk"}}\n' for i in range(n)),
    "keys.jsonl": lambda n: '{"file": "a.mp4", ' + ", ".join(f'"k{i}": 1' for i in range(n)) + "}\n",
    "deep.jsonl": lambda n: "[" * n + "\n",
    "digits.jsonl": lambda n: '{"file": "a.mp4", "repeats": ' + "1" * n + "}\n",
    "captions.jsonl": lambda n: '{"file": "a.mp4", "caption": [' + '"a",' * n + '"b"]}\n',
    "lines.jsonl": lambda n: "x\n" * n,
    "honest.csv": lambda n: "file,caption\n" + "".join(f"{i}.mp4,a walk\n" for i in range(n)),
    "wide.csv": lambda n: ",".join(["file", *map(str, range(n))]) + "\na.mp4\n",
    "short.csv": lambda n: ",".join(["file", *map(str, range(300))]) + "\n" + "a\n" * n,
    "quote.csv": lambda n: 'file\n"' + "a\n" * n,
    "honest.json": lambda n: json.dumps([{"file": f"{i}.mp4"} for i in range(n)]),
    "deep.json": lambda n: "[" * n,
    "numbers.json": lambda n: "[" + "1," * n + "1]",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak if name in ("honest.json", "short.csv", "wide.csv") else ())
        for name in ROWS
    ],
)
def test_a_list_costs_as_much_as_it_is_long(tmp_path: Path, name: str) -> None:
    def made(count: int) -> Callable[[], object]:
        (tmp_path / name).write_text(ROWS[name](count))
        return lambda: open_source(SourceFile(path=tmp_path / name, allowed=[tmp_path]))

    growth(made, 100)


def test_a_list_is_read_once_for_plan_fingerprint_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file as it is: an edit is seen, and so is a clip that comes or goes without one."""
    opened: list[Path] = []
    read = rows_module.opened_list

    def counted(path: Path, *given: Any) -> Any:
        opened.append(path)
        return read(path, *given)

    monkeypatch.setattr(cells_module, "opened_list", counted)
    source = SourceFile(path=tmp_path / "x.jsonl", allowed=[tmp_path])
    source.path.write_text('{"file": "a.mp4"}\n{"file": "b.mp4"}\n')
    (tmp_path / "a.mp4").write_bytes(b"x")
    assert (stated_settings(source), stated_mark(source), opened) == ([{}], "", [])
    first = source_fingerprint(source)
    (part,) = open_source(source)
    assert ([file.path.name for file in part.files], len(part.rejected), len(opened)) == (["a.mp4"], 1, 1)
    (tmp_path / "b.mp4").write_bytes(b"x")
    assert source_fingerprint(source) != first
    assert (len(open_source(source)[0].files), len(opened)) == (2, 1)
    source.path.write_text('{"file": "a.mp4", "caption": "new"}\n')
    assert [file.caption for file in open_source(source)[0].files] == ["new"]
    assert len(opened) == 2


def test_what_is_kept_of_lists_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "_kept", type(cells_module._kept)())
    monkeypatch.setattr(cells_module, "_KEPT_BYTES", 3000)
    for name, rows in (("a", 5), ("b", 5), ("c", 100)):
        (tmp_path / f"{name}.jsonl").write_text('{"file": "a.mp4"}\n' * rows)
        open_source(SourceFile(path=tmp_path / f"{name}.jsonl", allowed=[tmp_path]))
    kept = [Path(tables[0][0]).stem for tables, _ in cells_module._kept]
    assert kept == ["a", "b"]
    (tmp_path / "d.jsonl").write_text('{"file": "a.mp4"}\n' * 7)
    open_source(SourceFile(path=tmp_path / "d.jsonl", allowed=[tmp_path]))
    assert [Path(tables[0][0]).stem for tables, _ in cells_module._kept] == ["d"]


@pytest.mark.parametrize("words", [[f"{n:03d}" for n in range(900)], ["日" * 200] * 5], ids=["many", "wide"])
def test_what_is_kept_is_counted_as_what_it_takes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of three characters takes 52 bytes, one of 200 Chinese ones 474."""
    monkeypatch.setattr(cells_module, "_kept", type(cells_module._kept)())
    source = SourceFile(path=tmp_path / "x.jsonl", allowed=[tmp_path])
    source.path.write_text((json.dumps({"file": "a.mp4", "caption": words}) + "\n") * 50)
    tracemalloc.start()
    for _row in cells_module.cells_of([source.path], source).rows:
        pass
    took = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    ((counted, _),) = cells_module._kept.values()
    assert 0.7 < counted / took < 2


def test_the_columns_of_a_list_that_is_kept_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "_kept", type(cells_module._kept)())
    source = SourceFile(path=tmp_path / "x.jsonl", allowed=[tmp_path])
    source.path.write_text(json.dumps({"file": "a.mp4", **{"k" * 80 + str(n): 1 for n in range(5000)}}) + "\n")
    assert len(list(cells_module.cells_of([source.path], source).rows)) == 1
    assert next(iter(cells_module._kept.values()))[0] > 5000 * 100


def test_a_list_that_is_taken_away_is_a_sentence(tmp_path: Path) -> None:
    """Before it is opened, and while it is read: the rows stand then, and nothing is kept of them."""
    source = SourceFile(path=tmp_path / "x.jsonl", allowed=[tmp_path])
    source.path.write_text('{"file": "a.mp4"}\n' * 3)
    rows = iter(cells_module.cells_of([source.path], source).rows)
    first = next(rows)
    source.path.unlink()
    assert len([first, *rows]) == 3
    with pytest.raises(DatasetError, match=r"^x\.jsonl cannot be opened"):
        cells_module.cells_of([source.path], source)


def test_a_list_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MOST_ROWS", 3)
    monkeypatch.setattr(tables_module, "MOST_ROWS", 3)
    monkeypatch.setattr(rows_module, "MOST_COLUMNS", 4)
    for name, text, sentence in (
        ("a.jsonl", '{"file": "a.mp4"}\n' * 4, "has more than 3 rows"),
        ("a.csv", "file\n" + "a.mp4\n" * 4, "has more than 3 rows"),
        ("b.jsonl", '{"file": 1, "a": 1, "b": 1, "c": 1, "d": 1}\n', "has more than 4 columns"),
        ("b.csv", "file,a,b,c,d\n", "has more than 4 columns"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DatasetError, match=rf"^{name} {sentence}"):
            open_source(SourceFile(path=tmp_path / name, allowed=[tmp_path]))


def test_cancel_is_heard_while_a_list_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"file": "a.mp4"}\n' * 1000)
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > 10

    with pytest.raises(Stopped):
        source_fingerprint(SourceFile(path=tmp_path / "a.jsonl", allowed=[tmp_path], should_stop=stop))
    assert len(asked) == 11


# ---- tars ------------------------------------------------------------------------------------------------------------


def tar_of(*members: tuple[str, bytes], **headers: str) -> bytes:
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(body), dict(headers)
            tar.addfile(info, BytesIO(body))
    return data.getvalue()


@pytest.mark.parametrize("size", [1 << 44, (1 << 59) + 7, 1 << 60])
@pytest.mark.parametrize("kind", [b"0", b"5", b"g", b"K", b"x", b"L"])
def test_a_member_beyond_any_disk_ends_the_tar(tmp_path: Path, size: int, kind: bytes) -> None:
    """The system knows no such place: it was a raw Errno 22."""
    info = tarfile.TarInfo("a.mp4")
    info.size, info.type = size, kind
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + tar_of(("b.png", b"x")))
    if kind in (b"x", b"L"):
        with pytest.raises(DatasetError, match="is damaged: the name of a member takes"):
            tar_members(tmp_path / "a.tar")
    else:
        found = tar_members(tmp_path / "a.tar")
        assert [member.refused[:10] for member in found] == (["is cut off"] if kind == b"0" else [])


def test_a_tar_costs_as_much_as_it_is_long(tmp_path: Path) -> None:
    def small(count: int) -> Callable[[], object]:
        (tmp_path / "a.tar").write_bytes(tar_of(*[(f"{number}.txt", b"") for number in range(count)]))
        return lambda: tar_members(tmp_path / "a.tar")

    def pax(count: int) -> Callable[[], object]:
        (tmp_path / "a.tar").write_bytes(tar_of(("a.mp4", b""), **{f"k{number}": "v" for number in range(count)}))
        return lambda: tar_members(tmp_path / "a.tar")

    growth(small, 20)
    growth(pax, 50)


# ---- damage ----------------------------------------------------------------------------------------------------------

SMALL: dict[str, Callable[[], bytes]] = {
    "x.jsonl": lambda: b'{"file": "a.mp4", "caption": "a walk", "repeats": 2}\n{"file": "b.png", "mask": "a.mp4"}\n',
    "x.json": lambda: b'[{"file": "a.mp4", "caption": ["a", "b"]}, {"file": "b.png", "weight": 0.5}]',
    "x.csv": lambda: 'file,caption\na.mp4,ein Stück\nb.png,"two, of them"\n'.encode(),
    "x.tsv": lambda: b"file\tcaption\na.mp4\ta walk\n",
    "x.tar": lambda: tar_of(
        ("0.png", b"\x89PNG\r\n\x1a\n" * 9), ("0.json", b'{"caption": "a"}'), ("1.mp4", b"ab" * 99)
    ),
    "x.toml": lambda: b"[general]\nresolution = [64, 64]\n[[datasets]]\nvideo_directory = '.'\nnum_repeats = 3\n",
    "x.yaml": lambda: b"config:\n  process:\n    - datasets:\n        - folder_path: .\n          resolution: [512]\n",
}


def outcomes(folder: Path, name: str, count: int) -> Iterator[str]:
    data = SMALL[name]()
    for media in ("a.mp4", "b.png"):
        (folder / media).write_bytes(b"x")
    path = folder / name
    for damaged in damages(data, count):
        path.write_bytes(damaged)
        source = SourceFile(path=path, allowed=[folder], unpacked=folder / "unpacked")
        try:
            source_fingerprint(source)
            assert all(part.name for part in open_source(source))
            yield "read"
        except WanTrainerError as error:
            yield str(error)


@pytest.mark.parametrize("name", list(SMALL))
def test_damage_is_a_sentence_or_a_list(tmp_path: Path, name: str) -> None:
    assert len(list(outcomes(tmp_path, name, 60))) == 60


@pytest.mark.soak
@pytest.mark.parametrize("name", list(SMALL))
def test_any_damage_is_a_sentence_or_a_list(tmp_path: Path, name: str) -> None:
    assert len(list(outcomes(tmp_path, name, 2000))) == 2000
