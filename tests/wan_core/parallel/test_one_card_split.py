"""benchmarks/one_card_split.py runs on a CPU: one rank over gloo, and two stages in threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.forked import RunScript

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "one_card_split.py"


@pytest.mark.soak
@pytest.mark.lasts(3)
def test_one_rank_trains_as_none_and_two_stages_as_one_piece(run_script: RunScript, tmp_path: Path) -> None:
    done = run_script(SCRIPT, "--tiny", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    (data,) = tmp_path.glob("one_card_split_tiny_*.json")
    found = json.loads(data.read_text())
    ways = found["one_rank"]["ways"]
    assert {name: way["furthest"] for name, way in ways.items() if name != "context_parallel"} == {
        "copy per GPU": 0.0,
        "shards": 0.0,
    }
    assert all(way["calls"]["all_reduce"] == 3 for way in ways.values()), "one for each step"
    for way in ("unchecked", "checkpointed"):
        split = found["half_cards"][way]
        assert split["gradients_far"] == 0.0
        assert [row["micro_batches"] for row in split["rows"]] == [2, 4]
        assert all(len(row["drawn"].splitlines()) == len(row["drawn_model"].splitlines()) == 2 for row in split["rows"])
