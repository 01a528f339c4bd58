"""The bytes that an optimizer holds, counted on a small pair of weights before a run begins.

What cannot be resumed to the last bit is refused there.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

import torch
from torch import nn

from ..abilities import gpu_count
from ..errors import ConfigError, WanTrainerError
from ..words import first_line
from .config import TrainConfig
from .optimizer_classes import check_class, ran_out_of_memory, runs_on_gpu
from .optimizer_state import AdapterOptimizer, put_back, same

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
_SETTINGS = (
    *("optimizer", "optimizer_class", "optimizer_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "loraplus_lr_ratio", "offload_optimizer"),
)
"""settings that decide how many bytes an optimizer holds, or whether it can be made"""


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


def check_room(optimizer: AdapterOptimizer) -> None:
    """Raises torch.OutOfMemoryError where the GPU has no room for an update.

    An update that runs out half-way has changed some weights and not others, and cannot be tried again.
    """
    wanted: Counter[torch.device] = Counter()
    for parameter in optimizer.stepped.values():
        made = 0.0 if optimizer.inner.state.get(parameter) else _optimizer_bytes(optimizer.config)[0]
        wanted[parameter.device] += int(parameter.numel() * (_TEMPORARY_BYTES + made))
    for device, size in wanted.items():
        if device.type != "cpu":
            torch.empty(size, dtype=torch.uint8, device=device)


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
        put_back(self.weights, {name: weight.detach() for name, weight in other.weights.items()})
        self.optimizer.load(other.optimizer.state())

    def equals(self, other: _Trial) -> bool:
        mine, its = self.optimizer.state(), other.optimizer.state()
        weights = all(torch.equal(weight, other.weights[name]) for name, weight in self.weights.items())
        return weights and mine.keys() == its.keys() and all(same(mine[name], its[name]) for name in mine)

    def bytes_per_value(self, kind: str) -> float:
        held = [value for name, value in self.optimizer.state().items() if name.startswith(kind)]
        return sum(value.nbytes for value in held if value.ndim) / sum(w.numel() for w in self.weights.values())
