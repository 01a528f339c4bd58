"""Learning rate of a step, a pure function of its number (no scheduler state to resume), and its factors per weight.

Factors come from `lr_patterns` and LoRA+, and become parameter groups of the optimizer.
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

TIMES_ADAMW = {
    **dict.fromkeys(("adamw", "adamw8bit", "adamw4bit", "adamwfp8", "bnb_adamw8bit", "bnb_paged_adamw8bit"), 1.0),
    **dict.fromkeys(("lion", "bnb_lion8bit"), 1 / 3),
    "came": 0.1,
    "adafactor": 100.0,
}
"""best learning rate of an optimizer as a multiple of AdamW's; for the last two, of three rates on two concepts. CAME
at AdamW's rate destroyed the model; torch's Adafactor multiplies the rate by the weights' RMS (at least 0.001), and a
LoRA starts at 0
"""
_OTHER_RATES = {"muon": 1e-4, "schedule_free": 1e-4, "prodigy": 1.0}
_PART = re.compile(r"\.(?:lora|lokr|hada|oft|diff)(?:_\w+)?(?:\.\w+)*\Z")
"""suffix of a trained weight's name after the name of its layer"""


def owns_rate(config: TrainConfig) -> bool:
    """Returns whether the schedule sets the learning rate at every step; else it is set once."""
    # With a constant schedule, an optimizer may change its learning rate itself, as SWATS does.
    return config.lr_scheduler != "constant" or bool(config.warmup)


def with_auto_rate(config: TrainConfig) -> TrainConfig:
    """Returns `config` with its optimizer's measured rate where learning_rate is 0; 0 stays for a custom optimizer."""
    if config.learning_rate:
        return config
    rate = _OTHER_RATES.get(config.optimizer, 1e-4 * TIMES_ADAMW.get(config.optimizer, 0.0))
    return replace(config, learning_rate=float(f"{rate:.3g}"))


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Returns the learning rate of optimizer step `step` (1-based): linear warm-up, then the schedule."""
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    if config.lr_scheduler == "constant":
        return config.learning_rate
    share = min((step - 1 - config.warmup) / max(config.steps - config.warmup, 1), 1.0)
    least = config.lr_scheduler_min_lr_ratio
    return config.learning_rate * (least + (1 - least) * _course(share, config))


def scaled_to_batch(config: TrainConfig, ranks: int) -> tuple[TrainConfig, str]:
    """Returns `config` with its learning rate scaled by `lr_scaling`, and a sentence for the user ("" without)."""
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
    """Returns the schedule's factor, from 1 down to 0, after `share` (0 to 1) of the steps past warm-up."""
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
        case "wsd":  # 1 - sqrt: the best decay in Haegele et al. (arXiv 2405.18392)
            decay = config.lr_decay_share
            return 1.0 if left >= decay else 1 - math.sqrt((decay - left) / decay)
        case other:
            raise AssertionError(other)


def check_rates(config: UpdateConfig, layers: Collection[str]) -> None:
    """Raises ConfigError for a pattern of `lr_patterns` that matches none of the adapted `layers` or takes too long."""
    for (pattern, _), matched in zip(config.rates, _matched(layers, config), strict=True):
        if not matched:
            raise ConfigError(
                f'lr_patterns "{pattern[:80]}" matches none of the {len(layers)} layers that get a LoRA, such as '
                f"{next(iter(layers), 'none')}. Whole names are matched."
            )


def rate_groups(parameters: Mapping[str, nn.Parameter], config: UpdateConfig) -> list[dict[str, Any]]:
    """Returns parameter groups with `rate_factor`: the factor by `lr_patterns`, and for B times the LoRA+ ratio."""
    groups: dict[float, list[nn.Parameter]] = {}
    factors = _factors(map(_layer_of, parameters), config)
    for name, parameter in parameters.items():
        factor = factors[_layer_of(name)] * (config.loraplus_lr_ratio if ".lora_B." in name else 1.0)
        groups.setdefault(factor, []).append(parameter)
    if groups.keys() <= {1.0}:  # some libraries support one learning rate only
        return [{"params": list(parameters.values()), "rate_factor": 1.0}]
    return [{"params": group, "rate_factor": factor} for factor, group in groups.items()]


def rates_sentence(names: Collection[str], config: UpdateConfig) -> str:
    """Returns the user's sentence on the learning rates by `lr_patterns`; "" without patterns."""
    if not config.rates:
        return ""
    layers = _factors(map(_layer_of, names), config)
    counts = Counter(layers.values())
    each = [f"{count} of {len(layers)} layers at {one:g} x" for one, count in sorted(counts.items()) if one != 1]
    return f"Learning rates by lr_patterns: {', '.join(each) or 'none'}; {counts[1.0]} at 1 x."


def _layer_of(name: str) -> str:
    return _PART.sub("", name)


def _factors(layers: Iterable[str], config: UpdateConfig) -> dict[str, float]:
    """Returns the factor of each layer by the first matching pattern, else 1."""
    factors = dict.fromkeys(layers, 1.0)
    # Last pattern first, so that the first match overwrites the later ones.
    for (_, factor), matched in reversed([*zip(config.rates, _matched(factors, config), strict=True)]):
        factors.update(dict.fromkeys(matched, factor))
    return factors


def _matched(layers: Collection[str], config: UpdateConfig) -> list[frozenset[str]]:
    return matching([pattern for pattern, _ in config.rates], list(layers), "lr_patterns", whole=True)
