"""Starts a run from a LoRA file: adapters begin with the file's change.

A pair of smaller rank is copied exactly into the first rows; further rows start as usual, with B at zero. LoKr and LoHa
start as their best pair of the run's rank; the log states what is lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Set

import torch
from torch import nn

from ..errors import CheckpointError, ConfigError
from ..model import block_of
from ..words import logger
from .config import LoraConfig
from .inject import LoraWeights, adapters_of
from .linear_adapter import LinearAdapter
from .source import LoraSource

_log = logger(__name__)
_EXACT = 1e-4
"""relative norm; a smaller loss counts as exact"""
_MOST_LOST = 0.5


def start_from(model: nn.Module, source: LoraSource, config: LoraConfig) -> float:
    """Initialises a model's fresh adapters with the LoRA of `source`; a refusal changes nothing.

    Returns the relative Frobenius norm of the loss, 0 for plain pairs. ConfigError when that is more than half, and as
    `check_start`. Modules that the file lacks start as in a new LoRA.
    """
    check_start(model, source, config)
    fresh = LoraWeights.of(model).tensors
    adapted = {one.name: one for one in adapters_of(model) if isinstance(one, LinearAdapter)}
    total = lost = 0.0
    for module in source.modules:
        found = source.change(module).factors(adapted[module].rank)
        total, lost = total + found.total, lost + found.lost
        down, up = fresh[f"{module}.lora_A.weight"], fresh[f"{module}.lora_B.weight"]
        kept, scaled = found.down.shape[0], found.up / adapted[module].scale
        if not torch.isfinite(scaled).all():
            raise CheckpointError(
                f"{source.name}: the alpha of {module} makes it overflow. Use an undamaged LoRA file."
            )
        down[:kept], up[:, :kept] = found.down, scaled
    left_out = math.sqrt(lost / total) if total else 0.0
    _say(source, config, left_out, adapted.keys())
    LoraWeights(fresh).load_into(model, source.name)
    return left_out


def check_start(model: nn.Module, source: LoraSource, config: LoraConfig) -> None:
    """Checks modules, sizes and ranks of `source` against a model, which may be meta.

    CheckpointError or ConfigError for modules or sizes that the model lacks, modules that the run does not adapt, or a
    higher rank.
    """
    linears = {
        name.removesuffix(".base_layer"): module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ".lora_" not in name
    }
    for module in source.modules:
        _check_size(module, linears.get(module), source)
    adapted = set(config.targeted(list(linears)))
    if left := [module for module in source.modules if module not in adapted]:
        more = {re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(module), count=1) for module in left}
        way_out = f"Set lora_targets to these lines: {'  '.join([*config.targets, *sorted(more)])}"
        if outside := [module for module in left if block_of(module) is None]:
            way_out = f"Linear layers outside the blocks ({outside[0]}) cannot be adapted here; start from none."
        raise ConfigError(
            f"{source.name} also adapts {len(left)} linear layers that this run does not (for example {left[0]}). "
            f"{way_out}"
        )
    _check_rank(source, config)


def _check_size(module: str, linear: nn.Linear | None, source: LoraSource) -> None:
    sizes = source.shape(module)
    if linear is None:
        raise CheckpointError(
            "{name} adapts {module}, which this model does not have: it was trained for another Wan model. "
            "Choose a LoRA of this model, or start from none.",
            name=source.name,
            module=module,
        )
    here = tuple(linear.weight.shape)
    if here != sizes:
        raise CheckpointError(
            f"{source.name} was trained for a model of another size: {module} is {sizes[0]} x {sizes[1]} there and "
            f"{here[0]} x {here[1]} here. Choose a LoRA of this model, or start from none."
        )


def _check_rank(source: LoraSource, config: LoraConfig) -> None:
    for module, (here, _) in config.ranks_of(list(source.modules)).items():
        if source.kind(module) != "LoRA" or source.rank(module) <= here:
            continue
        largest = max(source.rank(other) for other in source.modules)
        raise ConfigError(
            "{name} has rank {largest} and this run rank {here}. Set rank to {needed}, or start from none.",
            name=source.name,
            largest=largest,
            here=here,
            needed=largest,
        )


def _say(source: LoraSource, config: LoraConfig, left_out: float, adapted: Set[str]) -> None:
    kinds = " and ".join(sorted({source.kind(module) for module in source.modules}))
    if left_out > _MOST_LOST:
        raise ConfigError(
            f"{source.name} is a {kinds}: rank {config.rank} would leave {100 * left_out:.0f} % of its change out. "
            "Set a higher rank, or start from none."
        )
    if left_out > _EXACT:
        _log.warning(
            "%s is a %s: this run starts from its best form of rank %d, which leaves %.2g %% of its change out; "
            "a higher rank leaves out less.", source.name, kinds, config.rank, 100 * left_out,
        )  # fmt: skip
    if missing := adapted - source.modules.keys():
        _log.warning(
            "%s has nothing for %d of the %d linear layers of this run (for example %s); they start as in a new LoRA.",
            source.name, len(missing), len(adapted), min(missing),
        )  # fmt: skip
