"""The optimizer, its learning rate as a pure function of the step, and its state as named tensors."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigError
from .config import TrainConfig

__all__ = ["check_room", "learning_rate_at", "load_optimizer_state", "make_optimizer", "optimizer_state"]


_MOMENT_BYTES = 8
"""per adapter value: AdamW's two moments, made in its first step"""
_TEMPORARY_BYTES = 8
"""per adapter value while AdamW runs: its lists"""


def make_optimizer(parameters: dict[str, nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """Returns the optimizer that `config.optimizer` names, over float32 adapter weights.

    AdamW is also what these know: `load_optimizer_state` (its step counter), `Trainer._outlast_streak` (a state exists
    once a step was made), `saves._agrees` (it counts its updates) `check_room` and placement/memory.py (16 bytes a
    value).
    """
    if config.optimizer != "adamw":
        raise ConfigError(f'optimizer "{config.optimizer}" is offered, but nothing makes it. Set it to adamw.')
    return torch.optim.AdamW(
        list(parameters.values()),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
    )


def check_room(optimizer: torch.optim.Optimizer) -> None:
    """Raises torch.OutOfMemoryError where a step of `optimizer` would run out of GPU memory half-way.

    A step that ends in the middle has changed some weights and not others, and nobody could try it again.
    """
    wanted: Counter[torch.device] = Counter()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moments = 0 if parameter in optimizer.state else _MOMENT_BYTES
            wanted[parameter.device] += parameter.numel() * (_TEMPORARY_BYTES + moments)
    for device, size in wanted.items():
        if device.type != "cpu":
            torch.empty(size, dtype=torch.uint8, device=device)


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Returns the learning rate of optimizer step `step` (1-based).

    It warms up linearly, then stays constant or falls to 0, in a line or as a cosine.
    """
    if step <= config.lr_warmup_steps:
        return config.learning_rate * step / config.lr_warmup_steps
    if config.lr_scheduler == "constant":
        return config.learning_rate
    share = (step - 1 - config.lr_warmup_steps) / max(config.steps - config.lr_warmup_steps, 1)
    if config.lr_scheduler == "linear":
        return config.learning_rate * max(1 - share, 0.0)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """`optimizer.<parameter>.<key>` -> CPU copy of every tensor of the state (moments, step counters)."""
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{key}"] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
    return found


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], state: dict[str, Tensor]
) -> None:
    """Put `optimizer_state` back, each tensor in the dtype and place a fresh step would have it.

    A state without any optimizer tensor was taken before the first good step; the optimizer then starts fresh.
    """
    if not any(name.startswith("optimizer.") for name in state):
        return
    for name, parameter in parameters.items():
        prefix = f"optimizer.{name}."
        mine: dict[str, Any] = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        if not mine:
            raise CheckpointError(
                f"The resume state has no optimizer state for {name}. Resume from an older saved step."
            )
        # AdamW keeps its step counter on the CPU; moments live with their parameter.
        optimizer.state[parameter] = {
            key: value.clone() if key == "step" else value.to(parameter.device, copy=True)
            for key, value in mine.items()
        }
