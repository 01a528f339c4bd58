"""`wan_core measure` on a CPU at tiny sizes: its steps are a run's own, and plans follow what it found."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from wan_core.cli.commands import _parser
from wan_core.errors import ConfigError, ExitCode
from wan_core.job import open_experts
from wan_core.measure import (
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
from wan_core.measure import measuring as module
from wan_core.measure.fit import fit
from wan_core.measure.one_row import _FEWEST, _made
from wan_core.placement.cards import CARD_LIMIT, HOST_LIMIT
from wan_core.plan import CardCost, Constants, card_named, keep_constants, plan_run, report_of, state_file
from wan_core.plan.card_constants import STATE, own_constants
from wan_core.plan.cards import card_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE, str(tmp_path / "state"))


def measurement(out: Path, rows: str, **more: Any) -> Measurement:
    return Measurement(rows_numbered(rows), 10.0, out, tell=lambda _: None, tiny=True, apart=False, **more)


@pytest.mark.lasts(6)
def test_rows_are_measured_fitted_and_followed_by_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CARD_LIMIT, "16")  # the CPU plays a card
    monkeypatch.setenv(HOST_LIMIT, "0.0128")  # room for the inputs of the blocks, and not for their weights
    said = measurement(tmp_path, "1,2,5,1").run()

    file = tmp_path / f"measured_{said['machine']['name']}_tiny.json"
    assert json.loads(file.read_text()) == said
    assert (said["version"], said["machine"]["tiny"], said["machine"]["torch"]) == (1, True, torch.__version__)
    assert [row["status"] for row in said["rows"]] == [DONE, NEEDS, DONE, DONE]
    assert said["rows"][1]["said"] == "needs 0.0 GiB on host memory by its prediction, and 0.0 are free"
    done = [row["figures"] for row in said["rows"] if row["status"] == DONE]
    for figures in done:
        assert len(figures["seconds"]) == len(set(figures["losses"])) == 3  # they moved
        assert min(figures["seconds"]) > 0
        assert figures["predicted_s"] > 0
        assert figures["predicted_bytes"] > 1 << 20
        assert 0 < figures["work"]["bytes"] < figures["work"]["moved"]
    checkpointed, plain = done[:2]
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
        assert "Constants: " in text
        assert "needs 0.0 GiB on host memory" in text

    # The plan of the same row now goes by the fitted constants, and says so.
    kept = own_constants("cpu")
    assert kept is not None
    assert kept.to_dict() == said["constants"]
    card = card_of(CPU)
    assert card is not None
    assert (card.flops_per_s, card.bytes_per_s, card.kernel_s) == (kept.flops_per_s, kept.bytes_per_s, kept.kernel_s)
    (again := tmp_path / "again").mkdir()
    directory, roots = _made(again, ROWS[0].tiny)
    plan = plan_run(open_experts(directory, roots)[0])
    assert plan.seconds(card) == pytest.approx(checkpointed["fitted_s"])
    assert f"Time of a step: by your own measurement of {kept.date}." in report_of(plan)["notes"]
    state_file().write_text("{")
    assert report_of(plan)["notes"] == []


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
    assert said["constants"]["rows"] == 3
    assert said["constants"]["off"] < 0.02
    assert "14B 480x480x81, as planned (full)" in table(said)
    assert [row["figures"]["fitted_s"] for row in said["rows"] if row["status"] == DONE] == pytest.approx(
        [row["figures"]["median_s"] for row in said["rows"] if row["status"] == DONE], rel=0.02
    )


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, calls = fake(), list[str]()

    def interrupted(row: Any, where: Where) -> dict[str, Any]:
        calls.append(row.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(row, where)

    monkeypatch.setattr(module, "measure_row", interrupted)
    words = ["measure", "--tiny", "--one-process", "--rows", "1,2,3", "--out", str(tmp_path)]
    options, out = _parser().parse_args(words), io.BytesIO()
    assert options.run(options, lambda _: None, out) == ExitCode.STOPPED
    said = json.loads(out.getvalue())
    assert [row["status"] for row in said["rows"]] == [DONE]
    (kept,) = tmp_path.glob("*.json")
    assert json.loads(kept.read_text()) == said


def test_no_row_is_begun_that_would_not_end_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CARD_LIMIT, "16")
    with pytest.raises(Exception, match=r"would take 2\d s, and 5 are left"):
        measure_row(ROWS[0], Where(tmp_path, tiny=True, left_s=5.0))


def test_constants_are_found_again_from_steps_of_the_published_rows() -> None:
    """Six rows of an H200, as counted: their time divides among the three constants in different ways."""
    assumed = card_named("H200")
    assert assumed is not None
    true = (430e12, 2.9e12, 9e-6)
    works = [
        CardCost(433e12, 0.57e12, 22_705, 0), CardCost(2611e12, 2.23e12, 30_255, 0),
        CardCost(2086e12, 1.83e12, 10_201, 0),
        CardCost(333e12, 0.44e12, 17_815, 0), CardCost(10e12, 0.04e12, 6_835, 0), CardCost(1266e12, 1.41e12, 10_529, 0),
    ]  # fmt: skip
    seconds = [work.flop / true[0] + work.bytes / true[1] + work.kernels * true[2] for work in works]
    *found, off, host_s, of_host = fit(list(zip(works, seconds, strict=True)), assumed)
    assert of_host == ()
    assert host_s == seconds[4] / 6_835, "the hastiest step, a still"
    assert found == pytest.approx(true, rel=0.05)
    assert off < 0.005
    # Steps of one kind alone cannot tell: the assumed shares decide, and the time is right all the same.
    *found, off, _, _ = fit([(works[1], seconds[1])] * 3, assumed)
    assert off < 0.001
    assert found[0] / found[1] == pytest.approx(assumed.flops_per_s / assumed.bytes_per_s, rel=0.01)


MEASURED = (
    (CardCost(433.386e12, 0.503861e12, 17_192, 0.928e12), 2.2015),
    (CardCost(2096.087e12, 1.627731e12, 8_427, 2.814e12), 4.1246),
    (CardCost(2328.197e12, 1.935020e12, 10_050, 3.195e12), 4.6809),
    (CardCost(2611.965e12, 2.001223e12, 22_902, 3.613e12), 5.1561),
)
"""steps on an H200 behind a slow host, which decided the first: 1.3B with 4,096 tokens a chunk; the others are 14B"""


def test_a_step_that_the_host_decides_says_nothing_of_the_card() -> None:
    assumed = card_named("H200")
    assert assumed is not None
    found = fit(MEASURED, assumed)
    assert found.of_host == (0,)
    assert found.host_s == pytest.approx(128e-6, rel=0.01)
    assert found[:3] == pytest.approx((574e12, 3.64e12, 6.4e-6), rel=0.2)
    assert found.off < 0.02
    speeds = {name: getattr(found, name) for name in ("flops_per_s", "bytes_per_s", "kernel_s", "host_s")}
    card = replace(assumed, own=Constants(card="H200", torch="2", date="2026-11-26", rows=3, off=found.off, **speeds))
    for work, seconds in MEASURED:
        assert work.seconds(card) == pytest.approx(seconds, rel=0.03)
    # Of several that nothing explains none is left out, and no speed is beyond its peak.
    odd = [(work, seconds * factor) for (work, seconds), factor in zip(MEASURED, (1, 1, 3, 0.4), strict=True)]
    found = fit(odd, assumed)
    assert found.of_host == ()
    assert found.flops_per_s <= 1.0001 * assumed.bf16
    assert found.bytes_per_s <= 1.0001 * assumed.bandwidth


def test_constants_of_another_torch_or_card_are_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    known = {"date": "2026-11-26", "rows": 6, "off": 0.01, "flops_per_s": 4e14, "bytes_per_s": 3e12, "kernel_s": 6e-6}
    assert keep_constants(Constants(card="Card", torch="1.0", **known))
    assert keep_constants(Constants(card="Card", torch=torch.__version__, **known))
    found = own_constants("Card")
    assert found is not None
    assert found.torch == torch.__version__
    assert own_constants("Card Ti") is None
    text = state_file().read_text()
    for damaged in (text[:40], text.replace("3000000000000.0", "-1")):
        state_file().write_text(damaged)
        assert own_constants("Card") is None
    assert "is damaged and ignored; measure again" in caplog.text


def test_rows_are_chosen_by_number() -> None:
    assert rows_numbered("") == ROWS
    assert rows_numbered(" 3, 1") == (ROWS[2], ROWS[0])
    for wrong in ("0", "99", "first"):
        with pytest.raises(ConfigError, match="is no list of numbers from 1 to"):
            rows_numbered(wrong)
    assert all(row.steps >= _FEWEST for row in ROWS)
