"""Operators on meta tensors, which have a shape and no values; torch computes the shape of each result once.

torch answers many of them in Python, in fifty times what the answer takes. A traced step asks a few hundred different
questions, thousands of times: every block, every chunk and most linears are like the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

_New = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""shape, strides and dtype of a tensor with a storage of its own, no larger than it needs"""
_answers: dict[Any, tuple[_New | None, ...] | None] = {}
"""question -> what it makes; None where it has to be asked each time"""
_MOST_ANSWERS = 20_000


def run_on_meta(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns `func(*args, **kwargs)`, where `func` is an operator of torch and every tensor in it a meta tensor."""
    fills = _fills_one(func)
    if not fills and not _makes_new_tensors(func):
        return func(*args, **kwargs)
    question = (func, _kind(args), *((name, _kind(value)) for name, value in kwargs.items()))
    filled = (kwargs["out"] if "out" in kwargs else args[0]) if fills else None
    if (answer := _answers.get(question)) is not None:
        made = [None if new is None else _empty(*new) for new in answer]
        return filled if fills else made[0] if len(made) == 1 else tuple(made)
    before = _place(filled)
    result = func(*args, **kwargs)
    if question not in _answers:
        if len(_answers) == _MOST_ANSWERS:
            _answers.clear()
        stays = () if _place(filled) == before else None  # an `out` of another shape is resized
        _answers[question] = stays if fills else _answer(args, result)
    return result


@cache
def _fills_one(func: Any) -> bool:
    """Returns whether an operator writes into one tensor, `out` or its first argument, and returns it."""
    schema = func._schema  # pyright: ignore[reportPrivateUsage]
    writes = [given.name for given in schema.arguments if given.alias_info is not None and given.alias_info.is_write]
    returned = [made.alias_info is not None and made.alias_info.is_write for made in schema.returns]
    return returned == [True] and writes in (["out"], [schema.arguments[0].name])


@cache
def _makes_new_tensors(func: Any) -> bool:
    """Returns whether an operator, as torch declares it, changes nothing and shares nothing with what it is given."""
    schema = func._schema  # pyright: ignore[reportPrivateUsage]
    return not schema.is_mutable and all(made.alias_info is None for made in schema.returns)


def _kind(value: Any) -> Any:
    """Returns what of an argument decides the shape of a result. Types are part of it, as 1 and 1.0 are equal."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    return type(value), value


def _answer(args: tuple[Any, ...], result: Any) -> tuple[_New | None, ...] | None:
    # A few operators, as _unsafe_view, share a storage and do not declare it.
    others = {_storage(value) for value in args if isinstance(value, Tensor)}
    made = result if isinstance(result, tuple) else (result,)
    for one in made:
        if one is not None and (not isinstance(one, Tensor) or _storage(one) in others or not _is_plain(one)):
            return None
        others |= set() if one is None else {_storage(one)}
    return tuple(None if one is None else (one.shape, one.stride(), one.dtype) for one in made)


def _is_plain(tensor: Tensor) -> bool:
    """Returns whether shape, strides and dtype say all of a tensor."""
    alike = _empty(tensor.shape, tensor.stride(), tensor.dtype).untyped_storage().nbytes()
    return tensor.is_meta and not tensor.storage_offset() and tensor.untyped_storage().nbytes() == alike


def _empty(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _place(tensor: Tensor | None) -> Any:
    return None if tensor is None else (_kind(tensor), _storage(tensor))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
