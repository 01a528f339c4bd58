"""An optimizer over named adapters, and one contract for what it holds.

Whatever it keeps between two steps - tensors, tensors made of others (8-bit moments), numbers, for a weight or for a
group of them - is saved by name, comes back to the last bit, and is counted. `state_bytes` proves it on a small pair of
weights before a run begins: what cannot be resumed exactly is refused.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..abilities import gpu_count
from ..errors import CheckpointError, ConfigError, WanTrainerError
from ..words import first_line
from .config import TrainConfig
from .learning_rate import owns_rate
from .named_values import copy_of, filled_from, flat, same
from .optimizer_classes import check_class, ran_out_of_memory, runs_on_gpu
from .optimizers import finds_own_rate, make_optimizer, runs_uncompiled
from .weight_copies import HostWeights, MeanWeights

_ADAMW_BYTES = 8.0
"""two float32 values; a plan counts as many for a class that it does not know"""
UNKNOWN_CLASS = (
    "The optimizer of optimizer_class is loaded by the training alone, so the plan counts two float32 values for each "
    "weight of the LoRA, as AdamW has them."
)
"""what is said of such a plan"""
_COPY_BYTES = 8
"""per adapter value, of a weight and its gradient in host memory"""
_TEMPORARY_BYTES = 8
"""per adapter value while AdamW runs: its lists; the others take at most as much"""
_OURS = {"params", "rate_factor"}
"""entries of a group that the settings decide"""
_SETTINGS = (
    *("optimizer", "optimizer_class", "optimizer_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "loraplus_lr_ratio", "offload_optimizer"),
)
"""settings that decide how many bytes an optimizer holds, or whether it can be made"""


class AdapterOptimizer:
    """The optimizer of a run over its adapters."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], config: TrainConfig, *, then: Callable[[], None] = lambda: None
    ) -> None:
        """`parameters`: float32 weights by name. `then` is called after each update, before the mean takes it in.

        Raises what `make_optimizer` does.
        """
        self._host = HostWeights(parameters) if config.offload_optimizer else None
        self._stepped = self._host.copies if self._host else parameters
        self._at_hand = self._host.at_hand if self._host else nullcontext
        self.inner, self._then = make_optimizer(self._stepped, config), then
        self._parameters, self._config = parameters, config
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
        found = float(group["d"]) if finds_own_rate(self._config) else 1.0
        return float(group["lr"]) / group["rate_factor"] * found

    def _write_rates(self, rate: float) -> None:
        """Gives each group `rate` times its factor; a library may hold its rate as a tensor."""
        for group in self.inner.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["rate_factor"])
            else:
                group["lr"] = rate * group["rate_factor"]

    def check_room(self) -> None:
        """Raises torch.OutOfMemoryError where the GPU has no room for an update.

        An update that runs out half-way has changed some weights and not others, and cannot be tried again.
        """
        wanted: Counter[torch.device] = Counter()
        for parameter in self._stepped.values():
            made = 0.0 if self.inner.state.get(parameter) else _optimizer_bytes(self._config)[0]
            wanted[parameter.device] += int(parameter.numel() * (_TEMPORARY_BYTES + made))
        for device, size in wanted.items():
            if device.type != "cpu":
                torch.empty(size, dtype=torch.uint8, device=device)

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
            _put_back(self._parameters, trained)  # the way back by arithmetic would not be exact

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
        for name, parameter in self._stepped.items():
            for key, value in self.inner.state.get(parameter, {}).items():
                found |= flat(f"optimizer.{name}.{key}", value)
        for number, (group, begun) in enumerate(zip(self.inner.param_groups, self._begun, strict=True)):
            for key, value in group.items():
                if key not in self._decided and not (key in begun and same(begun[key], value)):
                    found |= flat(f"optimizer_group.{number}.{key}", value)
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
        for name, parameter in self._stepped.items():
            self.inner.state[parameter] = filled_from(
                dict(self.inner.state.get(parameter, {})), state, f"optimizer.{name}.", parameter.device
            )
        device = next(iter(self._stepped.values())).device
        for number, (group, begun) in enumerate(zip(self.inner.param_groups, self._begun, strict=True)):
            now = self._own(group)
            filled = filled_from(now, state, f"optimizer_group.{number}.", device)
            group.update({key: copy_of(value) for key, value in begun.items()} | filled)
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
        return {key: copy_of(value) for key, value in group.items() if key not in self._decided}

    def _step_on_nothing(self) -> None:
        """Makes a step with gradients of 0, so that everything is there to be filled; the weights stay."""
        before = {name: p.detach().to("cpu", copy=True) for name, p in self._stepped.items()}
        for parameter in self._stepped.values():
            parameter.grad = torch.zeros_like(parameter)
        try:
            with runs_uncompiled(self.inner):
                self.inner.step()
        finally:
            _put_back(self._stepped, before)
            for parameter in self._stepped.values():
                parameter.grad = None


def state_bytes(config: TrainConfig) -> float:
    """Returns the bytes that the optimizer of `config`, and the mean of the weights, hold for each adapter value.

    They are counted on a small pair of weights, trained for three steps. Raises what `make_optimizer` does,
    and ConfigError for an optimizer that is not the same after a resume.
    """
    return _optimizer_bytes(config)[0] + (4.0 if config.ema_decay else 0.0)


def check_optimizer(config: TrainConfig) -> None:
    """Refuses an optimizer that is not to be had, before anything is encoded. For the server: imports no named class.

    Raises what `state_bytes` does; whether a class that a graph names can train, that alone tells.
    """
    if config.optimizer == "custom":
        check_class(config)
    else:
        state_bytes(config)


def held_bytes(config: TrainConfig) -> tuple[float, float]:
    """Returns what a plan counts for each adapter value: on the device, and in host memory with the weights that are
    stepped there.
    """
    held, mean = _planned_bytes(config)[0], 4.0 if config.ema_decay else 0.0
    return (mean, held + _COPY_BYTES) if config.offload_optimizer else (held + mean, 0.0)


def saved_bytes(values: int, config: TrainConfig) -> int:
    """Returns what a saved step of so many adapter values takes on disk: weights, optimizer and the LoRA file."""
    held, besides = _planned_bytes(config)
    return int(values * (4 + held + (4 if config.ema_decay else besides) + 4))


def _planned_bytes(config: TrainConfig) -> tuple[float, float]:
    """Returns the bytes that a plan counts, which never loads a class that a graph names."""
    return (_ADAMW_BYTES, 0.0) if config.optimizer == "custom" else _optimizer_bytes(config)


def _optimizer_bytes(config: TrainConfig) -> tuple[float, float]:
    """Returns the bytes for each adapter value in memory, and those that a saved step has besides."""
    if config.optimizer == "adamw" and not config.optimizer_args:
        return _ADAMW_BYTES, 0.0  # the page asks often, and the first optimizer of a process costs a second
    return _counted(replace(TrainConfig(lr_scheduler="constant"), **{n: getattr(config, n) for n in _SETTINGS}))


@functools.lru_cache(maxsize=64)
def _counted(config: TrainConfig) -> tuple[float, float]:
    with torch.inference_mode(False):  # of ComfyUI, where quantized moments cannot even be looked at
        try:
            straight, resumed = _Trial(config), _Trial(config)
            straight.train(0, 3)
            resumed.train(0, 2)
            second = _Trial(config)
            second.take_up(resumed)
            second.train(2, 3)
        except WanTrainerError:
            raise
        except Exception as error:
            if ran_out_of_memory(error):
                raise
            raise ConfigError(
                f'optimizer "{_title(config)}" cannot train a LoRA: {first_line(error).rstrip(".")}. Change '
                "optimizer_args, or choose another optimizer."
            ) from error
        if not straight.equals(second):
            raise ConfigError(
                f'optimizer "{_title(config)}" holds something that cannot be saved: after a resume it goes on '
                "otherwise. Choose another optimizer."
            )
        return straight.bytes_per_value("optimizer."), straight.bytes_per_value("judged.")


def _title(config: TrainConfig) -> str:
    return config.optimizer_class if config.optimizer == "custom" else config.optimizer


class _Trial:
    """An optimizer on the pair of one small linear; large enough that 8-bit moments are 8-bit."""

    def __init__(self, config: TrainConfig) -> None:
        draw = torch.Generator().manual_seed(0)
        shapes = {"trial.lora_A.weight": (16, 1024), "trial.lora_B.weight": (1024, 16)}
        where = "cuda" if runs_on_gpu(config) and gpu_count() else "cpu"
        values = {name: 0.02 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        self.weights = {name: nn.Parameter(value.to(where)) for name, value in values.items()}
        self.optimizer, self._rate = AdapterOptimizer(self.weights, config), config.learning_rate

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            draw = torch.Generator().manual_seed(1 + step)
            for weight in self.weights.values():
                weight.grad = torch.randn(weight.shape, generator=draw).to(weight.device)
            self.optimizer.step(self._rate)

    def take_up(self, other: _Trial) -> None:
        _put_back(self.weights, {name: weight.detach() for name, weight in other.weights.items()})
        self.optimizer.load(other.optimizer.state())

    def equals(self, other: _Trial) -> bool:
        mine, its = self.optimizer.state(), other.optimizer.state()
        weights = all(torch.equal(weight, other.weights[name]) for name, weight in self.weights.items())
        return weights and mine.keys() == its.keys() and all(same(mine[name], its[name]) for name in mine)

    def bytes_per_value(self, kind: str) -> float:
        held = [value for name, value in self.optimizer.state().items() if name.startswith(kind)]
        return sum(value.nbytes for value in held if value.ndim) / sum(w.numel() for w in self.weights.values())


def _put_back(parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
