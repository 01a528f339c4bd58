"""Constructs the optimizer of a run from its class (`optimizer_classes.py`) and the settings."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..accelerator import backend_of
from ..config import arguments_of, nearest
from ..errors import ConfigError
from ..words import first_line
from .config import TrainConfig
from .learning_rate import rate_groups
from .optimizer_classes import class_of, ran_out_of_memory

_OURS = {"params": "", "lr": "learning_rate", "weight_decay": "weight_decay"}
"""arguments that have a setting on the node"""


def make_optimizer(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """Returns the optimizer `config.optimizer` over float32 adapter weights, in the groups of `rate_groups`.

    Raises DependencyError for a missing package, ConfigError for an invalid class, argument or value; out-of-memory
    errors pass through.
    """
    kind, known = class_of(config)
    given: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if known.betas:
        given["betas"] = (config.adam_beta1, config.adam_beta2)
    if known.eps:
        given["eps"] = config.adam_epsilon
    takes = _arguments_of(kind)
    given = {name: value for name, value in given.items() if name in takes} | dict(known.fixed)
    arguments = arguments_of(config.optimizer_args, "optimizer_args")
    for name in arguments:
        if name in _OURS:
            instead = f"Set {_OURS[name]}." if _OURS[name] else "It always trains the adapters."
            raise ConfigError(f'optimizer_args names "{name}". {instead}')
        if name not in takes:
            others = sorted(takes.keys() - _OURS.keys())
            raise ConfigError(f'optimizer_args: {kind.__name__} takes no "{name}".{nearest(name, others)}')
        arguments[name] = _as_number(name, arguments[name], takes[name])
    try:
        how = _fused(kind, parameters, arguments)
        make = _without_compiler(kind) if known.path.startswith("torch.") and config.optimizer != "custom" else kind
        return make(rate_groups(parameters, config), **(given | how | arguments))
    except Exception as error:  # Each library raises its own types of errors.
        if ran_out_of_memory(error):
            raise
        raise ConfigError(
            f'optimizer "{config.optimizer}" ({kind.__name__}) cannot be created: {first_line(error).rstrip(".")}. '
            "Change "
            "optimizer_args, or choose another optimizer."
        ) from error


@functools.cache
def _without_compiler(kind: Any) -> Any:
    """Returns a subclass of a torch optimizer without the wrappers that import torch's compiler (0.8 CPU s)."""
    # Outside compiled code the wrappers only set the grad mode, as `step` below does.
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad", "load_state_dict")}
    update = inspect.unwrap(kind.step)

    def step(self: Any, closure: Any = None) -> Any:
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable", False))):
            return update(self, closure)

    return type(kind.__name__, (kind,), {**plain, "step": step, "__module__": kind.__module__})


def _fused(kind: Any, parameters: Mapping[str, nn.Parameter], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the argument that selects torch's fused AdamW, on devices that have it and unless the user chose."""
    if kind is not torch.optim.AdamW or {"fused", "foreach", "capturable", "differentiable"} & arguments.keys():
        return {}
    # Unfused, ten small kernels per weight take a twentieth of a tiny model's step, and most of an update on the CPU.
    return {"fused": True} if all(backend_of(p.device).fused_optimizer for p in parameters.values()) else {}


def finds_own_rate(config: TrainConfig) -> bool:
    """Returns whether the optimizer estimates the learning rate, and the setting is a factor of it."""
    return config.optimizer == "prodigy"


def runs_uncompiled(optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[object]:
    """Returns the context of an optimizer step, with torch.compile off for torchao."""
    # torchao compiles a kernel per weight shape: a minute at the start, with triton or a C++ compiler.
    if type(optimizer).__module__.startswith("torchao."):
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


def _as_number(name: str, value: Any, default: Any) -> Any:
    """Returns an integer as a float if the argument's default is a float."""
    if not isinstance(default, float) or isinstance(value, bool) or not isinstance(value, int):
        return value
    # A huge integer used as an exponent would be computed exactly, for hours, with the GIL held.
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"optimizer_args: {name} is too large a number. Write a smaller one.") from None


def _arguments_of(kind: Callable[..., torch.optim.Optimizer]) -> dict[str, Any]:
    """Returns the arguments of an optimizer class with their defaults."""
    found: dict[str, Any] = {}
    # A class that only forwards `**kwargs` takes the arguments of its base classes.
    for ancestor in inspect.getmro(kind):  # type: ignore[arg-type]
        if ancestor is torch.optim.Optimizer:
            break
        if "__init__" in vars(ancestor):
            every = list(inspect.signature(ancestor.__init__).parameters.values())
            own = {p.name: p.default for p in every[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            found = {**own, **found}
            if not any(p.kind is p.VAR_KEYWORD for p in every):
                break
    return found
