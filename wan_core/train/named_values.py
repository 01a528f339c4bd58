"""Turns what an optimizer holds into named plain tensors and back, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, ConfigError

_NUMBER = ":number"
"""the end of the name of a saved number, which is no tensor in the optimizer"""


def copy_of(value: Any) -> Any:
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


def flat(name: str, value: Any) -> dict[str, Tensor]:
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


def filled_from(made: dict[str, Any], state: Mapping[str, Tensor], prefix: str, device: torch.device) -> dict[str, Any]:
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
