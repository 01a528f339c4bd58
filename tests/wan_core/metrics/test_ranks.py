"""The files in which each rank says how its devices are."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from wan_core.metrics import RankFile, forget_ranks, read_ranks
from wan_core.train.meters import (
    _slowest,  # pyright: ignore[reportPrivateUsage]
    device_states,
)

CARD: dict[str, Any] = {"device": "cuda:0", "name": "A card", "now": 3, "peak": 4, "total": 8, "busy": None}


def written(directory: Path, rank: int, seconds_ago: float = 0.0) -> Path:
    RankFile(directory, rank, lambda: [CARD]).close()
    path = directory / "ranks" / f"rank-{rank:04d}.json"
    then = time.time() - 3600 - seconds_ago  # another machine's clock
    os.utime(path, (then, then))
    return path


def test_ranks_are_read_in_order_and_one_that_stopped_writing_is_silent(tmp_path: Path) -> None:
    for rank, ago in ((1, 0), (0, 3), (2, 45)):
        written(tmp_path, rank, ago)
    found = read_ranks(tmp_path)
    assert [(one["rank"], one["silent"]) for one in found] == [(0, None), (1, None), (2, 45)]
    assert {key: found[2][key] for key in CARD} == CARD
    forget_ranks(tmp_path, 2)
    assert [one["rank"] for one in read_ranks(tmp_path)] == [0, 1]
    forget_ranks(tmp_path, 0)
    assert read_ranks(tmp_path) == read_ranks(tmp_path / "none") == []


def test_a_file_is_written_again_while_the_rank_lives(tmp_path: Path) -> None:
    values = iter(range(100))
    file = RankFile(tmp_path, 0, lambda: [{**CARD, "now": next(values)}])
    while not (before := read_ranks(tmp_path)):
        time.sleep(0.01)
    file.close()
    file.close()
    assert [before[0]["now"], read_ranks(tmp_path)[0]["now"]] == [0, 1], "the last one when it ends"


def test_damaged_files_and_links_are_left_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    folder, outside = written(run, 0).parent, tmp_path / "outside.json"
    outside.write_text(json.dumps({"rank": 9, "devices": [CARD]}))
    (folder / "rank-0001.json").write_text("{")
    (folder / "rank-0002.json").write_text('{"devices": 3}')
    (folder / "rank-0003.json").symlink_to(outside)
    (folder / "rank-0004.json").write_text('{"devices": [3]}')
    assert [one["rank"] for one in read_ranks(run)] == [0]


def test_a_file_with_a_hundred_thousand_devices_shows_a_few(tmp_path: Path) -> None:
    folder = written(tmp_path, 0).parent
    (folder / "rank-0000.json").write_text(json.dumps({"rank": 0, "devices": [{}] * 100_000}))
    assert len(read_ranks(tmp_path)) == 64


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("a file")
    RankFile(tmp_path, 0, lambda: [CARD]).close()
    assert read_ranks(tmp_path) == []


def test_the_cpu_has_the_memory_of_its_process() -> None:
    (state,) = device_states(["cpu"])
    assert state["device"] == "cpu"
    assert state["busy"] is None
    assert isinstance(state["now"], int)
    assert state["now"] > 50 << 20


def test_the_rank_that_waits_least_is_the_slowest() -> None:
    assert _slowest([4.0, 0.5, 3.9], 10) == 1
    assert _slowest([0.5, 0.4], 10) is None, "1 % of the step"
    assert _slowest([0.0], 10) is None
