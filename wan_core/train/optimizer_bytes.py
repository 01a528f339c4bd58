"""Bytes of optimizer state, measured on a small pair of weights before a run starts.

The same trial refuses an optimizer whose state does not resume bitwise.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

import torch
from torch import nn

from ..accelerator import default_device
from ..errors import ConfigError, WanTrainerError
from ..words import first_line
from .config import TrainConfig
from .optimizer_classes import check_class, ran_out_of_memory, runs_on_gpu
from .optimizer_state import AdapterOptimizer, restore, same

_ADAMW_BYTES = 8.0
"""bytes of AdamW's two float32 moments for each value; also the plan's estimate for a custom class"""
UNKNOWN_CLASS = (
    "The optimizer of optimizer_class is loaded by the training alone, so the plan counts two float32 values for each "
    "weight of the LoRA, as AdamW has them."
)
"""the note on that estimate"""
_COPY_BYTES = 8
"""per adapter value: host copies of weight and gradient"""
_TEMPORARY_BYTES = 8
"""per adapter value during an update: AdamW's foreach lists; other optimizers take at most as much"""
_SETTINGS = (
    *("optimizer", "optimizer_class", "optimizer_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "loraplus_lr_ratio", "offload_optimizer"),
)
"""settings that decide the bytes of an optimizer, or whether it can be constructed"""


def state_bytes(config: TrainConfig) -> float:
    """Returns the bytes of optimizer state and EMA per adapter value.

    Raises what `make_optimizer` does, and ConfigError for an optimizer that does not resume bitwise.
    """
    return _optimizer_bytes(config)[0] + (4.0 if config.ema_decay else 0.0)


def check_optimizer(config: TrainConfig) -> None:
    """Refuses an unusable optimizer before anything is encoded. Raises what `state_bytes` does."""
    if config.optimizer == "custom":  # the server never imports a class that a graph names; the worker does
        check_class(config)
    else:
        state_bytes(config)


def held_bytes(config: TrainConfig) -> tuple[float, float]:
    """Returns planned bytes per adapter value, (on the device, in host memory): optimizer state, EMA, host copies."""
    held, mean = _planned_bytes(config)[0], 4.0 if config.ema_decay else 0.0
    return (mean, held + _COPY_BYTES) if config.offload_optimizer else (held + mean, 0.0)


def saved_bytes(values: int, config: TrainConfig) -> int:
    """Returns the bytes of a saved step of `values` adapter values: weights, optimizer state and LoRA file."""
    held, extra = _planned_bytes(config)
    return int(values * (4 + held + (4 if config.ema_decay else extra) + 4))


def check_room(optimizer: AdapterOptimizer) -> None:
    """Raises torch.OutOfMemoryError if the GPU has no room for an update."""
    # An update that runs out of memory half-way has changed only some weights, and cannot be retried.
    wanted: Counter[torch.device] = Counter()
    for parameter in optimizer.stepped.values():
        made = 0.0 if optimizer.inner.state.get(parameter) else _optimizer_bytes(optimizer.config)[0]
        wanted[parameter.device] += int(parameter.numel() * (_TEMPORARY_BYTES + made))
    for device, size in wanted.items():
        if device.type != "cpu":
            torch.empty(size, dtype=torch.uint8, device=device)


def _planned_bytes(config: TrainConfig) -> tuple[float, float]:
    """Returns `_optimizer_bytes`, or AdamW's for a custom class: a plan must not import one."""
    return (_ADAMW_BYTES, 0.0) if config.optimizer == "custom" else _optimizer_bytes(config)


def _optimizer_bytes(config: TrainConfig) -> tuple[float, float]:
    """Returns bytes per adapter value, (in memory, only in a saved step)."""
    if config.optimizer == "adamw" and not config.optimizer_args:
        # Not measured: the page calls this often, and the first optimizer of a process takes a second.
        return _ADAMW_BYTES, 0.0
    return _counted(replace(TrainConfig(lr_scheduler="constant"), **{n: getattr(config, n) for n in _SETTINGS}))


@functools.lru_cache(maxsize=64)
def _counted(config: TrainConfig) -> tuple[float, float]:
    with torch.inference_mode(False):  # ComfyUI runs nodes in inference mode, where quantized moments cannot be read
        try:
            straight, stopped = _Trial(config), _Trial(config)
            straight.train(0, 3)
            stopped.train(0, 2)
            resumed = _Trial(config)
            resumed.resume(stopped)
            resumed.train(2, 3)
        except WanTrainerError:
            raise
        except Exception as error:
            if ran_out_of_memory(error):
                raise
            raise ConfigError(
                f'optimizer "{_title(config)}" cannot train a LoRA: {first_line(error).rstrip(".")}. Change '
                "optimizer_args, or choose another optimizer."
            ) from error
        if not straight.equals(resumed):
            raise ConfigError(
                f'optimizer "{_title(config)}" has state that cannot be saved: after a resume it gives '
                "other results. Choose another optimizer."
            )
        return straight.bytes_per_value("optimizer."), straight.bytes_per_value("judged.")


def _title(config: TrainConfig) -> str:
    return config.optimizer_class if config.optimizer == "custom" else config.optimizer


class _Trial:
    """An optimizer on the LoRA pair of one small linear."""

    def __init__(self, config: TrainConfig) -> None:
        draw = torch.Generator().manual_seed(0)
        # Below 4,096 values torchao and bitsandbytes keep moments in float32, and the count would be wrong.
        shapes = {"trial.lora_A.weight": (16, 1024), "trial.lora_B.weight": (1024, 16)}
        where = default_device().type if runs_on_gpu(config) else "cpu"
        values = {name: 0.02 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        self.weights = {name: nn.Parameter(value.to(where)) for name, value in values.items()}
        self.optimizer, self._rate = AdapterOptimizer(self.weights, config), config.learning_rate

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            draw = torch.Generator().manual_seed(1 + step)
            for weight in self.weights.values():
                weight.grad = torch.randn(weight.shape, generator=draw).to(weight.device)
            self.optimizer.read(torch.zeros(1))
            self.optimizer.step(self._rate)

    def resume(self, other: _Trial) -> None:
        restore(self.weights, {name: weight.detach() for name, weight in other.weights.items()})
        self.optimizer.load(other.optimizer.state())

    def equals(self, other: _Trial) -> bool:
        mine, its = self.optimizer.state(), other.optimizer.state()
        weights = all(torch.equal(weight, other.weights[name]) for name, weight in self.weights.items())
        return weights and mine.keys() == its.keys() and all(same(mine[name], its[name]) for name in mine)

    def bytes_per_value(self, kind: str) -> float:
        held = [value for name, value in self.optimizer.state().items() if name.startswith(kind)]
        return sum(value.nbytes for value in held if value.ndim) / sum(w.numel() for w in self.weights.values())
