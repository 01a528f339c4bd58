"""Optimizer classes by the names of `update_config.py`, and custom classes of a few allowed packages (S20).

Only a worker imports a custom class, and only from where pip installs; the server's `check_class` imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import ConfigError, DependencyError, host_memory_ran_out
from ..packages import OPTIMIZER_MODULES, check_place, imported, named_optimizer, pip_line, version_of
from ..placement.model_offload import device_memory_ran_out
from ..words import first_line
from .config import TrainConfig


@dataclass(frozen=True)
class Known:
    """An optimizer class, and the settings it takes besides learning rate and weight decay."""

    path: str
    betas: bool = False
    eps: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """arguments set here in place of the library's default"""


_REQUIREMENTS = {
    "torchao": "torchao>=0.16",
    "bitsandbytes": "bitsandbytes>=0.50",
    "pytorch_optimizer": "pytorch-optimizer>=4.1",
    "prodigyopt": "prodigyopt",
    "schedulefree": "schedulefree",
}
"""pip requirement of each package; torch comes with ComfyUI"""
_CATALOGUE = {
    "adamw": Known("torch.optim.AdamW", betas=True, eps=True),
    "adamw8bit": Known("torchao.optim.AdamW8bit", betas=True, eps=True),
    "adamw4bit": Known("torchao.optim.AdamW4bit", betas=True, eps=True),
    "adamwfp8": Known("torchao.optim.AdamWFp8", betas=True, eps=True),
    "adafactor": Known("torch.optim.Adafactor"),
    # With this option an update has the RMS of AdamW's, so AdamW's learning rates apply.
    "muon": Known("torch.optim.Muon", fixed={"adjust_lr_fn": "match_rms_adamw"}),
    "lion": Known("pytorch_optimizer.Lion"),
    "prodigy": Known("pytorch_optimizer.Prodigy", betas=True, eps=True),
    "schedule_free": Known("pytorch_optimizer.ScheduleFreeAdamW", betas=True, eps=True),
    "came": Known("pytorch_optimizer.CAME"),
    "bnb_adamw8bit": Known("bitsandbytes.optim.AdamW8bit", betas=True, eps=True),
    "bnb_paged_adamw8bit": Known("bitsandbytes.optim.PagedAdamW8bit", betas=True, eps=True),
    "bnb_lion8bit": Known("bitsandbytes.optim.Lion8bit"),
}


def check_class(config: TrainConfig) -> None:
    """Checks `optimizer_class` by name and install location, without importing it.

    Raises ConfigError for another package, DependencyError for one that is missing or not in site-packages.
    """
    path = config.optimizer_class
    module, name = named_optimizer(path)
    if not module:
        raise ConfigError(
            f'optimizer_class "{path[:80]}" is in none of the packages that optimizers are taken from: '
            f"{', '.join(OPTIMIZER_MODULES)}. Example: pytorch_optimizer.Adan"
        )
    if name == "CPUOffloadOptimizer":
        raise ConfigError(
            f"optimizer_class {path[:80]} works only on CUDA, and uses gradients before they are clipped, averaged "
            "and checked. Choose another class, and set offload_optimizer (--set offload_optimizer=true), "
            "which keeps it in host memory."
        )
    _check_package(config, module.partition(".")[0])


def class_of(config: TrainConfig) -> tuple[Callable[..., torch.optim.Optimizer], Known]:
    """Returns the optimizer class and its entry. Raises DependencyError or ConfigError if it is unavailable."""
    if config.optimizer == "custom":
        check_class(config)
        known, (module, name) = Known(config.optimizer_class), named_optimizer(config.optimizer_class)
    else:
        known = _CATALOGUE[config.optimizer]
        module, _, name = known.path.rpartition(".")
        _check_package(config, module.partition(".")[0])
    package = module.partition(".")[0]
    try:
        kind = getattr(torch.optim if package == "torch" else imported(module), name, None)
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        raise DependencyError(
            f'optimizer "{config.optimizer}" needs {package}, which cannot be imported ({first_line(error)}). Run '
            f"this and start again: {pip_line(_REQUIREMENTS[package], upgrade=True)}"
        ) from error
    if kind is None and config.optimizer != "custom":
        have = f"{package} {version_of(package)}"
        raise DependencyError(f'optimizer "{config.optimizer}" is {known.path}, which {have} lacks. Choose another.')
    # A longer path must match the module of the class, because two modules may have classes of the same name.
    inside = "" if known.path == f"{module}.{name}" else known.path.rpartition(".")[0] + "."
    if not (
        isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and f"{kind.__module__}.".startswith(inside)
    ):
        raise ConfigError(
            f'optimizer_class "{known.path[:80]}" is not an optimizer class. Example: pytorch_optimizer.Adan'
        )
    return kind, known


def _check_package(config: TrainConfig, package: str) -> None:
    """Raises DependencyError if a package is missing, or would be imported from outside site-packages."""
    if package not in _REQUIREMENTS:
        return
    try:
        check_place(package)
    except ModuleNotFoundError as error:
        raise DependencyError(
            'optimizer "{optimizer}" needs {package}, which is not installed. Run this command and start again: '
            "{requirements}",
            optimizer=config.optimizer,
            package=package,
            requirements=pip_line(_REQUIREMENTS[package]),
        ) from error


def runs_on_gpu(config: TrainConfig) -> bool:
    """Returns whether the optimizer's state is measured on a GPU: bitsandbytes keeps 8-bit moments only there."""
    path = config.optimizer_class or _CATALOGUE[config.optimizer].path
    return not config.offload_optimizer and "bitsandbytes" in path


def ran_out_of_memory(error: Exception) -> bool:
    """Returns whether device or host memory ran out, which no optimizer setting can fix."""
    return device_memory_ran_out(error) or host_memory_ran_out(error)
