"""Caches the results of operators on meta tensors: shape, strides and dtype.

torch computes many of them in Python, which takes fifty times as long as a cached answer. A traced step repeats a few
hundred different operator calls thousands of times, because blocks, chunks and most linears are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

_New = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""shape, strides and dtype of a contiguous tensor that owns its storage"""
_cache: dict[Any, tuple[_New | None, ...] | None] = {}
"""operator call -> its new tensors; None: not cacheable"""
_MOST_CACHED = 20_000


def run_on_meta(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Returns `func(*args, **kwargs)`, for an operator of torch on meta tensors."""
    fills = _fills_one(func)
    if not fills and not _makes_new_tensors(func):
        return func(*args, **kwargs)
    call = (func, _signature(args), *((name, _signature(value)) for name, value in kwargs.items()))
    filled = (kwargs["out"] if "out" in kwargs else args[0]) if fills else None
    if (cached := _cache.get(call)) is not None:
        made = [None if new is None else _empty(*new) for new in cached]
        return filled if fills else made[0] if len(made) == 1 else tuple(made)
    before = _place(filled)
    result = func(*args, **kwargs)
    if call not in _cache:
        if len(_cache) == _MOST_CACHED:
            _cache.clear()
        unchanged = () if _place(filled) == before else None  # an `out` of another shape is resized
        _cache[call] = unchanged if fills else _new_tensors(args, result)
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
    """Returns whether the schema of an operator declares no changed argument and no alias of one."""
    schema = func._schema  # pyright: ignore[reportPrivateUsage]
    return not schema.is_mutable and all(made.alias_info is None for made in schema.returns)


def _signature(value: Any) -> Any:
    """Returns the part of an argument that decides the shape of a result, with its type, because 1 == 1.0."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    return type(value), value


def _new_tensors(args: tuple[Any, ...], result: Any) -> tuple[_New | None, ...] | None:
    # A few operators such as _unsafe_view share a storage without declaring it.
    others = {_storage(value) for value in args if isinstance(value, Tensor)}
    made = result if isinstance(result, tuple) else (result,)
    for one in made:
        if one is not None and (not isinstance(one, Tensor) or _storage(one) in others or not _is_plain(one)):
            return None
        others |= set() if one is None else {_storage(one)}
    return tuple(None if one is None else (one.shape, one.stride(), one.dtype) for one in made)


def _is_plain(tensor: Tensor) -> bool:
    alike = _empty(tensor.shape, tensor.stride(), tensor.dtype).untyped_storage().nbytes()
    return tensor.is_meta and not tensor.storage_offset() and tensor.untyped_storage().nbytes() == alike


def _empty(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _place(tensor: Tensor | None) -> Any:
    return None if tensor is None else (_signature(tensor), _storage(tensor))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
