"""A page that follows a run reads only what is new, and never half a line."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wan_core.metrics.pages as pages_module
from wan_core.events import StepDone, StepSkipped, to_line
from wan_core.metrics import JsonlSink
from wan_core.metrics.pages import MetricsPages


def lines_of(first: int, last: int) -> str:
    return "".join(f'{{"event": "step", "step": {step}, "loss": 0.5}}\n' for step in range(first, last + 1))


def steps(pages: MetricsPages, since: int) -> list[int]:
    return [record["step"] for record in pages.since(since).records]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_no_file_has_no_lines(path: Path) -> None:
    pages = MetricsPages(path)
    assert pages.count() == 0
    assert pages.since(0) == pages_module.Page(0, [], more=False, restarted=False)
    assert pages.since(5).restarted


@pytest.mark.parametrize("since", [0, 1, 999, 1000, 1001, 2499, 2500])
def test_every_line_number_finds_its_line(path: Path, since: int) -> None:
    path.write_text(lines_of(0, 2499))
    assert steps(MetricsPages(path), since) == list(range(since, 2500))


def test_what_is_appended_is_seen_and_nothing_twice(path: Path) -> None:
    pages = MetricsPages(path)
    seen: list[int] = []
    line = 0
    for first in range(0, 3000, 700):
        with path.open("a") as file:
            file.write(lines_of(first, first + 699))
        page = pages.since(line)
        seen += [record["step"] for record in page.records]
        line = page.next
    assert seen == list(range(3500))
    assert pages.count() == line == 3500


def test_a_torn_last_line_is_nobodys_until_it_is_whole(path: Path) -> None:
    pages = MetricsPages(path)
    whole = lines_of(0, 1)
    for end in range(len(whole) + 1):
        path.write_text(whole[:end])
        page = pages.since(0)
        assert page.next == whole[:end].count("\n")
        assert [record["step"] for record in page.records] == list(range(page.next))


def test_a_line_torn_by_a_kill_counts_and_is_left_out(path: Path) -> None:
    path.write_text(lines_of(0, 1) + '{"event": "step", "st\n' + lines_of(2, 3))
    page = MetricsPages(path).since(1)
    assert ([record["step"] for record in page.records], page.next) == ([1, 2, 3], 5)


def test_a_line_longer_than_any_of_ours_counts_and_is_left_out(path: Path) -> None:
    long = json.dumps({"event": "note", "text": "x" * 300_000})
    path.write_text(lines_of(0, 0) + long + "\n" + lines_of(1, 1))
    page = MetricsPages(path).since(0)
    assert ([record["step"] for record in page.records], page.next) == ([0, 1], 3)


def test_a_page_is_limited_in_lines_and_bytes_and_the_next_one_goes_on(path: Path) -> None:
    path.write_text(lines_of(0, 99))
    pages = MetricsPages(path)
    first = pages.since(0, limit=60)
    assert (first.next, first.more) == (60, True)
    assert not pages.since(60, limit=60).more
    path.write_text("".join(json.dumps({"event": "saved", "folder": "x" * 60_000}) + "\n" for _ in range(100)))
    line, answers = 0, 0
    while True:
        page = pages.since(line)
        assert sum(len(record["folder"]) for record in page.records) < 5 << 20
        line, answers = page.next, answers + 1
        if not page.more:
            break
    assert (line, answers) == (100, 2)


def test_a_thin_page_holds_what_curves_need_of_early_steps_and_all_else_in_full(path: Path) -> None:
    done = StepDone(step=0, steps=9, loss=0.5, lr=0.1, grad_norm=1.0, seconds=2.0, expert="high", timestep_mean=7.0)
    line = to_line(replace(done, step=123_456))
    lines = [line.replace("123456", str(step)) for step in range(25_000)]
    lines[1] = to_line(replace(done, step=1, prior_loss=0.25))
    lines[3] = to_line(StepSkipped(step=3, reason="not finite", in_a_row=1))
    lines[4] = json.dumps({"event": "step", "step": 4, "loss": None, "seconds": "x", "expert": "x" * 99}) + "\n"
    path.write_text("".join(lines))
    pages = MetricsPages(path)
    first = pages.since(0, thin=True)
    assert (first.next, first.more, len(first.records)) == (20_000, True, 20_000)
    thin = {"event": "step", "expert": "high", "loss": 0.5, "seconds": 2.0, "timestep_mean": 7.0}
    assert first.records[:2] == [{**thin, "step": 0}, {**thin, "step": 1, "prior_loss": 0.25}]
    assert first.records[3] == json.loads(lines[3])
    assert first.records[4] == {"event": "step", "step": 4, "expert": "x" * 40}
    second = pages.since(20_000, thin=True)
    assert (second.next, second.more) == (25_000, False)
    assert second.records[3999] == {**thin, "step": 23_999}
    assert second.records[4000:] == [json.loads(line) for line in lines[24_000:]]


def test_a_file_that_shrank_or_was_replaced_starts_anew(path: Path) -> None:
    path.write_text(lines_of(0, 1999))
    pages = MetricsPages(path)
    assert pages.count() == 2000
    path.write_text(lines_of(5000, 5009))  # the same inode
    assert pages.since(2000) == pages_module.Page(10, [], more=False, restarted=True)
    assert steps(pages, 0) == list(range(5000, 5010))
    path.unlink()
    path.write_text(lines_of(7000, 7999))
    assert steps(pages, 998) == [7998, 7999]


def test_another_file_that_got_the_inode_and_is_longer_is_noticed(path: Path) -> None:
    path.write_text(lines_of(0, 99))
    pages = MetricsPages(path)
    assert pages.count() == 100
    path.write_text(lines_of(100, 399))
    assert steps(pages, 299) == [399]
    assert pages.count() == 300


def test_a_full_disk_that_took_lines_back_leaves_no_gap(path: Path) -> None:
    path.write_text(lines_of(0, 9) + '{"event": "step", "step": 10}\n{"ev')
    pages = MetricsPages(path)
    assert pages.count() == 11
    path.write_text(lines_of(0, 9))
    assert pages.since(11).restarted
    with path.open("a") as file:
        file.write(lines_of(10, 12))
    assert steps(pages, 10) == [10, 11, 12]


def test_100000_lines_cost_one_reading_and_then_only_what_is_new(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes read, not seconds: a page asks four times a second for as long as a run lasts."""
    path.write_text(lines_of(0, 99_999))
    read: list[int] = []
    opened = pages_module.open_regular

    class Counted:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def fileno(self) -> int:
            return self.file.fileno()

        def seek(self, place: int) -> int:
            return self.file.seek(place)

        def read(self, size: int) -> bytes:
            read.append(len(data := self.file.read(size)))
            return data

        def readline(self, size: int) -> bytes:
            read.append(len(data := self.file.readline(size)))
            return data

    monkeypatch.setattr(pages_module, "open_regular", lambda *a, **k: Counted(opened(*a, **k)))
    pages = MetricsPages(path)
    assert pages.count() == 100_000
    assert sum(read) < path.stat().st_size + 1024
    for since in (99_990, 50_500, 99_999):
        read.clear()
        assert steps(pages, since)[0] == since
        assert sum(read) < 6100 * 50
    read.clear()
    assert pages.count() == 100_000
    assert sum(read) <= 512


def test_a_reader_beside_a_writer_gets_every_record_once_and_in_order(path: Path) -> None:
    sink, pages = JsonlSink(path), MetricsPages(path)
    done = StepDone(step=0, steps=1500, loss=0.1, lr=0.1, grad_norm=1.0, seconds=0.1, expert="auto", timestep_mean=1.0)

    def write() -> None:
        for step in range(1500):
            sink(replace(done, step=step))

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    line = 0
    while writer.is_alive() or line < 1500:
        page = pages.since(line, limit=100)
        line = page.next
        seen += [record["step"] for record in page.records]
    writer.join()
    sink.close()
    assert seen == list(range(1500))
