"""Which saved step is suggested, on curves whose truth is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from wan_core.events import Evaluated, to_line
from wan_core.metrics import Suggestion, read_experts, read_measured, suggest, suggest_of_pair
from wan_core.metrics.best import overfits_from
from wan_core.metrics.measured import Measured
from wan_core.metrics.records import LossCurve

STEPS = range(0, 1300, 100)
RNG = np.random.default_rng


def measured(losses, clips: int = 4, spread: float = 0.0, seed: int = 0, held_out: bool = True) -> list[Measured]:
    """Evaluations with these losses; clips differ by a constant each, and by `spread` at random."""
    rng = RNG(seed)
    own = rng.normal(size=clips) * 0.1
    found = []
    for step, loss in zip(STEPS, losses, strict=False):
        of_clips = loss + own - own.mean() + spread * rng.normal(size=clips)
        found.append(Measured(step, float(of_clips.mean()), held_out, tuple(map(float, of_clips))))
    return found


def training(first: float, last: float, steps: int = 1200, seed: int = 0) -> LossCurve:
    """A training loss that falls steadily, under the noise of its noise levels."""
    number = np.arange(1, steps + 1)
    losses = first + (last - first) * number / steps + 0.1 * RNG(seed).normal(size=steps)
    return LossCurve(number, losses)


def parabola(bottom: int) -> list[float]:
    return [0.4 + 0.1 * ((step - bottom) / 600) ** 2 for step in STEPS]


def test_the_lowest_held_out_loss_is_suggested_and_the_rise_after_it_is_over_fitting():
    found = suggest(measured(parabola(500), spread=0.002), list(STEPS), curve=training(0.5, 0.2))
    assert (found.step, found.overfits_from) == (500, 500)
    assert found.why.startswith("Step 500 is suggested: its held-out loss of 0.3997 ")
    assert "below the 0.4705 before" in found.why


def test_a_steady_fall_suggests_the_last_step_and_is_no_over_fitting():
    falling = measured([0.5 - 0.1 * step / 1200 for step in STEPS], spread=0.002)
    found = suggest(falling, list(STEPS), curve=training(0.5, 0.4))
    assert (found.step, found.overfits_from) == (1200, None)


def test_only_saved_steps_are_suggested():
    assert suggest(measured(parabola(500)), [200, 400, 800]).step == 400


@pytest.mark.parametrize(("clips", "most"), [(1, 0.05), (4, 0.05), (8, 0.05)])
def test_noise_alone_hardly_ever_gets_a_star_or_a_mark(clips, most):
    """Losses around one value: of 200 such runs at most 5 % are told a step, and 1 % that they over-fit."""
    stars = marks = 0
    for seed in range(200):
        found = suggest(
            measured([0.5] * len(STEPS), clips=clips, spread=0.02, seed=seed),
            list(STEPS),
            curve=training(0.5, 0.5, seed=seed),
        )
        stars += found.step is not None
        marks += found.overfits_from is not None
        assert found.step is not None or found.why.startswith("No step is suggested: the held-out loss went from 0.")
    assert stars <= most * 200
    assert marks <= 2


def test_the_same_noise_does_not_hide_a_real_minimum():
    found = [suggest(measured(parabola(500), spread=0.02, seed=seed), list(STEPS)).step for seed in range(100)]
    assert sum(step is not None and 300 <= step <= 700 for step in found) >= 80


def test_a_rise_while_training_does_not_fall_is_no_over_fitting():
    points = measured(parabola(500), spread=0.002)
    assert overfits_from(points, training(0.5, 0.5)) is None
    assert overfits_from(points, training(0.5, 0.2)) == 500


@pytest.mark.parametrize(
    ("points", "saved", "options", "why"),
    [
        ([], [], {}, "no evaluation loss was measured"),
        (measured(parabola(500), held_out=False), list(STEPS), {}, "measured on training clips"),
        (measured(parabola(500)), [400], {}, "at two saved steps or more"),
        (measured(parabola(500))[1:], list(STEPS), {}, "the held-out loss before training"),
        (
            measured(parabola(500)),
            list(STEPS),
            {"nothing_to_learn": "No step is suggested: the clips are random tensors."},
            "random tensors",
        ),
        (measured(parabola(500)), [400, 800], {"broken": {400: "black", 800: "grey"}}, "look broken (black)"),
        (measured([0.5 + step / 1e4 for step in STEPS]), list(STEPS), {}, "from 0.5000 before training to 0.51"),
    ],
)
def test_without_a_signal_there_is_a_sentence_and_no_step(points, saved, options, why):
    found = suggest(points, saved, **options)
    assert found.step is None
    assert found.why.startswith("No step is suggested: ")
    assert why in found.why


def test_a_fall_that_one_step_alone_shows_is_held_against_twice_the_noise():
    """By 0.0032 of 0.5 it falls, where half a percent, 0.0025, is noise between any two steps."""
    found = suggest(measured([0.4968 if step == 500 else 0.5 for step in STEPS]), list(STEPS))
    assert found.step is None
    assert found.why.endswith(
        " to 0.4968 at best, at that step alone; changes smaller than 0.0050 that neighbouring steps do not share are "
        "noise."
    )
    beside = {400: 0.497, 500: 0.4968, 600: 0.497}
    shared = suggest(measured([beside.get(step, 0.5) for step in STEPS]), list(STEPS))
    assert shared.why.endswith(" before training. Changes smaller than 0.0025 between steps are noise.")


def test_a_step_with_broken_previews_is_passed_over():
    assert suggest(measured(parabola(500)), list(STEPS), broken={500: "black frames"}).step == 400


def test_evaluations_are_read_back_as_they_were_written(tmp_path: Path):
    """A step measured again counts once; damaged lines and values without a number are left out."""
    file = tmp_path / "metrics.jsonl"
    lines = [
        to_line(Evaluated(step=100, eval_loss=0.9, held_out=True, per_clip=[0.9])),
        to_line(Evaluated(step=0, eval_loss=1.0, held_out=True, per_clip=[1.0])),
        to_line(Evaluated(step=100, eval_loss=0.5, held_out=True, per_clip=[0.5])),
        to_line(Evaluated(step=200, eval_loss=math.nan, held_out=True)),
        '{"event": "evaluated", "step": "300", "eval_loss": 1}\n',
        json.dumps({"event": "note", "text": '"event": "evaluated"'}) + "\n",
        '{"event": "evaluated", "step": 400',
    ]
    file.write_text("".join(lines))
    assert read_measured(file) == [Measured(0, 1.0, True, (1.0,)), Measured(100, 0.5, True, (0.5,))]
    assert read_measured(tmp_path / "none.jsonl") == []


def written(file: Path, values: list[tuple[str, int, float, int | None]]) -> Path:
    """Evaluations of both experts as (expert, step of the run, loss, steps of its own), of four clips each."""
    events = [
        Evaluated(step=step, eval_loss=loss, held_out=True, per_clip=4 * [loss], expert=expert, expert_step=own)
        for expert, step, loss, own in values
    ]
    file.write_text("".join(map(to_line, events)))
    return file


TURNS = [
    *[("high", 0, 1.0, 0), ("low", 50, 0.6, 0), ("low", 75, 0.5, 25), ("high", 100, 0.5, 50)],
    *[("low", 150, 0.4, 50), ("low", 200, 0.7, 100), ("high", 200, 0.3, 100)],
]
"""Turns of 50 steps: what rested is measured when it comes again, with the steps it had when it left"""


def test_a_step_of_a_pair_is_judged_by_what_each_expert_was_at_it(tmp_path: Path):
    found = read_measured(written(tmp_path / "metrics.jsonl", TURNS))
    wanted = {0: (1.0, 0.6), 50: (0.5, 0.6), 75: (0.5, 0.5), 100: (0.5, 0.4), 150: (0.3, 0.4), 200: (0.3, 0.7)}
    assert {m.step: m.loss for m in found} == {step: pytest.approx(sum(pair) / 2) for step, pair in wanted.items()}
    assert all(m.settled and m.per_clip == 4 * (pytest.approx(m.loss),) for m in found)
    early = read_measured(written(tmp_path / "metrics.jsonl", TURNS[:3]))
    assert [m.step for m in early if m.settled] == [0], "the high noise expert is not measured yet as it left"


def judged(values: list[tuple[str, int, float, int | None]], saved: list[int], file: Path) -> Suggestion:
    experts = read_experts(written(file, values))
    return suggest_of_pair(experts, saved, curves={name: training(0.5, 0.2) for name in experts})


def test_the_star_of_a_pair_says_who_was_judged(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    alone = judged([("high", 0, 1.0, 0), ("high", 50, 0.8, 50), ("high", 75, 0.9, 75)], [50, 75], file)
    assert alone.step == 50
    assert alone.why.endswith(" So far only the high noise expert was measured; the other one is measured at its turn.")
    both = judged(TURNS, [75, 150, 200], file)
    assert both.step == 150
    assert both.why.endswith(" The loss is the mean of both experts at that step.")
    early = judged(TURNS[:3], [50, 75], file)
    assert early.step is None, "at step 75 the high noise expert is not measured yet"
    assert "needs the held-out loss before training and at two saved steps or more. The loss is" in early.why


def test_each_expert_over_fits_by_itself(tmp_path: Path):
    """The low noise expert rises, while the training loss of the high one is another number altogether."""
    high = [("high", step, 1.0 - step / 1000, step) for step in range(0, 500, 100)]
    low = [("low", 400 + own, 0.3 + abs(own - 200) / 1000, own) for own in range(0, 600, 100)]
    experts = read_experts(written(tmp_path / "metrics.jsonl", [*high, *low]))
    falls, level = training(0.5, 0.2), training(0.5, 0.5)
    for curves, wanted in (({"high": level, "low": falls}, 600), ({"high": falls, "low": level}, None)):
        assert suggest_of_pair(experts, list(range(100, 1000, 100)), curves=curves).overfits_from == wanted
