"""Runs teach the next plan on their machine: ratios by card, model, weights and phase, kept in one small file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cards import gpu, put_in
from tests.support.metrics_file import read_metrics
from tests.support.sessions import train_here
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.events import StageEnded, StepDone
from wan_core.files import Roots
from wan_core.job.open import open_run
from wan_core.placement import FreeMemory
from wan_core.placement.cards import CARD_LIMIT
from wan_core.plan import MemoryPlan, report, report_run
from wan_core.plan import measured_ratios as module
from wan_core.plan.cards import card_of, card_of_size
from wan_core.plan.measured_ratios import SECONDS, Measured, MeasuredRatios, Ratio, keep_ratios, measured_ratios_of
from wan_core.plan.planning import plan_memory
from wan_core.plan.report import plan_sentences, report_of, report_settings
from wan_core.plan.workload import workload_of_run
from wan_core.sampler import SampleConfig
from wan_core.train import TrainConfig
from wan_core.train.meters import DeviceMeters

GIB = 1 << 30
CARD = "NVIDIA GeForce RTX 4090"


def ratio(phase: str = "step", value: float = 1.1, **changes: str) -> Ratio:
    known = {"card": CARD, "variant": "t2v", "scheme": "none", **changes}
    return Ratio(**known, phase=phase, ratio=value)


def test_a_ratio_is_that_of_its_card_model_weights_and_phase_within_bounds() -> None:
    runs = MeasuredRatios(
        (ratio(), ratio("preview", 4.0), ratio("save", 0.2), ratio(SECONDS, 3.0), ratio(card="other"))
    )
    assert runs.phases_of(CARD, "t2v", "none") == {"step": 1.1, "preview": 1.3, "save": 0.9, SECONDS: 3.0}
    for other in ((None, "t2v", "none"), (CARD, "i2v", "none"), (CARD, "t2v", "fp8")):
        assert runs.phases_of(*other) == {}


def test_newer_ratios_take_the_place_of_theirs_and_the_eldest_of_too_many_go(tmp_path: Path) -> None:
    roots = Roots({"runs": (str(tmp_path),)})
    keep_ratios([ratio(), ratio("save", 1.0)], roots)
    keep_ratios([ratio(value=1.2)], roots)
    assert [(one.phase, one.ratio) for one in measured_ratios_of(roots).ratios] == [("save", 1.0), ("step", 1.2)]
    keep_ratios([ratio(card=f"card {n}") for n in range(49)], roots)
    runs = measured_ratios_of(roots)
    assert len(runs.ratios) == 50
    assert runs.of(CARD, "t2v", "none", "save") is None
    assert runs.of(CARD, "t2v", "none", "step") == 1.2


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 1, "ratios": []}',
        '{"version": 2, "known": {"a": 7}}',
        '{"version": 2, "known": {"a": {"card": "x", "variant": "y", "scheme": "z", "phase": "step", "ratio": NaN}}}',
        '{"version": 2, "known": {"a": {"card": "x", "variant": "y", "scheme": "z", "phase": "step", "ratio": "1"}}}',
    ],
)
def test_a_damaged_or_foreign_file_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "_measured.json").write_text(text, encoding="utf-8")
    assert measured_ratios_of(Roots({"runs": (str(tmp_path),)})) == MeasuredRatios()


def step(number: int, peak: int, tflops: float) -> StepDone:
    return StepDone(
        step=number, steps=9, loss=1.0, lr=1.0, grad_norm=1.0, seconds=1.0, expert="auto", timestep_mean=1.0,
        memory={"cuda:0": {"now": 1, "peak": peak, "reserved": 2 * peak, "predicted": 1}}, tflops=tflops,
    )  # fmt: skip


def test_what_is_heard_is_compared_with_the_prediction_as_it_was_before_any_ratio() -> None:
    heard = Measured(
        variant="t2v",
        scheme="fp8_e4m3fn",
        predicted={"cuda:0": {"step": 10 * GIB, "preview": 4 * GIB, "save": GIB}},
        followed={"cuda:0": {"preview": 0.8}},
        tflops=100.0,
        name_of=lambda device: CARD if device == "cuda:0" else None,
    )
    for number in range(1, 8):
        heard.hear(step(number, 11 * GIB if number == 4 else 9 * GIB, 1.0 if number < 4 else 50.0))
    assert [one.phase for one in heard.ratios()] == ["step"], "four steps are too few for a time"
    heard.hear(step(8, 9 * GIB, 50.0))
    held = {"cuda:0": {"peak": 5 * GIB}, "cpu": {"peak": 1}}
    for stage in ("sample", "cache"):
        heard.hear(StageEnded(stage=stage, seconds=1.0, step=8, memory=held))
    found = {one.phase: one.ratio for one in heard.ratios()}
    assert found == {"step": 1.1, "preview": 1.0, SECONDS: 2.0}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyRun:
    """A tiny run with previews on a machine whose CPU plays a card with a name, and whose meters a test can turn."""
    train = TrainConfig(steps=2, save_every_n_steps=1, preview_every_n_steps=2, **ONE_LOOK)
    run = make_run(tmp_path, train=train, preview=SampleConfig(steps=1))
    run = replace(run, roots=replace(run.roots, folders={**run.roots.folders, "runs": (str(tmp_path),)}))
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "16")
    monkeypatch.setattr(module, "card_name", lambda _device: CARD)
    for user in ("workload", "planning"):
        monkeypatch.setattr(f"wan_core.plan.{user}.card_name", lambda _device: CARD)
    return run


@pytest.mark.lasts(3)
def test_a_run_says_per_phase_what_was_predicted_and_the_next_plan_follows_it(
    machine: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan_memory(
        workload_of_run(open_run(machine.directory, machine.roots)), FreeMemory(devices={"cpu": 16 * GIB})
    )
    predicted = before.estimate.devices["cpu"].phases
    assert before.ratios_followed() == {}

    def measured(plan: Any) -> Measured:
        """As of a card: nothing is compared where the CPU computes."""
        phases = {name: memory.phases for name, memory in plan.estimate.devices.items()}
        return Measured(
            variant=plan.job.file.variant.name, scheme=plan.job.scheme, predicted=phases,
            followed=plan.ratios_followed(), name_of=lambda _device: CARD,
        )  # fmt: skip

    def turned(peak: Callable[[], int]) -> None:
        reading = {"now": 1, "reserved": None}
        monkeypatch.setattr(DeviceMeters, "_present", lambda _self: {"cpu": {**reading, "peak": peak()}})

    monkeypatch.setattr(MemoryPlan, "measured", measured)
    turned(lambda: round(1.2 * predicted["step"]))
    train_here(machine)
    records = read_metrics(machine.directory / "metrics.jsonl")
    ended = {r["stage"]: r["memory"]["cpu"] for r in records if r["event"] == "stage_ended"}
    phases = {"load": "load", "evaluate": "evaluate", "sample": "preview", "save": "save"}
    assert {stage: held["predicted"] for stage, held in ended.items()} == {
        stage: predicted[phase] for stage, phase in phases.items()
    }
    assert {r["memory"]["cpu"]["predicted"] for r in records if r["event"] == "step"} == {predicted["step"]}

    kept = measured_ratios_of(machine.roots)
    assert {one.phase for one in kept.ratios} == {"load", "step", "evaluate", "preview", "save"}
    after = plan_memory(
        workload_of_run(open_run(machine.directory, machine.roots)), FreeMemory(devices={"cpu": 16 * GIB})
    )
    assert after.ratios_followed()["cpu"]["step"] == 1.2
    assert after.estimate.devices["cpu"].step == pytest.approx(1.2 * predicted["step"], abs=2)
    assert "step x1.20" in plan_sentences(after)
    assert report_run(machine.directory, machine.roots)["own_runs"]["cpu"]["step"] == 1.2
    again = after.measured()
    again.hear(step(1, 0, 1.0))
    again.hear(replace(step(2, 0, 1.0), memory={"cpu": {"peak": round(1.2 * predicted["step"])}}))
    assert [one.ratio for one in again.ratios()] == [pytest.approx(1.2, abs=1e-3)], "ratios do not multiply"


def test_a_plan_of_settings_follows_the_runs_of_this_machine_and_not_on_cards_it_need_not_have(
    machine: TinyRun, tmp_path: Path
) -> None:
    run = open_run(machine.directory, machine.roots)
    model, size = run.config.model, "64x64x9"
    keep_ratios([ratio(value=1.2, variant=run.file.variant.name)], machine.roots)
    here = report_settings(model, machine.roots, run.config.lora, run.config.train, size, [])
    assert here["own_runs"] == {"cpu": {"step": 1.2}}
    assert report_settings(model, machine.roots, run.config.lora, run.config.train, size, [16])["own_runs"] == {}


def test_settings_that_this_machine_cannot_hold_do_not_fit_although_nothing_limits_its_cpu(
    machine: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(machine.directory, machine.roots)
    of = (run.config.model, machine.roots, run.config.lora, run.config.train, "64x64x9")
    monkeypatch.delenv(CARD_LIMIT, raising=False)
    assert report_settings(*of, [])["fits"]
    monkeypatch.setattr(report, "total_bytes", lambda _device: 1 << 20)
    found = report_settings(*of, [])
    assert not found["fits"]
    assert found["verdict"].endswith("GiB on cpu, which has 0.0 GiB in all.")
    assert report_settings(*of, [16])["fits"], "cards that are named need not be here"


def test_the_order_of_two_cards_of_different_size_does_not_change_the_time(machine: TinyRun) -> None:
    run = open_run(machine.directory, machine.roots)
    of = (run.config.model, machine.roots, run.config.lora, run.config.train, "64x64x9")
    one, other = (report_settings(*of, cards) for cards in ([24, 12], [12, 24]))
    assert one["card"] == other["card"] == card_of_size(12).name
    assert one["step_seconds"] == other["step_seconds"]


def test_the_time_of_a_step_follows_this_machine_also_on_a_card_that_no_table_knows(
    machine: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = workload_of_run(open_run(machine.directory, machine.roots))
    plan = plan_memory(job, FreeMemory(devices={"cpu": 16 * GIB}))
    slow = ratio(SECONDS, 2.0, variant=job.file.variant.name)
    taught = replace(plan, job=replace(plan.job, measured_ratios=MeasuredRatios((slow,))))
    card = card_of_size(16)
    plain, slower = (report_of(one, card)["step_seconds"] for one in (plan, taught))
    assert report_of(taught, card)["own_runs"] == {"cpu": {SECONDS: 2.0}}
    assert slower == pytest.approx(2 * plain, abs=0.01)
    assert "time of a step x2.00" in plan_sentences(taught)

    import torch

    put_in(monkeypatch, gpu("NVIDIA Something New", (12, 0)))
    for user in ("workload", "planning"):
        monkeypatch.setattr(f"wan_core.plan.{user}.card_name", lambda _device: "NVIDIA Something New")
    assert card_of(torch.device("cuda:0"), job) is None
    new = replace(job, measured_ratios=MeasuredRatios((replace(slow, card="NVIDIA Something New"),)))
    found = card_of(torch.device("cuda:0"), new)
    assert found is not None
    assert found.name == "NVIDIA Something New"
