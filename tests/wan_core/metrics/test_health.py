"""What is marked in a curve, and what is not."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from wan_core.events import Evaluated, Event, Marked, StepDone
from wan_core.metrics import HealthWatch, JsonlSink


def step(number: int, loss: float, norm: float, expert: str = "single") -> StepDone:
    usual = {"steps": 1000, "lr": 1e-4, "seconds": 1.0, "timestep_mean": 500.0}
    return StepDone(step=number, loss=loss, grad_norm=norm, expert=expert, **usual)  # type: ignore[arg-type]


def usual_steps(first: int, count: int, seed: int = 0) -> list[Event]:
    """Losses and gradients as training has them: they differ by noise level, by a factor of ten and more."""
    draw = random.Random(seed)
    return [step(first + i, draw.uniform(0.03, 0.4), 10 ** draw.uniform(-1.5, 0.0)) for i in range(count)]


def marks_of(events: list[Event], file: Path = Path("none.jsonl")) -> list[Marked]:
    watch = HealthWatch(file)
    return [mark for event in events for mark in watch.hear(event)]


def evaluations(losses: list[float], every: int = 10, expert: str = "") -> list[Event]:
    """Of three clips, which agree about every change."""
    return [
        Evaluated(step=i * every, eval_loss=loss, per_clip=[0.9 * loss, loss, 1.1 * loss], held_out=True, expert=expert)
        for i, loss in enumerate(losses)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_usual_run_has_no_mark(seed: int) -> None:
    draw = random.Random(seed)
    falling = [0.3 * 0.98**i * draw.uniform(0.99, 1.01) for i in range(40)]
    assert marks_of([*usual_steps(1, 1000, seed), *evaluations(falling)]) == []


def test_gradients_that_grow_from_nothing_are_no_explosion() -> None:
    """A LoRA begins at 0, and its gradients with it."""
    draw = random.Random(1)
    events: list[Event] = [step(i, draw.uniform(0.1, 0.3), 0.001 * 1.03**i) for i in range(1, 200)]
    assert marks_of(events) == []


def test_an_explosion_is_marked_once_and_again_after_it_calmed_down() -> None:
    burst = [step(i, 2.0, 50.0) for i in range(101, 121)]
    events = [*usual_steps(1, 100), *burst, *usual_steps(121, 200), *(step(i, 2.0, 50.0) for i in range(321, 341))]
    marks = marks_of(events)
    assert [mark.kind for mark in marks] == ["explosion", "explosion"]
    assert 101 <= marks[0].step <= 106
    assert marks[0].text.startswith(f"Training diverges at step {marks[0].step}: in 8 steps the gradients grew to ")
    assert "lower learning_rate" in marks[0].text
    assert 321 <= marks[1].step <= 326


@pytest.mark.parametrize("usual", [8, 20, 50])
def test_a_run_that_diverges_in_its_first_steps_says_so(usual: int) -> None:
    """Later its usual loss is that of the divergence, and nothing grows any more."""
    events = [*usual_steps(1, usual), *(step(i, 6.0, 80.0) for i in range(usual + 1, 200))]
    (mark,) = marks_of(events)
    assert mark.kind == "explosion"
    assert usual < mark.step <= max(16, usual + 8)


def test_a_plateau_is_marked_with_the_step_it_began_after() -> None:
    falling = [0.3, 0.25, 0.22, 0.20, 0.19]
    (mark,) = marks_of(evaluations([*falling, *[0.1901, 0.1898, 0.1903, 0.1899, 0.1902, 0.19, 0.1901, 0.1899]]))
    assert (mark.kind, mark.step) == ("plateau", 100)
    assert mark.text.startswith("The evaluation loss has not fallen since step 40,")


def test_evaluations_that_are_not_finite_are_no_figures_and_hide_no_plateau() -> None:
    """The worker hears them as they are; on their way out they become null."""
    bad = [Evaluated(step=step, eval_loss=loss, held_out=True) for step, loss in ((1, math.nan), (2, None))]
    flat = evaluations([0.3, *[0.19] * 12])
    assert marks_of([flat[0], *bad, *flat[1:]]) == marks_of(flat)
    assert [mark.kind for mark in marks_of(flat)] == ["plateau"]


def test_each_expert_of_a_pair_is_watched_by_itself() -> None:
    high = evaluations([0.2, 0.19, 0.18], expert="high")
    low = [Evaluated(step=30, eval_loss=0.4, expert="low"), Evaluated(step=40, eval_loss=0.7, expert="low")]
    (mark,) = marks_of([*high, *low])
    assert (mark.kind, mark.step, mark.expert) == ("worse", 40, "low")
    assert mark.text.startswith(
        "The low noise expert: The evaluation loss rose from 0.4000 before training to 0.7000 at"
    )


def test_a_resumed_run_knows_its_base_and_repeats_no_mark(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    sink, watch = JsonlSink(file), HealthWatch(file)

    def heard(watch: HealthWatch, event: Event) -> list[str]:
        sink(event)
        marks = watch.hear(event)
        for mark in marks:
            sink(mark)
        return [mark.kind for mark in marks]

    assert heard(watch, Evaluated(step=0, eval_loss=0.2)) == []
    resumed = HealthWatch(file)
    assert heard(resumed, Evaluated(step=10, eval_loss=0.31)) == ["worse"]
    assert heard(resumed, Evaluated(step=20, eval_loss=0.4)) == []
    assert heard(HealthWatch(file), Evaluated(step=30, eval_loss=0.5)) == []
    sink.close()
