"""What a run says of its learning rate and of a loss that rises: far off for every model, beyond the tooltip's range
for released ones."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.support.sessions import of, train_here, warnings
from tests.support.tiny_run import ONE_LOOK, make_run, steady
from wan_core.events import Evaluated, Note
from wan_core.job import remarks
from wan_core.job.remarks import lower_rate, rate_remark, still_remark
from wan_core.train import TrainConfig, Trainer


@pytest.mark.parametrize(
    ("optimizer", "rate", "says"),
    [
        ("adamw", 1e-4, ""),
        ("adamw", 5e-5, ""),
        ("bnb_adamw8bit", 3e-4, ""),
        ("adamw", 1e-3, "for adamw, 5e-05 to 0.0003: the run may diverge"),
        ("adamw", 2e-5, "for adamw, 5e-05 to 0.0003: the run may need many more steps"),
        ("lion", 3e-4, "for lion, 1.7e-05 to 0.0001: the run may diverge"),
        ("lion", 1e-4, ""),
        ("muon", 0.02, ""),
        ("adamw", 0.1, "is above 0.01: with adamw training often diverges at such rates"),
        ("adamw", 1e-7, "is below 1e-06"),
        ("custom", 0.1, ""),
    ],
)
def test_a_rate_beyond_what_the_tooltip_calls_sensible_is_told(optimizer: str, rate: float, says: str) -> None:
    made = {"optimizer_class": "torch.optim.SGD"} if optimizer == "custom" else {}
    said = rate_remark(TrainConfig(optimizer=optimizer, learning_rate=rate, **made), full_size=True)
    assert says in said
    assert bool(says) == bool(said)


def test_a_small_model_takes_higher_rates_than_a_released_one() -> None:
    assert rate_remark(TrainConfig(learning_rate=0.01), full_size=False) == ""
    assert "often diverges at such rates" in rate_remark(TrainConfig(learning_rate=0.02), full_size=False)


def test_the_range_is_the_one_the_tooltip_names() -> None:
    from dataclasses import fields

    field = next(one for one in fields(TrainConfig) if one.name == "learning_rate")
    named = re.search(r"(\S+) to (\S+) is sensible", str(field.metadata))
    assert named is not None
    low, high = (float(text) for text in named.groups())
    assert rate_remark(TrainConfig(learning_rate=low), full_size=True) == ""
    assert rate_remark(TrainConfig(learning_rate=high), full_size=True) == ""
    assert rate_remark(TrainConfig(learning_rate=low * 0.9), full_size=True)
    assert rate_remark(TrainConfig(learning_rate=high * 1.1), full_size=True)


@pytest.mark.parametrize(
    ("optimizer", "rate", "lower"),
    [("adamw", 1e-3, 5e-4), ("adamw", 10.0, 3e-4), ("lion", 1.0, 1e-4), ("prodigy", 4.0, 2.0), ("prodigy", 100.0, 1.0)],
)
def test_a_rate_that_ended_a_run_is_halved_or_the_usual_one_where_half_is_still_far_too_high(
    optimizer: str, rate: float, lower: float
) -> None:
    assert lower_rate(rate, optimizer) == pytest.approx(lower)


@pytest.mark.parametrize(
    ("optimizer", "rate", "says"),
    [
        ("adafactor", 1e-4, "is below 0.001: with adafactor the LoRA will hardly change. Raise it."),
        ("adafactor", 1e-2, ""),
        ("came", 1e-4, "for came, 5e-06 to 3e-05: the run may diverge"),
        ("came", 1e-5, ""),
        ("bnb_lion8bit", 1e-4, ""),
    ],
)
def test_each_optimizer_has_the_rates_at_which_it_trains(optimizer: str, rate: float, says: str) -> None:
    said = rate_remark(TrainConfig(optimizer=optimizer, learning_rate=rate), full_size=True)
    assert says in said
    assert bool(says) == bool(said)


@pytest.mark.parametrize(("step", "change", "said"), [(199, 0.0, False), (200, 9e-6, True), (200, 1.1e-5, False)])
def test_a_lora_that_does_not_move_is_told_once_there_were_steps_enough(step: int, change: float, said: bool) -> None:
    remark = still_remark(step, change, TrainConfig(optimizer="adafactor", learning_rate=1e-4))
    assert bool(remark) is said
    if said:
        assert "After 200 steps the LoRA changes a weight by 9e-06 on average" in remark
        assert "higher learning_rate than 0.0001: 0.005 to 0.03 is usual with adafactor." in remark


def test_a_rate_that_is_usual_is_not_answered_with_the_usual_ones() -> None:
    remark = still_remark(400, 1e-6, TrainConfig(learning_rate=1e-4))
    assert remark.endswith("train with a higher learning_rate than 0.0001.")


@pytest.mark.parametrize(("optimizer", "rate", "moves"), [("adafactor", 1e-4, False), ("adamw", 1e-4, True)])
def test_a_run_says_that_its_lora_does_not_move_when_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, rate: float, moves: bool
) -> None:
    monkeypatch.setattr(remarks, "_STEPS_THAT_SHOW", 4)
    settings = TrainConfig(
        steps=8, save_every_n_steps=2, preview_every_n_steps=0, eval_items=0, optimizer=optimizer, learning_rate=rate
    )
    run = make_run(tmp_path, train=settings)
    said = [note.text for note in of(train_here(run), Note)]
    still = [text for text in said if "changes a weight by" in text]
    assert len(still) == (0 if moves else 1), said
    assert moves or still[0].startswith("After 4 steps the LoRA changes a weight by ")


def test_a_loss_that_rises_by_half_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, train=steady(**ONE_LOOK))
    losses = iter([1.0, 1.4, 1.6, math.nan])

    def evaluate(trainer: Trainer) -> Evaluated:
        return Evaluated(step=trainer.step, eval_loss=next(losses))

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    train_here(run, max_steps=2)  # the loss before training is that of an earlier session
    notes = warnings(train_here(run))
    assert notes == [
        "The evaluation loss rose from 1.0000 before training to 1.6000 at step 4: the run gets worse, not better. "
        "Stop it, lower learning_rate or alpha, and start again."
    ]
