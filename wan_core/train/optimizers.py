"""Makes the optimizer of a run: of the class that its name means (`optimizer_classes.py`), given what settings say.

Nothing here is an optimizer of our own. What a class keeps between two steps is the business of `optimizer_state.py`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..config import nearest
from ..errors import ConfigError
from ..words import first_line
from .config import TrainConfig
from .learning_rate import rate_groups
from .optimizer_classes import class_of, ran_out_of_memory

_OURS = {"params": "", "lr": "learning_rate", "weight_decay": "weight_decay"}
"""arguments that settings of the node are for"""


def make_optimizer(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """Returns the optimizer that `config.optimizer` names, over float32 adapter weights by name.

    Weights whose learning rate is a multiple of the run's are groups of their own (`rates.py`).
    Raises DependencyError with the pip line for a package that is missing, and ConfigError for a class, an argument or
    a value that cannot be. Memory that runs out is raised as it is.
    """
    kind, known = class_of(config)
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
            others = sorted(takes.keys() - _OURS.keys())
            raise ConfigError(f'optimizer_args: {kind.__name__} takes no "{name}".{nearest(name, others)}')
        asked[name] = _as_number(name, asked[name], takes[name])
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


def finds_own_rate(config: TrainConfig) -> bool:
    """Returns whether the optimizer works out the learning rate, so that the setting is a factor of it."""
    return config.optimizer == "prodigy"


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


def _as_number(name: str, value: Any, usual: Any) -> Any:
    """Returns a whole number as a float where the class has one: as an exponent it would be worked out to the last
    digit, for hours, and nobody else would get a word in.
    """
    if not isinstance(usual, float) or isinstance(value, bool) or not isinstance(value, int):
        return value
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"optimizer_args: {name} is too large a number. Write a smaller one.") from None


def _arguments_of(kind: Callable[..., torch.optim.Optimizer]) -> dict[str, Any]:
    """Returns the names that the class takes, and their defaults.

    Some take any name and read few, so a `**kwargs` counts for nothing.
    """
    found: dict[str, Any] = {}
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
