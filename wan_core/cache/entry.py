"""One cache entry as bytes: a safetensors file of a few tensors of one dtype and the SHA-256 of their bytes.

Owns the format and every check made before a byte of it is trusted. The reader is ours because it
must be stricter than a general one: only tensors of the expected names, offsets without a
hole, a known key, finite values. A compressed entry is a safetensors file too: its one tensor holds the zstd frame, its
metadata the header it would have had.

[zstd] zstd for payloads of one dtype: bytes of equal significance side by side, then compressed.

The exponents of latents repeat, their mantissas are noise: so sorted, a bfloat16 latent takes 0.69 of its size, 0.78
when compressed as it lies (level 1; higher levels gain nothing).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Collection, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import DependencyError
from ..packages import pip_line
from .keys import STORED_DTYPES, Stored

__all__ = [
    "MAX_ENTRY_BYTES",
    "compress",
    "decompress",
    "pack_entry",
    "unpack_entry",
]


_LEVEL = 1


def compress(data: bytes | memoryview, itemsize: int) -> bytes:
    """`data`, values of `itemsize` bytes, as one zstd frame that states its size."""
    planes = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, itemsize).T).tobytes()
    zstd = _zstd()
    if _BUILT_IN:
        return zstd.compress(planes, _LEVEL)
    return zstd.ZstdCompressor(level=_LEVEL).compress(planes)


def decompress(frame: bytes | memoryview, size: int, itemsize: int) -> bytearray:
    """The `size` bytes that `compress` was given; ValueError when the frame is another or damaged.

    The frame's own statement is compared first, so that no damaged one asks for more memory than an entry may take.
    """
    zstd, data = _zstd(), bytes(frame)
    try:
        if _BUILT_IN:
            stated = zstd.get_frame_info(data).decompressed_size
            planes = zstd.decompress(data) if stated == size else b""
        else:
            stated = zstd.get_frame_parameters(data).content_size
            planes = zstd.ZstdDecompressor().decompress(data) if stated == size else b""
    except zstd.ZstdError as error:
        raise ValueError("its compressed part is damaged") from error
    if len(planes) != size or size % itemsize:
        raise ValueError("its compressed part has another size")
    return bytearray(np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(itemsize, -1).T).data.cast("B"))


_BUILT_IN = sys.version_info >= (3, 14)


def _zstd() -> Any:
    try:
        if _BUILT_IN:
            from compression import zstd  # pyright: ignore

            return zstd
        import zstandard

        return zstandard
    except ImportError as error:
        raise DependencyError(
            f"Compressed cache entries need the package zstandard. Run: {pip_line('zstandard')}, or set the "
            "compression of the cache to none."
        ) from error


MAX_ENTRY_BYTES = 2 << 30
"""Larger than any latent this trainer writes (a 1280x720 clip of 1000 frames takes 0.12 GiB)."""

_MAX_HEADER_BYTES = 1 << 16
_NAMES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_FRAME = "zstd"
"""the tensor of a compressed entry"""


class _DamagedError(ValueError):
    """Internal: what is wrong with the bytes, without the name of the file."""


def pack_entry(tensors: Mapping[str, Tensor], *, key: str, stored: Stored | None = None) -> bytes:
    """`tensors` as the bytes of an entry file. The caller has checked shapes and finiteness."""
    from safetensors.torch import save

    stored = stored or Stored()
    dtype = STORED_DTYPES[stored.dtype]
    kept = {name: tensors[name].detach().to("cpu", dtype).contiguous() for name in sorted(tensors)}
    digest = hashlib.sha256()
    for tensor in kept.values():  # safetensors lays tensors of one dtype down by name
        digest.update(_bytes_of(tensor))
    metadata = {"key": key, "sha256": digest.hexdigest()}
    if stored.compression == "none":
        return save(kept, metadata=metadata)
    plain = save(kept)
    payload_start = 8 + int.from_bytes(plain[:8], "little")
    metadata["tensors"] = plain[8:payload_start].decode().strip()
    frame = compress(memoryview(plain)[payload_start:], dtype.itemsize)
    return save({_FRAME: torch.frombuffer(bytearray(frame), dtype=torch.uint8)}, metadata=metadata)


def unpack_entry(
    data: bytearray, *, allowed: Collection[str], key: str, dtypes: Collection[str] = ("bf16",)
) -> dict[str, Tensor]:
    """The tensors of an entry by name, sharing memory with `data` unless compressed; ValueError says what is bad.

    `dtypes` are names of STORED_DTYPES. DependencyError when it is compressed and the package is missing.
    """
    header, payload_start = _header(data)
    metadata = _object(header.pop("__metadata__", None))
    if metadata.get("key") != key and set(header) <= {*allowed, _FRAME}:
        raise _DamagedError("it belongs to another key")
    if set(header) == {_FRAME}:
        header, data = _decompressed(header, metadata, data, payload_start, dtypes)
        payload_start = 0
    if not header or not set(header) <= set(allowed):
        names = ", ".join(allowed)
        raise _DamagedError(
            f'it must hold exactly one tensor named "{names}"'
            if len(allowed) == 1
            else f"it must hold some of the tensors {names} and no others"
        )
    dtype = _dtype_of(header, dtypes)
    places = _places(header, len(data) - payload_start, dtype)
    payload = memoryview(data)[payload_start:]
    if hashlib.sha256(payload).hexdigest() != metadata.get("sha256"):
        raise _DamagedError("its checksum does not match")
    tensors = {
        name: torch.frombuffer(data, dtype=dtype, count=count, offset=payload_start + start).view(shape)
        for name, start, count, shape in places
    }
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise _DamagedError("it holds NaN or infinity")
    return tensors


def _decompressed(
    header: dict[str, Any], metadata: dict[str, Any], data: bytearray, payload_start: int, dtypes: Collection[str]
) -> tuple[dict[str, Any], bytearray]:
    """The header and the payload that a compressed entry stands for."""
    _places(header, len(data) - payload_start, torch.uint8, "U8")
    try:
        inner = _object(json.loads(metadata.get("tensors", "")))
    except (ValueError, TypeError, RecursionError) as error:
        raise _DamagedError("its inner header is not valid JSON") from error
    dtype = _dtype_of(inner, dtypes)
    size = max((start + count * dtype.itemsize for _, start, count, _ in _found(inner, dtype)), default=0)
    if size > MAX_ENTRY_BYTES:
        raise _DamagedError(f"it has {size} bytes")
    return inner, decompress(memoryview(data)[payload_start:], size, dtype.itemsize)


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


def _dtype_of(header: dict[str, Any], dtypes: Collection[str]) -> torch.dtype:
    """The one dtype of all tensors."""
    found = {str(_object(entry).get("dtype")) for entry in header.values()}
    name = next((name for name in dtypes if found == {_NAMES[name]}), None)
    if name is None:
        raise _DamagedError(f"its tensors are {', '.join(sorted(found))}, not {' or '.join(dtypes)}")
    return STORED_DTYPES[name]


def _found(
    header: dict[str, Any], dtype: torch.dtype, dtype_name: str = ""
) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """(name, first byte, values, shape) of every tensor, each sound by itself."""
    name_of = dtype_name or next(_NAMES[name] for name, known in STORED_DTYPES.items() if known is dtype)
    return [(name, *_place(entry, name_of, dtype.itemsize)) for name, entry in header.items()]


def _places(
    header: dict[str, Any], payload_bytes: int, dtype: torch.dtype, dtype_name: str = ""
) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """`_found`, once it is sure that the tensors tile exactly the payload."""
    found = _found(header, dtype, dtype_name)
    end = 0
    for _name, start, count, _shape in sorted(found, key=lambda place: place[1]):
        if start != end:
            raise _DamagedError("its shapes do not match its length")
        end = start + dtype.itemsize * count
    if end != payload_bytes:
        raise _DamagedError("its shapes do not match its length")
    return found


def _place(entry: Any, dtype_name: str, itemsize: int) -> tuple[int, int, tuple[int, ...]]:
    known = _object(entry)
    if known.get("dtype") != dtype_name:
        raise _DamagedError(f"its tensor is not {dtype_name}")
    shape: list[int] = known.get("shape", [])
    largest = MAX_ENTRY_BYTES if dtype_name == "U8" else (1 << 24) - 1
    if type(shape) is not list or not all(type(n) is int and 0 < n <= largest for n in shape):
        raise _DamagedError("its shape is not a list of positive sizes")
    count, offsets = math.prod(shape), known.get("data_offsets")
    if type(offsets) is not list or not all(type(n) is int and n >= 0 for n in cast("list[Any]", offsets)):
        raise _DamagedError("its offsets are not a list of sizes")
    start = cast("list[int]", offsets)[0] if offsets else -1
    if offsets != [start, start + itemsize * count]:
        raise _DamagedError("its shape does not match its length")
    return start, count, tuple(shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy().data).cast("B")
