"""An optimizer over named adapters, and its state as named plain tensors that resume bitwise.

State consists of tensors, tensor subclasses (8-bit moments) and numbers, per weight or per group; `optimizer_bytes.py`
tests the round trip before a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigError
from .config import TrainConfig
from .learning_rate import owns_rate
from .optimizers import finds_own_rate, make_optimizer, runs_uncompiled
from .weight_copies import HostWeights, MeanWeights

_NUMBER = ":number"
"""suffix of a saved Python number's name"""
_OURS = {"params", "rate_factor"}
"""entries of a parameter group that are set here, and are not state"""


class AdapterOptimizer:
    """The optimizer of a run over its adapters."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], config: TrainConfig, *, then: Callable[[], None] = lambda: None
    ) -> None:
        """`parameters`: float32 weights by name. `then`: called after each update, before the EMA.

        Raises what `make_optimizer` does.
        """
        self._host = HostWeights(parameters) if config.offload_optimizer else None
        self.stepped = self._host.copies if self._host else parameters
        self.inner, self._then = make_optimizer(self.stepped, config), then
        self._parameters, self.config = parameters, config
        self._mean = MeanWeights(parameters, config.ema_decay) if config.ema_decay else None
        self._decided = _OURS | {"lr"} if owns_rate(config) else _OURS
        self._write_rates(config.learning_rate)
        self._initial = [self._own(group) for group in self.inner.param_groups]

    @property
    def remarks(self) -> dict[str, str]:
        """Warnings on host memory, one for each topic."""
        return self._host.remarks if self._host else {}

    def read(self, values: Tensor) -> list[float]:
        """Returns `values` (n,) of a device as numbers. An offloaded optimizer copies weights and gradients to the host
        in the same synchronization."""
        if self._host:
            self._host.take(values.device)
        return values.tolist()

    def step(self, rate: float) -> float:
        """Updates the weights, after a `read` with final gradients; returns the effective learning rate.

        `rate`: the schedule's (see `owns_rate`).
        """
        if "lr" in self._decided:
            self._write_rates(rate)
        with runs_uncompiled(self.inner):
            self.inner.step()
        if self._host:
            self._host.give_back()
        self._then()
        if self._mean is not None:
            self._mean.update()
        group = self.inner.param_groups[0]
        found = float(group["d"]) if finds_own_rate(self.config) else 1.0
        return float(group["lr"]) / group["rate_factor"] * found

    def _write_rates(self, rate: float) -> None:
        """Sets each group's learning rate to `rate` times its factor."""
        for group in self.inner.param_groups:
            if isinstance(group["lr"], Tensor):  # torchao keeps its learning rate in a tensor
                group["lr"].fill_(rate * group["rate_factor"])
            else:
                group["lr"] = rate * group["rate_factor"]

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """Inside, the model has the weights to evaluate, preview and save; afterwards the trained weights, bitwise.

        They differ for an EMA, and for an optimizer with an averaged iterate (schedule-free).
        """
        mean = self._mean
        modes = self._modes if mean is None else (lambda: restore(self._parameters, mean.values), lambda: None)
        if modes is None:
            yield
            return
        enter, leave = modes
        # Copied to host memory: a device that runs out of memory between two copies would mix averaged and trained
        # weights.
        trained = {name: p.detach().to("cpu", copy=True) for name, p in self._parameters.items()}
        try:
            self._take_now()
            enter()
            if self._host and self._mean is None:
                self._host.give_back()
            yield
        finally:
            self._take_now()
            leave()
            # Exact; `train()` of the optimizer would restore them with rounding errors.
            restore(self._parameters, trained)

    def state(self) -> dict[str, Tensor]:
        """Returns the state as CPU copies.

        `optimizer.<parameter>.<key>`: per weight. `optimizer_group.<number>.<key>`: entries of a group that changed
        since construction. `ema.<parameter>`: EMA. `judged.<parameter>`: the optimizer's average, unused by a resume.
        """
        found: dict[str, Tensor] = {} if self._mean is None else self._mean.state()
        if self._mean is None and self._modes is not None:
            with self.evaluated_weights():
                found |= {f"judged.{name}": p.detach().to("cpu", copy=True) for name, p in self._parameters.items()}
        for name, parameter in self.stepped.items():
            for key, value in self.inner.state.get(parameter, {}).items():
                found |= _flat(f"optimizer.{name}.{key}", value)
        for number, (group, initial) in enumerate(zip(self.inner.param_groups, self._initial, strict=True)):
            for key, value in group.items():
                if key not in self._decided and not (key in initial and same(initial[key], value)):
                    found |= _flat(f"optimizer_group.{number}.{key}", value)
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Loads `state()`, each value with the type, dtype and device that a step gives it.

        Raises CheckpointError if a weight has no state.
        """
        if self._mean is not None:
            self._mean.load(state)
        if not any(name.startswith("optimizer.") for name in state):  # saved before the first finite step
            return
        for name in self._parameters:
            if not any(saved.startswith(f"optimizer.{name}.") for saved in state):
                raise CheckpointError(
                    f"The resume state has no optimizer state for {name}. Resume from an older saved step."
                )
        # Libraries create their state in the first step, and only then are types, dtypes and devices known.
        self._step_on_nothing()
        for name, parameter in self.stepped.items():
            self.inner.state[parameter] = _filled_from(
                dict(self.inner.state.get(parameter, {})), state, f"optimizer.{name}.", parameter.device
            )
        device = next(iter(self.stepped.values())).device
        for number, (group, initial) in enumerate(zip(self.inner.param_groups, self._initial, strict=True)):
            now = self._own(group)
            filled = _filled_from(now, state, f"optimizer_group.{number}.", device)
            group.update({key: _copy_of(value) for key, value in initial.items()} | filled)
            for key in now.keys() - initial.keys() - filled.keys():
                del group[key]

    def forget(self) -> None:
        """Frees the state; `load` restores it from a copy."""
        self.inner.state.clear()
        if self._host:
            self._host.forget()

    def _take_now(self) -> None:
        """Waits until an optimizer with an averaged iterate, if offloaded, has the weights of the model."""
        if self._host and self._mean is None:
            self.read(torch.zeros(1, device=next(iter(self._parameters.values())).device))

    @property
    def _modes(self) -> tuple[Callable[[], object], Callable[[], object]] | None:
        """`eval` and `train` of an optimizer with an averaged iterate (schedule-free); None for others."""
        leave, back = getattr(self.inner, "eval", None), getattr(self.inner, "train", None)
        return (leave, back) if callable(leave) and callable(back) else None

    def _own(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Returns copies of a group's entries that do not come from settings or schedule."""
        return {key: _copy_of(value) for key, value in group.items() if key not in self._decided}

    def _step_on_nothing(self) -> None:
        """Creates the state by a step with zero gradients; the weights are restored."""
        before = {name: p.detach().to("cpu", copy=True) for name, p in self.stepped.items()}
        for parameter in self.stepped.values():
            parameter.grad = torch.zeros_like(parameter)
        try:
            with runs_uncompiled(self.inner):
                self.inner.step()
        finally:
            restore(self.stepped, before)
            for parameter in self.stepped.values():
                parameter.grad = None


def restore(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])


def _copy_of(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def same(one: Any, other: Any) -> bool:
    """Returns whether two state values are bitwise equal, NaN included."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        one, other = (value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for value in (one, other))
        return bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)


def _parts_of(value: Tensor) -> list[tuple[str, Tensor]]:
    """Returns the plain tensors inside a tensor subclass, each with its name's suffix; a plain tensor with ""."""
    if not hasattr(value, "__tensor_flatten__"):
        return [("", value)]
    names, _ = value.__tensor_flatten__()  # type: ignore[operator]
    inner = ((name, end, part) for name in names for end, part in _parts_of(getattr(value, name)))
    return [(f"/{name}{end}", part) for name, end, part in inner]


def _flat(name: str, value: Any) -> dict[str, Tensor]:
    """Returns a state value as named tensors. Raises ConfigError for a type that cannot be saved."""
    if value is None:
        return {}
    if isinstance(value, Tensor):
        parts = _parts_of(value.detach())
        return {name + end: part.detach().to("cpu", copy=True).contiguous() for end, part in parts}
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
    if type(value) not in kinds:
        raise ConfigError(
            f"The optimizer holds a {type(value).__name__} ({name}), which cannot be saved. Choose another optimizer."
        )
    return {name + _NUMBER: torch.tensor(value, dtype=kinds[type(value)])}


def _filled_from(
    made: dict[str, Any], state: Mapping[str, Tensor], prefix: str, device: torch.device
) -> dict[str, Any]:
    """Returns the entries of `state` below `prefix` by key, with type and device of the entries that a step `made`."""
    saved = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    filled: dict[str, Any] = {}
    for name, value in saved.items():
        key = name.removesuffix(_NUMBER).partition("/")[0]
        if name.endswith(_NUMBER):
            filled[key] = value.item()
        elif isinstance(made.get(key), Tensor):
            target = filled.setdefault(key, made[key])
            parts = dict(_parts_of(target.detach()))
            part = parts.get(name.removeprefix(key))
            if part is None or part.shape != value.shape:
                raise CheckpointError(
                    f"The resume state has another type of {prefix}{key} than this optimizer. Resume with the "
                    "optimizer that saved it, or set resume to new."
                )
            part.copy_(value)
        else:
            filled[key] = value.to(device, copy=True)
    return filled
