"""The catalogue of optimizers: which class of which package a name means, and what of the settings it is given.

Users choose from the names in `update_config.py`. Nothing here is an optimizer of our own. What a class keeps between
two steps is the business of `optimizer_state.py`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..config import nearest
from ..errors import ConfigError, DependencyError, host_memory_ran_out
from ..packages import pip_line, version_of
from ..placement.room import device_memory_ran_out
from ..words import first_line
from .config import TrainConfig
from .rates import rate_groups

__all__ = ["finds_own_rate", "make_optimizer", "ran_out_of_memory", "runs_on_gpu", "runs_uncompiled"]


@dataclass(frozen=True)
class _Known:
    """A class of the catalogue, and the settings that it reads besides learning rate and weight decay."""

    path: str
    requirement: str = ""
    """what pip installs; '' for classes of torch"""
    betas: bool = False
    eps: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """arguments whose default would surprise here"""


_EXTRA = "pytorch-optimizer>=4.1"
_LOW_BIT = "torchao>=0.16"
_BNB = "bitsandbytes>=0.50"
_CATALOGUE = {
    "adamw": _Known("torch.optim.AdamW", betas=True, eps=True),
    "adamw8bit": _Known("torchao.optim.AdamW8bit", _LOW_BIT, betas=True, eps=True),
    "adamw4bit": _Known("torchao.optim.AdamW4bit", _LOW_BIT, betas=True, eps=True),
    "adamwfp8": _Known("torchao.optim.AdamWFp8", _LOW_BIT, betas=True, eps=True),
    "adafactor": _Known("torch.optim.Adafactor"),
    # Scaled so, an update is as long as AdamW's, and AdamW's learning rates do.
    "muon": _Known("torch.optim.Muon", fixed={"adjust_lr_fn": "match_rms_adamw"}),
    "lion": _Known("pytorch_optimizer.Lion", _EXTRA),
    "prodigy": _Known("pytorch_optimizer.Prodigy", _EXTRA, betas=True, eps=True),
    "schedule_free": _Known("pytorch_optimizer.ScheduleFreeAdamW", _EXTRA, betas=True, eps=True),
    "came": _Known("pytorch_optimizer.CAME", _EXTRA),
    "bnb_adamw8bit": _Known("bitsandbytes.optim.AdamW8bit", _BNB, betas=True, eps=True),
    "bnb_paged_adamw8bit": _Known("bitsandbytes.optim.PagedAdamW8bit", _BNB, betas=True, eps=True),
    "bnb_lion8bit": _Known("bitsandbytes.optim.Lion8bit", _BNB),
}

_OURS = {"params": "", "lr": "learning_rate", "weight_decay": "weight_decay"}
"""arguments that settings of the node are for"""


def make_optimizer(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """Returns the optimizer that `config.optimizer` names, over float32 adapter weights by name.

    Weights whose learning rate is a multiple of the run's are groups of their own (`rates.py`).
    Raises DependencyError with the pip line for a package that is missing, and ConfigError for a class, an argument or
    a value that cannot be. Memory that runs out is raised as it is.
    """
    kind, known = _class_of(config)
    given: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if known.betas:
        given["betas"] = (config.adam_beta1, config.adam_beta2)
    if known.eps:
        given["eps"] = config.adam_epsilon
    takes = _arguments_of(kind)
    given = {name: value for name, value in given.items() if name in takes} | dict(known.fixed)
    asked = _read_arguments(config.optimizer_args)
    for name in asked:
        if name in _OURS:
            instead = f"Set {_OURS[name]}." if _OURS[name] else "The adapters are what it trains."
            raise ConfigError(f'optimizer_args names "{name}". {instead}')
        if name not in takes:
            rest = sorted(takes - _OURS.keys())
            raise ConfigError(f'optimizer_args: {kind.__name__} takes no "{name}".{nearest(name, rest)}')
    try:
        how = _in_one_call(kind, parameters, asked)
        make = _without_compiler(kind) if known.path.startswith("torch.") and config.optimizer != "custom" else kind
        return make(rate_groups(parameters, config), **(given | how | asked))
    except Exception as error:  # a library says what it does not like in a type of its own
        if ran_out_of_memory(error):
            raise
        raise ConfigError(
            f'optimizer "{config.optimizer}" ({kind.__name__}) cannot be made: {first_line(error).rstrip(".")}. Change '
            "optimizer_args, or choose another optimizer."
        ) from error


@functools.cache
def _without_compiler(kind: Any) -> Any:
    """Returns a class of torch's optimizers whose methods do not import torch's compiler: 0.8 CPU seconds of a start.

    torch wraps them so that a compiled program breaks off there. Outside of one the wrappers do no more than import it,
    and decide about gradients; nothing here compiles an optimizer.
    """
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "load_state_dict")}
    update = inspect.unwrap(kind.step)

    def step(self: Any, closure: Any = None) -> Any:
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable", False))):
            return update(self, closure)

    return type(kind.__name__, (kind,), {**plain, "step": step, "__module__": kind.__module__})


_HOW = {"fused", "foreach", "capturable", "differentiable"}
"""arguments of torch's AdamW that say how its update is computed, not what comes out"""


def _in_one_call(kind: Any, parameters: Mapping[str, nn.Parameter], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what lets torch's AdamW update all weights of a device by one call, where torch has such a kernel.

    Some ten small operations for each weight are a twentieth of a step of a tiny model, and most of an update in host
    memory. On other devices torch chooses.
    """
    if kind is not torch.optim.AdamW or _HOW & asked.keys():
        return {}
    return {"fused": True} if {p.device.type for p in parameters.values()} <= {"cpu", "cuda"} else {}


def ran_out_of_memory(error: Exception) -> bool:
    """Returns whether a library broke for want of memory, which no setting of an optimizer is to blame for."""
    return device_memory_ran_out(error) or host_memory_ran_out(error)


def finds_own_rate(config: TrainConfig) -> bool:
    """Returns whether the optimizer works out the learning rate, so that the setting is a factor of it."""
    return config.optimizer == "prodigy"


def runs_on_gpu(config: TrainConfig) -> bool:
    """Returns whether the optimizer is written for GPUs, so that one where it is to be had says what it holds."""
    return not config.offload_optimizer and "bitsandbytes" in (
        config.optimizer_class or _CATALOGUE[config.optimizer].path
    )


def runs_uncompiled(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[object]:
    """Returns what a step of `optimizer` runs in.

    torchao's classes ask torch.compile for a kernel of every shape of weight. Without it they need neither triton nor a
    C++ compiler and no minute at the start, and an adapter is small.
    """
    if type(optimizer).__module__.startswith("torchao."):
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


def _read_arguments(text: str) -> dict[str, Any]:
    """Returns what `optimizer_args` says: `key=value` by comma or line, values as Python writes them, else text.

    Raises ConfigError naming what is no argument.
    """
    found: dict[str, Any] = {}
    for part in _parts(text):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or not name.isidentifier() or not value:
            raise ConfigError(f'optimizer_args: "{part[:60]}" is not key=value. Example: betas=(0.9, 0.99), eps=1e-8')
        if name in found:
            raise ConfigError(f'optimizer_args names "{name}" twice. Keep one of them.')
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
    return found


def _parts(text: str) -> Iterable[str]:
    """Yields the pieces of `text` between commas and line ends that are in no bracket."""
    depth, piece = 0, ""
    for letter in text + "\n":
        depth += (letter in "([{") - (letter in ")]}")
        if letter in ",\n" and depth <= 0:
            if piece.strip():
                yield piece.strip()
            piece = ""
        else:
            piece += letter
    if piece.strip():
        yield piece.strip()


def _class_of(config: TrainConfig) -> tuple[Callable[..., torch.optim.Optimizer], _Known]:
    """Returns the class and what is known of it. Raises DependencyError or ConfigError where it is not to be had."""
    known = _CATALOGUE.get(config.optimizer) or _Known(config.optimizer_class)
    module, _, name = known.path.rpartition(".")
    package = module.partition(".")[0]
    if name == "CPUOffloadOptimizer":
        raise ConfigError(
            f"optimizer_class {known.path[:80]} works on CUDA alone, and takes gradients before they are clipped, "
            "averaged and found finite. Choose any other and set offload_optimizer (--set offload_optimizer=true), "
            "which keeps it in host memory."
        )
    if package in sys.stdlib_module_names:
        raise ConfigError(
            f'optimizer_class "{known.path[:80]}" is part of Python, and no optimizer. Example: torch.optim.SGD'
        )
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise _unusable(config, known, error) from error
        wanted = known.requirement or package.replace("_", "-")
        raise DependencyError(
            f'optimizer "{config.optimizer}" needs {package}, which is not installed. Run this and start again: '
            f"{pip_line(wanted)}"
        ) from error
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        raise _unusable(config, known, error) from error
    if kind is None and config.optimizer != "custom":
        have = f"{package} {version_of(package)}"
        raise DependencyError(f'optimizer "{config.optimizer}" is {known.path}, which {have} lacks. Choose another.')
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ConfigError(
            f'optimizer_class "{known.path[:80]}" is no class of an optimizer. Example: pytorch_optimizer.Adan'
        )
    return kind, known


def _unusable(config: TrainConfig, known: _Known, error: Exception) -> DependencyError:
    """Returns the error about a package that is there and breaks."""
    wanted = known.requirement or known.path.partition(".")[0].replace("_", "-")
    return DependencyError(
        f'optimizer "{config.optimizer}" needs {known.path[:80]}, which cannot be imported ({first_line(error)}). Run '
        f"this and start again: {pip_line(wanted, upgrade=True)}"
    )


def _arguments_of(kind: Callable[..., torch.optim.Optimizer]) -> set[str]:
    """Returns the names that the class takes. Some take any name and read few, so a `**kwargs` counts for nothing."""
    found: set[str] = set()
    for ancestor in inspect.getmro(kind):  # type: ignore[arg-type]
        if ancestor is torch.optim.Optimizer:
            break
        if "__init__" in vars(ancestor):
            every = list(inspect.signature(ancestor.__init__).parameters.values())
            found |= {p.name for p in every[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            if not any(p.kind is p.VAR_KEYWORD for p in every):
                break
    return found
