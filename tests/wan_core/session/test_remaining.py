"""The time left counts what is done beside the steps, exactly as often as it will be done."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import cast

from wan_core.events import StageEnded, StepDone
from wan_core.session.event_sinks import Remaining
from wan_core.train import TrainConfig

STEP = StepDone(step=10, steps=30, loss=1.0, lr=1e-4, grad_norm=1.0, seconds=2.0, expert="auto", timestep_mean=0.5)


def test_what_is_due_is_counted_as_if_step_by_step() -> None:
    draw = random.Random(3)
    for _ in range(300):
        steps, save, measure, preview = (draw.randint(1, 40) for _ in range(4))
        measure *= draw.randint(0, 1)
        train = TrainConfig(
            steps=steps, save_every_n_steps=save, eval_every_n_steps=measure, preview_every_n_steps=preview
        )
        step = draw.randint(1, steps)
        rest = range(step, steps + 1)
        saves = {n for n in rest if n % save == 0 or n == steps}
        measures = saves | {n for n in rest if measure and n % measure == 0}
        previews = {n for n in rest if n % preview == 0 or n == steps}
        assert Remaining(train).to_come(step) == {
            "save": len(saves), "evaluate": len(measures), "sample": len(previews)
        }  # fmt: skip
    assert Remaining(replace(train, preview_every_n_steps=0)).to_come(1)["sample"] == 0


def test_a_step_tells_what_is_still_to_come_beside_the_steps() -> None:
    train = TrainConfig(steps=30, save_every_n_steps=10, preview_every_n_steps=30)
    remaining = Remaining(train)
    assert cast("StepDone", remaining.with_predicted(STEP)).beside_left == 0, "nothing was measured yet"
    for stage, seconds in (("evaluate", 4.0), ("evaluate", 6.0), ("sample", 20.0), ("load", 99.0)):
        remaining.with_predicted(StageEnded(stage=stage, seconds=seconds, step=0))
    told = cast("StepDone", remaining.with_predicted(STEP))
    assert told.beside_left == 3 * 5.0 + 20.0
    assert told.left(2.0) == 20 * 2.0 + 35.0
    assert replace(told, seconds_left=12.0).left(2.0) == 12.0, "its hours end before"
