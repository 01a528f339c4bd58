"""Both experts of a pair in one run: the steps and settings of each, and which expert trains next.

The turn is a pure function of each expert's step, so a run resumes exactly, and a longer run extends both experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import ConfigError
from .config import EXPERTS, TrainConfig, expert_setting


def expert_steps(train: TrainConfig) -> tuple[int, ...]:
    """Returns the steps of each of `train.experts`, which add up to `train.steps`.

    Raises ConfigError for fewer steps than experts.
    """
    if train.expert != "both":
        return (train.steps,)
    if train.steps < len(EXPERTS):
        raise ConfigError("steps 1 cannot train both experts. Set it to 2 or more, or expert to high or low.")
    high = _share(train.steps, train.high_noise_share)
    return high, train.steps - high


def longer_share(train: TrainConfig) -> float:
    """Returns the longer expert's share of a run's steps; 0 if one model is trained."""
    steps = expert_steps(train)
    return max(steps) / sum(steps) if len(steps) > 1 else 0.0


def settings_of_expert(train: TrainConfig, expert: str) -> TrainConfig:
    """Returns the settings of one of `train.experts`, as in a run that trains it alone.

    Raises ConfigError if its warm-up lasts as long as its steps.
    """
    if train.expert != "both":
        return train
    steps = expert_steps(train)[EXPERTS.index(expert)]
    if not train.max_train_epochs:  # epochs become steps only once the clips are known
        _check_warmup_of(expert, steps, train)
    rate = (expert == EXPERTS[1] and train.low_noise_learning_rate) or train.learning_rate
    return train.alone(expert=expert_setting(expert), steps=steps, learning_rate=rate)


def check_warmup(train: TrainConfig) -> None:
    """Raises ConfigError if warm-up lasts as long as the run, or as the steps of one expert."""
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
    """Returns (index of the next expert, its own step that ends the turn); None at the end of the run.

    `done`: steps done by each of `train.experts`. Alternating experts share cycles of 2 x `expert_turn_steps`, high
    noise first; after the end of one expert the other trains alone.
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
    """Raises ConfigError if one expert already has more steps than a run of `train.steps` gives it.

    The other expert would then get fewer steps than planned. A run that ends now is accepted if both experts have
    trained.
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
        f"steps {train.steps} is too short for this run: the {expert} noise expert has made {made} steps, more than "
        f"its share of {share}. Set steps to {needed} or more, or begin a new run."
    )


def _share(steps: int, share: float) -> int:
    """Returns that share of `steps`, with at least one step for each expert."""
    return min(max(round(steps * share), 1), steps - 1)
