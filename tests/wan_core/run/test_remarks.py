"""What a run says of its learning rate: far off for every model, beyond the tooltip's range for released ones."""

from __future__ import annotations

import re

import pytest

from wan_core.run.remarks import lower_rate, rate_remark
from wan_core.train import TrainConfig


@pytest.mark.parametrize(
    ("optimizer", "rate", "says"),
    [
        ("adamw", 1e-4, ""),
        ("adamw", 5e-5, ""),
        ("bnb_adamw8bit", 3e-4, ""),
        ("adamw", 1e-3, "with adamw, 5e-05 to 0.0003: the run may diverge"),
        ("adamw", 2e-5, "with adamw, 5e-05 to 0.0003: the run may need many more steps"),
        ("lion", 3e-4, "with lion, 1.7e-05 to 0.0001: the run may diverge"),
        ("lion", 1e-4, ""),
        ("muon", 0.02, ""),
        ("adamw", 0.1, "is above 0.01: with adamw a LoRA is not known to learn there"),
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
    assert "not known to learn" in rate_remark(TrainConfig(learning_rate=0.02), full_size=False)


def test_the_range_is_the_one_the_tooltip_names() -> None:
    from dataclasses import fields

    field = next(one for one in fields(TrainConfig) if one.name == "learning_rate")
    named = re.search(r"sensible from (\S+) to (\S+)\.", str(field.metadata))
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
