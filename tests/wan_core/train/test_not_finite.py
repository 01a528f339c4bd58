"""Losses, gradients and weights that are not finite: what is skipped, what ends the run, what it resumes from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.sessions import NanFrom, Steered, Straight, make_trainer, of, same, state, train_here
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run, steady
from wan_core.errors import TrainingError
from wan_core.events import CheckpointSaved, Evaluated, Event, StepDone, StepSkipped
from wan_core.job.config import read_status
from wan_core.train import SaveStore

pytestmark = pytest.mark.lasts(0.3)


def test_one_nan_gradient_skips_that_step_whole(tmp_path: Path) -> None:
    events: list[Event] = []
    trainer = make_trainer(tmp_path, steady(), emit=events.append)
    before: dict[str, torch.Tensor] = {}

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        if trainer.step == 2:  # the third step is being computed
            gradient = gradient.clone()
            gradient.view(-1)[7] = math.nan
        return gradient

    next(iter(trainer.parameters.values())).register_hook(poison)

    def between(step: int) -> None:
        nonlocal before
        if step == 2:
            before = trainer.state()
        if step == 3:
            assert same(trainer.state(), before)
            assert all(p.grad is None for p in trainer.parameters.values())
            assert trainer.progress() == {"step": 2}, "a resume tries the third step again"

    trainer.run(6, between)
    (skipped,) = of(events, StepSkipped)
    assert (skipped.step, skipped.reason, skipped.in_a_row) == (3, "the gradients are not finite", 1)
    assert [e.step for e in of(events, StepDone)] == [1, 2, 4, 5, 6]
    assert trainer.bad_in_a_row == 0
    assert all(torch.isfinite(p).all() for p in trainer.parameters.values())


def saves_and_marks(run: TinyRun) -> tuple[list[int], list[int]]:
    store = SaveStore(run.directory)
    return store.steps(), [step for step in store.steps() if store.is_suspect(step)]


def test_a_streak_ends_the_run_saves_nothing_and_names_the_last_good_step(tmp_path: Path, straight: Straight) -> None:
    """Step 5 ruins the weights: nothing after it is finite. Saves are due at 2, 4, 6, 8."""
    run = make_run(tmp_path, train=steady(steps=12, max_bad_steps=4))
    events: list[Event] = []
    expected = (
        "4 steps in a row gave no usable loss (NaN or infinity), the last one step 9. Saved step 4 is the last good "
        "one. Without a change, it would stop here again. What helps most, in this order: learning_rate "
        f"{run.config.train.learning_rate / 2:g} instead of {run.config.train.learning_rate:g} (begins a new run); "
        "base_precision bf16 or fp32 in Load Wan Model (begins a new run)."
    )
    for _ in range(2):  # and again: there is no dead end
        events.clear()
        with pytest.raises(TrainingError) as refusal:
            train_here(
                run, emit=events.append, target=NanFrom(*range(6 if not SaveStore(run.directory).steps() else 2, 99))
            )
        assert str(refusal.value) == expected
        assert [(e.step, e.in_a_row) for e in of(events, StepSkipped)] == [(6, 1), (7, 2), (8, 3), (9, 4)]
        assert saves_and_marks(run) == ([2, 4], [])
        latest = SaveStore(run.directory).latest()
        assert latest is not None
        assert (latest.step, latest.progress) == (4, {"step": 4})
    assert (read_status(run.directory).state, read_status(run.directory).reason) == ("failed", expected)
    assert [e.name for e in events if isinstance(e, CheckpointSaved | Evaluated)] == []
    for file in run.directory.rglob("*.safetensors"):
        assert all(torch.isfinite(t).all() for t in load_file(file).values()), file.name
    train_here(run)  # with its cause mended, the rest equals a run that never failed
    assert same(state(run, 12), straight(steady(steps=12)))


def test_a_save_after_which_nothing_was_finite_is_passed_over_until_something_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(steps=8, max_bad_steps=3))
    with pytest.raises(TrainingError, match="Saved step 2 is the last good one"):
        train_here(run, target=NanFrom(*range(5, 99)))
    assert saves_and_marks(run) == ([2, 4], [4])
    latest = SaveStore(run.directory).latest()
    assert latest is not None
    assert latest.step == 2
    before = (run.directory / "saves" / "step-000004" / "state.safetensors").stat().st_mtime_ns
    train_here(run)
    assert saves_and_marks(run) == ([2, 4, 6, 8], [])
    assert (run.directory / "saves" / "step-000004" / "state.safetensors").stat().st_mtime_ns == before


def test_a_save_whose_evaluation_was_not_finite_is_passed_over_though_a_step_after_it_was(tmp_path: Path) -> None:
    """Saves and looks are due at 2 and 4; a look and a step ask once. The one at 4 is not finite, step 5 is."""
    run = make_run(tmp_path, train=steady(steps=12, max_bad_steps=3, **ONE_LOOK))
    with pytest.raises(TrainingError, match="Saved step 2 is the last good one"):
        train_here(run, target=NanFrom(7, *range(9, 99)))
    assert saves_and_marks(run) == ([2, 4], [4])
    (run.directory / "saves" / "step-000004" / "suspect.txt").unlink()
    with pytest.raises(TrainingError, match="Saved step 2 is the last good one"):  # what an earlier session saw counts
        train_here(run, target=NanFrom(*range(1, 99)))


def test_a_save_that_is_due_in_a_streak_comes_with_the_next_good_step(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(steps=9, save_every_n_steps=3, **ONE_LOOK))
    events = train_here(run, target=NanFrom(4, 5, 8))  # one call to evaluate
    assert [e.step for e in of(events, CheckpointSaved)] == [5, 7, 9]
    assert [e.step for e in of(events, Evaluated)] == [0, 5, 7, 9]


@pytest.mark.parametrize("max_bad_steps", [pytest.param(2, marks=pytest.mark.soak), 10])
def test_a_run_none_of_whose_steps_counted_is_not_done(tmp_path: Path, max_bad_steps: int) -> None:
    """Also where its steps are over before the streak is."""
    run = make_run(tmp_path, train=steady(steps=6, max_bad_steps=max_bad_steps))
    events: list[Event] = []
    with pytest.raises(
        TrainingError,
        match=r"No good step was saved\. No step was finite: without a change, .* order: base_precision bf16",
    ):
        train_here(run, emit=events.append, target=NanFrom(*range(1, 7)))
    assert len(of(events, StepSkipped)) == min(max_bad_steps, 6)
    assert saves_and_marks(run) == ([], [])
    assert read_status(run.directory).state == "failed"


@pytest.mark.parametrize("also", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_last_step_that_was_not_finite_is_done_once_the_weights_prove_good(
    tmp_path: Path, straight: Straight, also: int
) -> None:
    """What would come next is tried: the seventh draw is finite, or the ninth, and trains nothing."""
    run = make_run(tmp_path, train=steady())
    target = NanFrom(*range(6, 7 + also))
    events = train_here(run, target=target)
    assert events[-1].state == "done"  # type: ignore[attr-defined]
    assert target.calls == 7 + also
    assert [e.step for e in of(events, CheckpointSaved)] == [2, 4, 6]
    assert [e.step for e in of(events, StepSkipped)] == [6]
    assert same(state(run, 6), straight(steady(steps=5)))


def test_a_stop_in_a_streak_keeps_the_steps_before_it_and_a_resume_tries_the_streak_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(save_every_n_steps=100))
    control, events = Steered(), list[Event]()

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepSkipped):
            control.reason = "stopped by the user"

    train_here(run, control, emit=emit, target=NanFrom(4))
    assert (events[-1].state, events[-1].step) == ("stopped", 3)  # type: ignore[attr-defined]
    assert saves_and_marks(run) == ([3], [])
    assert [e.step for e in of(train_here(run), StepDone)] == [4, 5, 6]


def test_a_queue_of_few_steps_does_not_end_in_a_streak_so_it_always_gets_on(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady())
    events = train_here(run, target=NanFrom(1, 2, 3), max_steps=2)
    assert (events[-1].state, events[-1].step) == ("stopped", 4)  # type: ignore[attr-defined]
    assert saves_and_marks(run) == ([4], [])


def test_bad_steps_that_are_not_in_a_row_do_not_add_up(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(steps=5, max_bad_steps=2))
    events = train_here(run, target=NanFrom(1, 3, 5))
    assert [e.in_a_row for e in of(events, StepSkipped)] == [1] * 3
    assert read_status(run.directory).state == "done"
