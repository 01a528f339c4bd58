"""Both experts of a pair at the same time, each on a device of its own: as in turns, bit for bit, and back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.sessions import Steered, train_here
from tests.support.tiny_run import TinyRun, make_pair_run
from tests.wan_core.session.test_pair import PREVIEW, SETTINGS, STEPS, files
from wan_core.errors import OutOfMemory, TrainingError
from wan_core.events import Event, Note, StepDone
from wan_core.files import atomic_write_json
from wan_core.job.config import read_run, read_status
from wan_core.lora import LoraConfig
from wan_core.placement import EXPERT_PER_GPU, PlacementConfig
from wan_core.session import training
from wan_core.train import SaveStore, true_velocity
from wan_core.train.trainer import Trainer

pytestmark = pytest.mark.lasts(1)

APART = PlacementConfig(mode=EXPERT_PER_GPU, devices="cpu,cpu:0")
"""two names of the CPU stand for two cards"""


def place(run: TinyRun, placement: PlacementConfig) -> None:
    config = read_run(run.directory)
    changed = replace(config, model=config.model.with_placement(placement))
    atomic_write_json(run.directory / "run.json", changed.to_dict())


def losses(events: list[Event]) -> dict[str, list[float]]:
    """By expert, in order of its own steps."""
    found: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, StepDone):
            found.setdefault(event.expert, []).append(event.loss)
    return found


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyRun, dict[str, list[float]]]:
    run = make_pair_run(tmp_path_factory.mktemp("in turn"), **SETTINGS)
    return run, losses(train_here(run))


def test_at_once_each_expert_trains_as_in_turn(
    tmp_path: Path, in_turn: tuple[TinyRun, dict[str, list[float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[int], list[int]]] = []
    trained = training.train_at_once

    def counted(experts: list, until: list[int], is_due: object) -> bool:
        calls.append(([one.step for one in experts], until))
        return trained(experts, until, is_due)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "train_at_once", counted)
    run = make_pair_run(tmp_path, preview=PREVIEW, **SETTINGS)
    place(run, APART)
    events = train_here(run)
    assert calls == [([0, 0], [3, 3]), ([2, 2], [3, 3])], "six and four steps; a save is due after four of the run"
    assert losses(events) == in_turn[1]
    steps = [event.step for event in events if isinstance(event, StepDone)]
    assert steps == list(range(1, STEPS + 1))
    assert files(run) == files(in_turn[0])


@pytest.mark.soak
def test_a_run_goes_from_turns_to_both_at_once_and_back(
    tmp_path: Path, in_turn: tuple[TinyRun, dict[str, list[float]]]
) -> None:
    run = make_pair_run(tmp_path, **SETTINGS)
    train_here(run, max_steps=3)
    place(run, APART)
    train_here(run, max_steps=5)
    place(run, PlacementConfig(devices="cpu"))
    train_here(run)
    assert files(run) == files(in_turn[0])


def test_a_stop_and_an_error_in_one_thread_end_both_and_lose_nothing(
    tmp_path: Path, in_turn: tuple[TinyRun, dict[str, list[float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_pair_run(tmp_path, **SETTINGS)
    place(run, APART)
    step = Trainer._train_step

    def fails(self: Trainer, number: int) -> None:
        if number == 2 and self.config.expert == "low":
            raise RuntimeError("planted")
        step(self, number)

    with monkeypatch.context() as planted:
        planted.setattr(Trainer, "_train_step", fails)
        with pytest.raises(RuntimeError, match="planted"):
            train_here(run)
    assert "wan experts" not in {thread.name.rpartition("_")[0] for thread in threading.enumerate()}
    control = Steered()

    def stops(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 3:
            control.reason = "stopped by the user"

    train_here(run, control, emit=stops)
    assert 3 <= read_status(run.directory).step <= 4, "the other expert ends its step"
    train_here(run)
    assert files(run) == files(in_turn[0])


def test_with_dropout_they_take_turns_and_the_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "train_at_once", None)  # called by nobody
    run = make_pair_run(tmp_path, lora=LoraConfig(rank=4, rank_dropout=0.1), **{**SETTINGS, "steps": 4})
    place(run, APART)
    events = train_here(run)
    assert sum(map(len, losses(events).values())) == 4
    said = [event.text for event in events if isinstance(event, Note)]
    assert sum(text.startswith("With dropout the experts train in turn") for text in said) == 1


def test_memory_that_runs_out_in_the_update_of_one_saves_no_half_of_it(
    tmp_path: Path, in_turn: tuple[TinyRun, dict[str, list[float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_pair_run(tmp_path, **{**SETTINGS, "save_every_n_steps": 2})
    place(run, APART)
    step = Trainer._train_step

    def fails(self: Trainer, number: int) -> None:
        if (self.config.expert, number) != ("high", 2):
            return step(self, number)
        update = self.optimizer.step

        def half_done(rate: float) -> float:
            update(rate)
            raise torch.OutOfMemoryError("planted")

        with pytest.MonkeyPatch.context() as here:
            here.setattr(self.optimizer, "step", half_done)
            return step(self, number)

    with monkeypatch.context() as planted:
        planted.setattr(Trainer, "_train_step", fails)
        with pytest.raises(OutOfMemory):
            train_here(run)
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    assert saved.expert_steps == [1, 1], "the update of the high noise expert was half done"
    train_here(run)
    assert files(run)[:3] == files(in_turn[0])[:3]


def test_a_step_that_is_not_finite_is_said_to_be_of_its_expert(tmp_path: Path) -> None:
    run = make_pair_run(tmp_path, **{**SETTINGS, "max_bad_steps": 1})
    place(run, APART)
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr("wan_core.train.objective.true_velocity", lambda batch: true_velocity(batch) * float("nan"))
        with pytest.raises(TrainingError, match="noise expert, counted in its own steps"):
            train_here(run)
