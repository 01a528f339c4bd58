"""The learning rate of an optimizer step: a pure function of its number, so that a resume has nothing to restore."""

from __future__ import annotations

import math
from dataclasses import replace

from .config import TrainConfig


def owns_rate(config: TrainConfig) -> bool:
    """Returns whether the schedule decides the learning rate of a step; else the optimizer keeps what it was given."""
    return config.lr_scheduler != "constant" or bool(config.warmup)


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Returns the learning rate of optimizer step `step` (1-based).

    It warms up linearly, then stays or falls to `lr_scheduler_min_lr_ratio` of itself.
    """
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    if config.lr_scheduler == "constant":
        return config.learning_rate
    share = min((step - 1 - config.warmup) / max(config.steps - config.warmup, 1), 1.0)
    least = config.lr_scheduler_min_lr_ratio
    return config.learning_rate * (least + (1 - least) * _course(share, config))


def scaled_to_batch(config: TrainConfig, ranks: int) -> tuple[TrainConfig, str]:
    """Returns `config` with the learning rate that `lr_scaling` makes of it, and a sentence for people ("": none).

    A step of `ranks` processes trains on batch size x accumulation x ranks clips.
    """
    clips = config.batch_size * config.gradient_accumulation_steps * ranks
    factor = {"none": 1.0, "linear": float(clips), "sqrt": math.sqrt(clips)}[config.lr_scaling]
    if config.lr_scaling == "none":
        return config, ""
    scaled = replace(config, learning_rate=config.learning_rate * factor)
    return scaled, (
        f"Learning rate {scaled.learning_rate:g}: {config.learning_rate:g} x {factor:g}, because lr_scaling is "
        f"{config.lr_scaling} and a step trains on {clips} clips (batch size {config.batch_size} x "
        f"{config.gradient_accumulation_steps} accumulated x {ranks} in parallel)."
    )


def _course(share: float, config: TrainConfig) -> float:
    """Returns the factor of the learning rate, from 1 down to 0, after `share` (0 to 1) of the way."""
    left = 1 - share
    match config.lr_scheduler:
        case "linear":
            return left
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * share))
        case "cosine_with_restarts":
            within = (share * config.lr_scheduler_num_cycles) % 1.0 if share < 1 else 1.0
            return 0.5 * (1 + math.cos(math.pi * within))
        case "polynomial":
            return left**config.lr_scheduler_power
        case "rex":  # Chen, Wolfe, Kyrillidis: REX, 2021 (arXiv 2107.04197)
            return left / (0.5 + 0.5 * left)
        case "wsd":  # 1 - sqrt, which Haegele et al. found best for the fall (arXiv 2405.18392)
            decay = config.lr_decay_share
            return 1.0 if left >= decay else 1 - math.sqrt((decay - left) / decay)
        case other:
            raise AssertionError(other)
