"""benchmarks/measure on a CPU at tiny sizes: its steps are a run's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from measure import (
    DONE,
    ERROR,
    NEEDS,
    ROWS,
    Measurement,
    Where,
    machine_facts,
    measure_row,
    rows_numbered,
    table,
)  # fmt: skip
from measure import measuring as module
from measure.__main__ import main
from measure.one_row import _FEWEST

from wan_core.errors import ConfigError, ExitCode
from wan_core.placement.cards import CARD_LIMIT, HOST_LIMIT
from wan_core.plan import card_named
from wan_core.plan.cards import CardCost

CPU = torch.device("cpu")


def measurement(out: Path, rows: str, **more: Any) -> Measurement:
    return Measurement(rows_numbered(rows), 10.0, out, tell=lambda _: None, tiny=True, apart=False, **more)


@pytest.mark.lasts(2)
def test_rows_are_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CARD_LIMIT, "16")  # the CPU plays a card
    monkeypatch.setenv(HOST_LIMIT, "0.0128")  # room for the inputs of the blocks, and not for their weights
    said = measurement(tmp_path, "1,2,5").run()

    file = tmp_path / f"measured_{said['machine']['name']}_tiny.json"
    assert json.loads(file.read_text()) == said
    assert (said["version"], said["machine"]["tiny"], said["machine"]["torch"]) == (1, True, torch.__version__)
    assert [row["status"] for row in said["rows"]] == [DONE, NEEDS, DONE]
    assert said["rows"][1]["said"] == "needs 0.0 GiB on host memory by its prediction, and 0.0 are free"
    done = [row["figures"] for row in said["rows"] if row["status"] == DONE]
    for figures in done:
        assert len(figures["seconds"]) == len(set(figures["losses"])) == 3  # they moved
        assert min(figures["seconds"]) > 0
        assert figures["predicted_s"] > 0
        assert figures["predicted_bytes"] > 1 << 20
        assert 0 < figures["work"]["bytes"] < figures["work"]["moved"]
    checkpointed, plain = done
    assert (checkpointed["checkpointing_policy"], plain["checkpointing_policy"]) == ("full", "none")
    assert checkpointed["work"]["flop"] > 1.2 * plain["work"]["flop"]
    assert min(checkpointed["work"]["kernels"], plain["work"]["kernels"]) > 500
    assert checkpointed["published"][0] == {
        "card": "H100 80 GB",
        "seconds": 2.099,
        "gib": 4.73,
        "way": "SimpleTuner bc8e6ab, bf16, RamTorch, every block",
    }
    page = file.with_suffix(".md").read_text()
    for text in (page, table(said)):
        assert "needs 0.0 GiB on host memory" in text


def fake(row: str = "") -> Callable[..., dict[str, Any]]:
    """Figures of steps that take what H200's constants say; the row named raises or is interrupted."""
    card = card_named("H200")
    assert card is not None
    works = iter(
        [
            CardCost(2600e12, 2.2e12, 30_000, 4e12),
            CardCost(430e12, 0.6e12, 22_000, 1e12),
            CardCost(1e13, 4e10, 7000, 1e11),
        ]
    )

    def measured(one: Any, where: Where) -> dict[str, Any]:
        if one.name == row:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        work = next(works)
        return {
            "tokens": 1, "rank": 16, "median_s": 1.25 * work.seconds_on(card), "predicted_s": None, "copies_s": None,
            "measured_bytes": None, "predicted_bytes": 1, "predicted_host_bytes": 1, "work": work._asdict(),
            "useful_tflops": 1.0, "published": [], "ok": True, "unchecked_blocks": 0,
            "measures": {"offload_inputs": False, "blocks_to_swap": 0}, "checkpointing_policy": "full",
        }  # fmt: skip

    return measured


def test_a_row_that_raises_is_recorded_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_row", fake(ROWS[1].name))
    facts = machine_facts() | {"name": "Radeon RX 6800/6900 XT"}  # a name that torch for ROCm reports
    monkeypatch.setattr(module, "machine_facts", lambda: facts)
    said = measurement(tmp_path, "1,2,3,4").run()
    assert (tmp_path / "measured_Radeon-RX-6800-6900-XT_tiny.json").is_file()
    assert [row["status"] for row in said["rows"]] == [DONE, ERROR, DONE, DONE]
    assert "CUDA out of memory." in said["rows"][1]["said"]
    assert "14B 480x480x81, as planned (full)" in table(said)


def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, calls = fake(), list[str]()

    def interrupted(row: Any, where: Where) -> dict[str, Any]:
        calls.append(row.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(row, where)

    monkeypatch.setattr(module, "measure_row", interrupted)
    words = ["--tiny", "--one-process", "--rows", "1,2,3", "--out", str(tmp_path)]
    assert main(words) == ExitCode.STOPPED
    said = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in said["rows"]] == [DONE]
    (kept,) = tmp_path.glob("*.json")
    assert json.loads(kept.read_text()) == said


def test_no_row_is_begun_that_would_not_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CARD_LIMIT, "16")
    with pytest.raises(Exception, match=r"would take 2\d s, and 5 are left"):
        measure_row(ROWS[0], Where(tmp_path, tiny=True, left_s=5.0))


def test_rows_are_chosen_by_number() -> None:
    assert rows_numbered("") == ROWS
    assert rows_numbered(" 3, 1") == (ROWS[2], ROWS[0])
    for wrong in ("0", "99", "first"):
        with pytest.raises(ConfigError, match="is no list of numbers from 1 to"):
            rows_numbered(wrong)
    assert all(row.steps >= _FEWEST for row in ROWS)
