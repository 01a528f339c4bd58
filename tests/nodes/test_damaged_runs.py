"""What is damaged in the files of one run costs neither the others nor a training that has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from route_server import our_module, write_run

from tests.support.damaged import BAD_NUMBERS, damaged_lines

pytestmark = pytest.mark.comfy
bad_values = pytest.mark.parametrize("value", BAD_NUMBERS.values(), ids=BAD_NUMBERS)


@bad_values
def test_a_training_that_ended_is_told_from_the_lines_that_are_whole(
    pack_nodes: dict[str, Any], tmp_path: Path, value: str
) -> None:
    directory = write_run(tmp_path / "output" / "wan_trainer")
    with (directory / "metrics.jsonl").open("a") as file:
        file.write("\n".join(damaged_lines(value)) + "\n")
    runs = our_module(pack_nodes, "runs")
    facts = runs.RunFacts(directory)
    assert facts.losses[:2] == [1.0, 0.5]
    assert facts.losses[-1] == 0.25
    assert facts.eval_losses == [(2, 0.5), (4, 0.25)]
    assert facts.seconds_per_step in (0.2, 0.3, 0.4)
    assert runs.best_step(directory) == 4
    assert len(facts.samples()) == 2


@bad_values
def test_a_damaged_index_of_samples_costs_only_its_samples(
    pack_nodes: dict[str, Any], tmp_path: Path, value: str
) -> None:
    directory = write_run(tmp_path / "output" / "wan_trainer")
    index = directory / "samples" / "index.json"
    good = json.loads(index.read_text())[0]
    entry = f'{{"id": {value}, "step": {value}, "file": {value}}}'
    outside = '{"id": "a", "step": 1, "file": "../status.json"}, {"id": "b", "step": 1, "file": "samples/..\\\\x"}'
    long = json.dumps({"id": "c", "step": 1, "file": "samples/" + "x" * 5000})
    index.write_text(f"[{json.dumps(good)}, {entry}, {outside}, {long}]")
    facts = our_module(pack_nodes, "runs").RunFacts(directory)
    assert [sample["filename"] for sample in facts.samples()] in ([Path(good["file"]).name], [])  # []: no JSON at all
    index.write_text(value)
    assert facts.samples() == []
