"""One cache entry as bytes: a safetensors file of bfloat16 tensors (one for a latent or a text) and the SHA-256 of
its payload.

Owns the format and every check made before a byte of it is trusted. The reader is ours because it
must be stricter than a general one: only tensors of the expected names, offsets without a
hole, a known key, finite values.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["MAX_ENTRY_BYTES", "pack_entry", "unpack_entry"]

MAX_ENTRY_BYTES = 2 << 30
"""Larger than any latent this trainer writes (a 1280x720 clip of 1000 frames takes 0.12 GiB)."""

_MAX_HEADER_BYTES = 1 << 16


class _DamagedError(ValueError):
    """Internal: what is wrong with the bytes, without the name of the file."""


def pack_entry(tensors: Mapping[str, Tensor], *, key: str) -> bytes:
    """`tensors` as the bytes of an entry file, stored in bfloat16. The caller has checked shapes and
    finiteness.
    """
    from safetensors.torch import save

    stored = {name: tensors[name].detach().to("cpu", torch.bfloat16).contiguous() for name in sorted(tensors)}
    digest = hashlib.sha256()
    for tensor in stored.values():  # safetensors lays tensors of one dtype down by name
        digest.update(_bytes_of(tensor))
    return save(stored, metadata={"key": key, "sha256": digest.hexdigest()})


def unpack_entry(data: bytearray, *, allowed: Collection[str], key: str) -> dict[str, Tensor]:
    """The bfloat16 tensors of an entry by name, sharing memory with `data`; ValueError says what is bad."""
    header, payload_start = _header(data)
    metadata = _object(header.pop("__metadata__", None))
    if not header or not set(header) <= set(allowed):
        names = ", ".join(allowed)
        raise _DamagedError(
            f'it must hold exactly one tensor named "{names}"'
            if len(allowed) == 1
            else f"it must hold some of the tensors {names} and no others"
        )
    if metadata.get("key") != key:
        raise _DamagedError("it belongs to another key")
    places = _places(header, len(data) - payload_start)
    payload = memoryview(data)[payload_start:]
    if hashlib.sha256(payload).hexdigest() != metadata.get("sha256"):
        raise _DamagedError("its checksum does not match")
    tensors = {
        name: torch.frombuffer(data, dtype=torch.bfloat16, count=count, offset=payload_start + start).view(shape)
        for name, start, count, shape in places
    }
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise _DamagedError("it holds NaN or infinity")
    return tensors


def _header(data: bytearray) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(_MAX_HEADER_BYTES, len(data) - 8):
        raise _DamagedError("it is not a complete safetensors file")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise _DamagedError("its header is not valid JSON") from error
    return _object(header), 8 + length


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _places(header: dict[str, Any], payload_bytes: int) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """(name, first byte, values, shape) of every tensor, once it is sure that they tile exactly the payload."""
    found = [(name, *_place(entry)) for name, entry in header.items()]
    end = 0
    for _name, start, count, _shape in sorted(found, key=lambda place: place[1]):
        if start != end:
            raise _DamagedError("its shapes do not match its length")
        end = start + 2 * count
    if end != payload_bytes:
        raise _DamagedError("its shapes do not match its length")
    return found


def _place(entry: Any) -> tuple[int, int, tuple[int, ...]]:
    known = _object(entry)
    if known.get("dtype") != "BF16":
        raise _DamagedError("its tensor is not bfloat16")
    shape: list[int] = known.get("shape", [])
    if type(shape) is not list or not all(type(n) is int and 0 < n < 1 << 24 for n in shape):
        raise _DamagedError("its shape is not a list of positive sizes")
    count, offsets = math.prod(shape), known.get("data_offsets")
    if type(offsets) is not list or not all(type(n) is int and n >= 0 for n in cast("list[Any]", offsets)):
        raise _DamagedError("its offsets are not a list of sizes")
    start = cast("list[int]", offsets)[0] if offsets else -1
    if offsets != [start, start + 2 * count]:
        raise _DamagedError("its shape does not match its length")
    return start, count, tuple(shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy().data).cast("B")
