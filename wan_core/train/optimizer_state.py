"""An optimizer over named adapters, and one contract for what it holds.

Whatever it keeps between two steps - tensors, tensors made of others (8-bit moments), numbers, for a weight or for a
group of them - is saved as named plain tensors and comes back to the last bit; `optimizer_bytes.py` proves and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigError
from .config import TrainConfig
from .learning_rate import owns_rate
from .optimizers import finds_own_rate, make_optimizer, runs_uncompiled
from .weight_copies import HostWeights, MeanWeights

_NUMBER = ":number"
"""the end of the name of a saved number, which is no tensor in the optimizer"""
_OURS = {"params", "rate_factor"}
"""entries of a group that the settings decide"""


class AdapterOptimizer:
    """The optimizer of a run over its adapters."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], config: TrainConfig, *, then: Callable[[], None] = lambda: None
    ) -> None:
        """`parameters`: float32 weights by name. `then` is called after each update, before the mean takes it in.

        Raises what `make_optimizer` does.
        """
        self._host = HostWeights(parameters) if config.offload_optimizer else None
        self.stepped = self._host.copies if self._host else parameters
        self._at_hand = self._host.at_hand if self._host else nullcontext
        self.inner, self._then = make_optimizer(self.stepped, config), then
        self._parameters, self.config = parameters, config
        self._mean = MeanWeights(parameters, config.ema_decay) if config.ema_decay else None
        self._decided = _OURS | {"lr"} if owns_rate(config) else _OURS
        self._write_rates(config.learning_rate)
        self._begun = [self._own(group) for group in self.inner.param_groups]

    def step(self, rate: float) -> float:
        """Updates the weights by their gradients; returns the learning rate that counted.

        `rate` is what the schedule says; where it owns none, the optimizer keeps its own.
        """
        if "lr" in self._decided:
            self._write_rates(rate)
        with runs_uncompiled(self.inner), self._at_hand():
            self.inner.step()
        self._then()
        if self._mean is not None:
            self._mean.update()
        group = self.inner.param_groups[0]
        found = float(group["d"]) if finds_own_rate(self.config) else 1.0
        return float(group["lr"]) / group["rate_factor"] * found

    def _write_rates(self, rate: float) -> None:
        """Gives each group `rate` times its factor; a library may hold its rate as a tensor."""
        for group in self.inner.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["rate_factor"])
            else:
                group["lr"] = rate * group["rate_factor"]

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Inside, the weights are those that are evaluated, previewed and saved; afterwards the trained ones, exactly.

        They differ where a mean is kept: ours (EMA), or that of the optimizer (schedule-free).
        """
        if self._mean is not None:
            with self._mean.in_place():
                yield
            return
        if (modes := self._modes) is None:
            yield
            return
        leave, back = modes
        trained = {name: p.detach().to("cpu", copy=True) for name, p in self._parameters.items()}
        with self._at_hand():
            leave()
        try:
            yield
        finally:
            back()
            put_back(self._parameters, trained)  # the way back by arithmetic would not be exact

    def state(self) -> dict[str, Tensor]:
        """Returns CPU copies of all that it holds.

        `optimizer.<parameter>.<key>` is of one weight, `optimizer_group.<number>.<key>` what it changed of a group
        since it was made. The mean of the weights is named by itself: ours `ema.<parameter>`, that of the optimizer
        `judged.<parameter>`, which nothing is resumed from.
        """
        found: dict[str, Tensor] = {} if self._mean is None else self._mean.state()
        if self._mean is None and self._modes is not None:
            with self.judged():
                found |= {f"judged.{name}": p.detach().to("cpu", copy=True) for name, p in self._parameters.items()}
        for name, parameter in self.stepped.items():
            for key, value in self.inner.state.get(parameter, {}).items():
                found |= _flat(f"optimizer.{name}.{key}", value)
        for number, (group, begun) in enumerate(zip(self.inner.param_groups, self._begun, strict=True)):
            for key, value in group.items():
                if key not in self._decided and not (key in begun and same(begun[key], value)):
                    found |= _flat(f"optimizer_group.{number}.{key}", value)
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes up what `state()` gave, each value in the kind, number format and place a step would have it.

        A state without any optimizer tensor was taken before the first good step; the optimizer then starts fresh.
        Raises CheckpointError where a weight has none.
        """
        if self._mean is not None:
            self._mean.load(state)
        if not any(name.startswith("optimizer.") for name in state):
            return
        for name in self._parameters:
            if not any(saved.startswith(f"optimizer.{name}.") for saved in state):
                raise CheckpointError(
                    f"The resume state has no optimizer state for {name}. Resume from an older saved step."
                )
        self._step_on_nothing()
        for name, parameter in self.stepped.items():
            self.inner.state[parameter] = _filled_from(
                dict(self.inner.state.get(parameter, {})), state, f"optimizer.{name}.", parameter.device
            )
        device = next(iter(self.stepped.values())).device
        for number, (group, begun) in enumerate(zip(self.inner.param_groups, self._begun, strict=True)):
            now = self._own(group)
            filled = _filled_from(now, state, f"optimizer_group.{number}.", device)
            group.update({key: _copy_of(value) for key, value in begun.items()} | filled)
            for key in now.keys() - begun.keys() - filled.keys():
                del group[key]

    def forget(self) -> None:
        """Frees what it holds, of which `state` has a copy; `load` takes it up again."""
        self.inner.state.clear()
        if self._host:
            self._host.forget()

    @property
    def _modes(self) -> tuple[Callable[[], object], Callable[[], object]] | None:
        """The ways to what a step is judged by and back, of an optimizer that trains something else."""
        leave, back = getattr(self.inner, "eval", None), getattr(self.inner, "train", None)
        return (leave, back) if callable(leave) and callable(back) else None

    def _own(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Returns copies of the entries of a group that are the optimizer's own."""
        return {key: _copy_of(value) for key, value in group.items() if key not in self._decided}

    def _step_on_nothing(self) -> None:
        """Makes a step with gradients of 0, so that everything is there to be filled; the weights stay."""
        before = {name: p.detach().to("cpu", copy=True) for name, p in self.stepped.items()}
        for parameter in self.stepped.values():
            parameter.grad = torch.zeros_like(parameter)
        try:
            with runs_uncompiled(self.inner):
                self.inner.step()
        finally:
            put_back(self.stepped, before)
            for parameter in self.stepped.values():
                parameter.grad = None


def put_back(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])


def _copy_of(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        one, other = (value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for value in (one, other))
        return bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)


def _parts_of(value: Tensor) -> list[tuple[str, Tensor]]:
    """Returns the plain tensors that a tensor is made of, each with the end of its name; itself where it is plain."""
    if not hasattr(value, "__tensor_flatten__"):
        return [("", value)]
    names, _ = value.__tensor_flatten__()  # type: ignore[operator]
    inner = ((name, end, part) for name in names for end, part in _parts_of(getattr(value, name)))
    return [(f"/{name}{end}", part) for name, end, part in inner]


def _flat(name: str, value: Any) -> dict[str, Tensor]:
    """Returns a value as named tensors. Raises ConfigError for one of a kind that cannot be saved."""
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
    """Returns the entries that `state` has below `prefix`, by key; those that a step `made` give kind and place."""
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
                    f"The resume state has another kind of {prefix}{key} than this optimizer. Resume with the "
                    "optimizer that saved it, or set resume to new."
                )
            part.copy_(value)
        else:
            filled[key] = value.to(device, copy=True)
    return filled
