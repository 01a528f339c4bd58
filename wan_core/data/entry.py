"""One cache entry as bytes: a safetensors file with a single bfloat16 tensor and the SHA-256 of its
payload.

Owns the format and every check made before a byte of it is trusted. The reader is ours because it
must be stricter than a general one: exactly one tensor of the expected name, offsets without a
hole, a known key, finite values.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["MAX_ENTRY_BYTES", "pack_entry", "unpack_entry"]

MAX_ENTRY_BYTES = 2 << 30
"""Larger than any latent this trainer writes (a 1280x720 clip of 1000 frames takes 0.12 GiB)."""

_MAX_HEADER_BYTES = 1 << 16


class _DamagedError(ValueError):
    """Internal: what is wrong with the bytes, without the name of the file."""


def pack_entry(tensor: Tensor, *, kind: str, key: str) -> bytes:
    """`tensor` as the bytes of an entry file, stored in bfloat16. The caller has checked shape and
    finiteness.
    """
    from safetensors.torch import save

    stored = tensor.detach().to("cpu", torch.bfloat16).contiguous()
    digest = hashlib.sha256(_bytes_of(stored)).hexdigest()
    return save({kind: stored}, metadata={"key": key, "sha256": digest})


def unpack_entry(data: bytearray, *, kind: str, key: str) -> Tensor:
    """The bfloat16 tensor of an entry, sharing memory with `data`; ValueError says what is bad."""
    header, payload_start = _header(data)
    metadata = _object(header.pop("__metadata__", None))
    if set(header) != {kind}:
        raise _DamagedError(f'it must hold exactly one tensor named "{kind}"')
    if metadata.get("key") != key:
        raise _DamagedError("it belongs to another key")
    shape = _shape(header[kind], len(data) - payload_start)
    payload = memoryview(data)[payload_start:]
    if hashlib.sha256(payload).hexdigest() != metadata.get("sha256"):
        raise _DamagedError("its checksum does not match")
    tensor = torch.frombuffer(data, dtype=torch.bfloat16, offset=payload_start).view(shape)
    if not bool(torch.isfinite(tensor).all()):
        raise _DamagedError("it holds NaN or infinity")
    return tensor


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


def _shape(entry: Any, payload_bytes: int) -> tuple[int, ...]:
    """The shape, once it is sure that it describes exactly the payload."""
    known = _object(entry)
    if known.get("dtype") != "BF16":
        raise _DamagedError("its tensor is not bfloat16")
    shape: list[int] = known.get("shape", [])
    if type(shape) is not list or not all(type(n) is int and 0 < n < 1 << 24 for n in shape):
        raise _DamagedError("its shape is not a list of positive sizes")
    if 2 * math.prod(shape) != payload_bytes or known.get("data_offsets") != [0, payload_bytes]:
        raise _DamagedError("its shape does not match its length")
    return tuple(shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy().data).cast("B")
