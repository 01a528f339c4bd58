"""Factors of the learning rate, by pattern and for LoRA+, as groups of an optimizer; `schedule.py` has the rate."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from ..errors import ConfigError
from ..patterns import check_patterns
from .update_config import UpdateConfig

__all__ = ["check_rates", "rate_groups", "rates_told"]

_PART = re.compile(r"\.(?:lora|lokr|hada|oft|diff)(?:_\w+)?(?:\.\w+)*\Z")
"""what stands behind the name of a layer in that of a trained weight"""


def check_rates(config: UpdateConfig, layers: Collection[str]) -> None:
    """Raises ConfigError where a pattern of `lr_patterns` matches none of the adapted `layers`, or takes too long."""
    patterns = [pattern for pattern, _ in config.rates]
    check_patterns(patterns, list(layers), "lr_patterns", whole=True)
    for pattern in patterns:
        if not any(re.fullmatch(pattern, layer) for layer in layers):
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
    for name, parameter in parameters.items():
        factor = _factor(_layer_of(name), config) * (config.loraplus_lr_ratio if ".lora_B." in name else 1.0)
        groups.setdefault(factor, []).append(parameter)
    if groups.keys() <= {1.0}:  # the optimizer's own rate, which is all that some libraries know
        return [{"params": list(parameters.values()), "rate_factor": 1.0}]
    return [
        {"params": group, "lr": config.learning_rate * factor, "rate_factor": factor}
        for factor, group in groups.items()
    ]


def rates_told(names: Collection[str], config: UpdateConfig) -> str:
    """Returns a sentence about the rates that `lr_patterns` gives the layers of these weights; "" without patterns."""
    if not config.rates:
        return ""
    layers = dict.fromkeys(map(_layer_of, names))
    counts: dict[float, int] = {}
    for layer in layers:
        factor = _factor(layer, config)
        counts[factor] = counts.get(factor, 0) + 1
    said = ", ".join(
        f"{count} of {len(layers)} layers at {factor:g} x" for factor, count in sorted(counts.items()) if factor != 1
    )
    return f"Learning rates by lr_patterns: {said or 'none'}; {counts.get(1.0, 0)} as it is."


def _layer_of(name: str) -> str:
    return _PART.sub("", name)


def _factor(layer: str, config: UpdateConfig) -> float:
    return next((factor for pattern, factor in config.rates if re.fullmatch(pattern, layer)), 1.0)
