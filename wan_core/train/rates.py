"""Factors of the learning rate, by pattern and for LoRA+, as groups of an optimizer; `schedule.py` has the rate."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import nn

from ..errors import ConfigError
from ..patterns import matching
from .update_config import UpdateConfig

_PART = re.compile(r"\.(?:lora|lokr|hada|oft|diff)(?:_\w+)?(?:\.\w+)*\Z")
"""what stands behind the name of a layer in that of a trained weight"""


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
    return [
        {"params": group, "lr": config.learning_rate * factor, "rate_factor": factor}
        for factor, group in groups.items()
    ]


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
