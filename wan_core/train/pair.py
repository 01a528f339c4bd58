"""Both experts of a pair in one run: the steps and settings of each, and which of them trains next.

Whose turn it is is a function of how far each expert is, never of what happened before. So a run that was stopped
anywhere goes on as it would have, and one that is made longer trains each expert on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import ConfigError
from .config import EXPERTS, TrainConfig, expert_setting


def expert_steps(train: TrainConfig) -> tuple[int, ...]:
    """Returns the steps of each of `train.experts` in the whole run; of both together they are `train.steps`.

    Raises ConfigError where there are too few for two experts.
    """
    if train.expert != "both":
        return (train.steps,)
    if train.steps < len(EXPERTS):
        raise ConfigError("steps 1 cannot train both experts. Set it to 2 or more, or expert to high or low.")
    high = _share(train.steps, train.high_noise_share)
    return high, train.steps - high


def settings_of_expert(train: TrainConfig, expert: str) -> TrainConfig:
    """Returns the settings by which one of `train.experts` is trained: as in a run that trains it alone.

    Raises ConfigError where its steps are too few for them.
    """
    if train.expert != "both":
        return train
    steps = expert_steps(train)[EXPERTS.index(expert)]
    if not train.max_train_epochs:  # their steps are known once clips are
        _check_warmup_of(expert, steps, train)
    rate = (expert == EXPERTS[1] and train.low_noise_learning_rate) or train.learning_rate
    return train.alone(expert=expert_setting(expert), steps=steps, learning_rate=rate)


def check_warmup(train: TrainConfig) -> None:
    """Raises ConfigError where warm-up lasts as long as the run, or as the steps of one of its experts.

    The settings check it themselves, but for a run whose epochs were no steps yet.
    """
    train.check_warmup()
    if train.expert == "both":
        for expert, steps in zip(EXPERTS, expert_steps(train), strict=True):
            _check_warmup_of(expert, steps, train)


def _check_warmup_of(expert: str, steps: int, train: TrainConfig) -> None:
    if train.lr_warmup_steps >= steps:
        raise ConfigError(
            f"lr_warmup_steps {train.lr_warmup_steps} is not below {steps}, the steps of the "
            f"{expert_setting(expert)} noise expert. Set it to {steps // 10}, or raise steps."
        )


def next_turn(done: Sequence[int], train: TrainConfig) -> tuple[int, int] | None:
    """Returns (index of the expert whose turn it is, the step of its own that ends the turn); None at the end.

    `done`: the steps that each of `train.experts` has made. In alternation both make whole cycles of
    2 x `expert_turn_steps`, the high noise expert first in each, and an expert that is done leaves the rest to the
    other.
    """
    totals = expert_steps(train)
    left = [index for index, total in enumerate(totals) if done[index] < total]
    if not left:
        return None
    if len(left) == 1 or train.expert_order != "alternating":
        return left[0], totals[left[0]]
    cycle = 2 * train.expert_turn_steps
    high = _share(cycle, train.high_noise_share)
    lengths = (high, cycle - high)
    cycles = [made // length for made, length in zip(done, lengths, strict=True)]
    index = 0 if cycles[0] <= cycles[1] else 1
    return index, min((cycles[index] + 1) * lengths[index], totals[index])


def check_split(done: Sequence[int], train: TrainConfig) -> None:
    """Raises ConfigError where one of both experts has more steps behind it than a run as long as `train` gives it, so
    that the other one would end short of its own, or never begin. A run whose experts have both begun may end here.
    """
    totals = expert_steps(train)
    ahead = [index for index, total in enumerate(totals) if done[index] > total]
    if not ahead or all(made >= total for made, total in zip(done, totals, strict=True)):
        return
    if sum(done) >= train.steps and all(done):
        return
    index = ahead[0]
    needed = max(train.steps, done[index])
    while expert_steps(replace(train, steps=needed))[index] < done[index]:
        needed += 1
    expert, made, share = expert_setting(EXPERTS[index]), done[index], totals[index]
    raise ConfigError(
        f"steps {train.steps} is too short for this run: the {expert} noise expert has made {made} steps, and of so "
        f"many it has {share}; the other one would end before its own. Set steps to {needed} or more, or begin a new "
        "run."
    )


def _share(steps: int, share: float) -> int:
    """Returns that share of `steps`, of which each expert has at least one."""
    return min(max(round(steps * share), 1), steps - 1)
