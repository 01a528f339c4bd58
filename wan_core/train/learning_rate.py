"""The learning rate of a step, a pure function of its number, and the factors of it that single weights have.

A resume has nothing to restore. Factors come from `lr_patterns` and LoRA+, and are groups of the optimizer.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from ..errors import ConfigError
from ..patterns import matching
from .config import TrainConfig
from .update_config import UpdateConfig

_PART = re.compile(r"\.(?:lora|lokr|hada|oft|diff)(?:_\w+)?(?:\.\w+)*\Z")
"""what stands behind the name of a layer in that of a trained weight"""


def owns_rate(config: TrainConfig) -> bool:
    """Returns whether the schedule sets the learning rate of every step; else it is set once, and the optimizer's own.

    A class that changes its own rate (SWATS) trains with a constant schedule alone.
    """
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


def check_rates(config: UpdateConfig, layers: Collection[str]) -> None:
    """Raises ConfigError where a pattern of `lr_patterns` matches none of the adapted `layers`, or takes too long."""
    for (pattern, _), matched in zip(config.rates, _matched(layers, config), strict=True):
        if not matched:
            raise ConfigError(
                f'lr_patterns "{pattern[:80]}" matches none of the {len(layers)} layers that get a LoRA, such as '
                f"{next(iter(layers), 'none')}. Whole names are matched."
            )


def rate_groups(parameters: Mapping[str, nn.Parameter], config: UpdateConfig) -> list[dict[str, Any]]:
    """Returns the groups of weights, each with the `rate_factor` of its learning rate, in the order of their first.

    The factor of a weight is that of the first pattern of `lr_patterns` that matches its layer, times the LoRA+ ratio
    for the second matrix of a pair.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    factors = _factors(map(_layer_of, parameters), config)
    for name, parameter in parameters.items():
        factor = factors[_layer_of(name)] * (config.loraplus_lr_ratio if ".lora_B." in name else 1.0)
        groups.setdefault(factor, []).append(parameter)
    if groups.keys() <= {1.0}:  # the optimizer's own rate, which is all that some libraries know
        return [{"params": list(parameters.values()), "rate_factor": 1.0}]
    return [{"params": group, "rate_factor": factor} for factor, group in groups.items()]


def rates_told(names: Collection[str], config: UpdateConfig) -> str:
    """Returns a sentence about the rates that `lr_patterns` gives the layers of these weights; "" without patterns."""
    if not config.rates:
        return ""
    layers = _factors(map(_layer_of, names), config)
    counts = Counter(layers.values())
    said = ", ".join(
        f"{count} of {len(layers)} layers at {factor:g} x" for factor, count in sorted(counts.items()) if factor != 1
    )
    return f"Learning rates by lr_patterns: {said or 'none'}; {counts[1.0]} as it is."


def _layer_of(name: str) -> str:
    return _PART.sub("", name)


def _factors(layers: Iterable[str], config: UpdateConfig) -> dict[str, float]:
    """Returns the factor of each layer: that of the first pattern that matches it, else 1."""
    factors = dict.fromkeys(layers, 1.0)
    for (_, factor), matched in reversed([*zip(config.rates, _matched(factors, config), strict=True)]):
        factors.update(dict.fromkeys(matched, factor))
    return factors


def _matched(layers: Collection[str], config: UpdateConfig) -> list[frozenset[str]]:
    return matching([pattern for pattern, _ in config.rates], list(layers), "lr_patterns", whole=True)
