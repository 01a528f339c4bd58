"""The learning rate of every step, against diffusers where it has the schedule, else against the formula."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.support.sessions import train_here
from tests.support.tiny_run import make_run
from wan_core.errors import ConfigError
from wan_core.events import Note, StepDone
from wan_core.train import TrainConfig
from wan_core.train.learning_rate import learning_rate_at

pytestmark = [pytest.mark.lasts(1)]

STEPS = 40


def course(scheduler: str, **changes: object) -> list[float]:
    config = TrainConfig(steps=STEPS, learning_rate=2e-4, lr_scheduler=scheduler, **changes)  # type: ignore[arg-type]
    return [learning_rate_at(step, config) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize(
    ("scheduler", "changes", "named"),
    [
        ("constant", {}, {}),
        ("linear", {}, {}),
        ("cosine", {}, {}),
        ("cosine_with_restarts", {"lr_scheduler_num_cycles": 4}, {"num_cycles": 4}),
        ("polynomial", {"lr_scheduler_power": 1.7}, {"power": 1.7}),
    ],
)
def test_the_rate_is_that_of_diffusers(scheduler: str, changes: dict[str, object], named: dict[str, object]) -> None:
    optimization = pytest.importorskip("diffusers.optimization")
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=2e-4)
    if scheduler == "polynomial":
        make = optimization.get_polynomial_decay_schedule_with_warmup
        theirs = make(optimizer, 0, STEPS, lr_end=2e-5, **named)
        changes = {**changes, "lr_scheduler_min_lr_ratio": 0.1}
    else:
        theirs = optimization.get_scheduler(scheduler, optimizer, num_warmup_steps=0, num_training_steps=STEPS, **named)
    rates = []
    for _ in range(STEPS):
        rates.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert course(scheduler, **changes) == pytest.approx(rates, rel=1e-9, abs=1e-16)


def test_rex_and_warm_up_stable_decay_are_their_formulas() -> None:
    left = [1 - step / STEPS for step in range(STEPS)]
    assert course("rex") == pytest.approx([2e-4 * p / (1 / 2 + p / 2) for p in left])
    stays = STEPS * 3 // 4
    falls = [2e-4 * (1 - math.sqrt(step / (STEPS - stays))) for step in range(STEPS - stays)]
    assert course("wsd", lr_decay_share=0.25) == pytest.approx([2e-4] * stays + falls)


def test_every_schedule_warms_up_in_a_line_and_never_falls_below_its_least() -> None:
    for scheduler in ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex", "wsd"):
        rates = course(scheduler, lr_warmup_share=0.1, lr_scheduler_min_lr_ratio=0.25)
        assert rates == course(scheduler, lr_warmup_steps=4, lr_scheduler_min_lr_ratio=0.25)
        assert rates[:4] == pytest.approx([5e-5, 1e-4, 1.5e-4, 2e-4])
        assert rates[4] == 2e-4
        assert min(rates[4:]) >= 5e-5


def test_warm_up_is_given_once_and_ends_within_the_run() -> None:
    with pytest.raises(ConfigError, match="Set one of them to 0"):
        TrainConfig(steps=10, lr_warmup_steps=2, lr_warmup_share=0.1)
    with pytest.raises(ConfigError, match="lr_warmup_steps 10 is not below steps 10"):
        TrainConfig(steps=10, lr_warmup_share=0.98)


def test_a_run_trains_with_the_rate_of_its_batch_and_says_so(tmp_path: Path) -> None:
    train = TrainConfig(
        steps=2,
        preview_every_n_steps=0,
        eval_items=0,
        gradient_accumulation_steps=4,
        learning_rate=1e-4,
        lr_scheduler="constant",
        lr_scaling="sqrt",
    )
    run = make_run(tmp_path, train=train)
    events = train_here(run)
    assert [event.lr for event in events if isinstance(event, StepDone)] == pytest.approx([2e-4, 2e-4])
    told = [event.text for event in events if isinstance(event, Note) and event.text.startswith("Learning rate")]
    assert told == [
        "Learning rate 0.0002: 0.0001 x 2, because lr_scaling is sqrt and a step trains on 4 clips (batch size 1 x 4 "
        "accumulated x 1 in parallel)."
    ]
