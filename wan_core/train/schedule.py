"""The learning rate of an optimizer step: a pure function of its number, so that a resume has nothing to restore."""

from __future__ import annotations

import math

from .config import TrainConfig

__all__ = ["learning_rate_at", "owns_rate"]


def owns_rate(config: TrainConfig) -> bool:
    """Returns whether the schedule decides the learning rate of a step; else the optimizer keeps what it was given."""
    return config.lr_scheduler != "constant" or bool(config.lr_warmup_steps)


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Returns the learning rate of optimizer step `step` (1-based).

    It warms up linearly, then stays constant or falls to 0, in a line or as a cosine.
    """
    if step <= config.lr_warmup_steps:
        return config.learning_rate * step / config.lr_warmup_steps
    if config.lr_scheduler == "constant":
        return config.learning_rate
    share = (step - 1 - config.lr_warmup_steps) / max(config.steps - config.lr_warmup_steps, 1)
    if config.lr_scheduler == "linear":
        return config.learning_rate * max(1 - share, 0.0)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
