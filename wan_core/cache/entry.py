"""The format of a cache entry: a safetensors file with tensors of one dtype and the SHA-256 of their bytes.

Each read verifies header, key, tensor names, dtype, checksum, and that values are finite. A compressed entry has one
zstd frame, and the original header as metadata. Compression first groups the bytes by significance, because exponents
repeat and mantissas are noise: a bfloat16 latent shrinks to 0.69 of its size, ungrouped to 0.78 (level 1; higher levels
gain nothing).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint.header import StatedHeader, TensorPlace, framed_header, header_end, parse_header
from ..errors import DependencyError
from ..files import FileError, open_regular
from ..packages import pip_line
from .keys import STORED_DTYPES, Stored

_LEVEL = 1


def compress(data: bytes | memoryview, itemsize: int) -> bytes:
    """Returns `data`, values of `itemsize` bytes, as one zstd frame that states its size."""
    # Byte planes: the first byte of all values, then the second, and so on.
    planes = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, itemsize).T).tobytes()
    return _zstd().ZstdCompressor(level=_LEVEL).compress(planes)


def decompress(frame: bytes | memoryview, size: int, itemsize: int) -> bytearray:
    """Returns the `size` bytes of a frame; ValueError if it is damaged."""
    zstd, data = _zstd(), bytes(frame)
    try:
        # The size is checked first, because decompression allocates it.
        stated = zstd.get_frame_parameters(data).content_size
        planes = zstd.ZstdDecompressor().decompress(data) if stated == size else b""
    except zstd.ZstdError as error:
        raise ValueError("its compressed part is damaged") from error
    if len(planes) != size or size % itemsize:
        raise ValueError("its compressed part has another size")
    return bytearray(np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(itemsize, -1).T).data.cast("B"))


def _zstd() -> Any:
    try:
        import zstandard

        return zstandard
    except ImportError as error:
        raise DependencyError(
            f"Compressed cache entries need the package zstandard. Run: {pip_line('zstandard')}, or set the "
            "compression of the cache to none."
        ) from error


MAX_ENTRY_BYTES = 2 << 30
"""largest entry file in bytes; latents are smaller (1280x720, 1000 frames: 0.12 GiB)"""

_MAX_HEADER_BYTES = 1 << 16
_NAMES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_FRAME = "zstd"
"""name of the tensor in a compressed entry"""


def read_entry(path: Path) -> bytearray:
    """Returns the bytes of an entry file; FileError or OSError if it cannot be read."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_ENTRY_BYTES:
            raise FileError(f"it has {size} bytes")
        data = bytearray(size)
        if file.readinto(data) != size:  # type: ignore[attr-defined]
            raise FileError("it could not be read to its end")
        return data


def pack_entry(tensors: Mapping[str, Tensor], *, key: str, stored: Stored | None = None) -> bytes:
    """Returns `tensors` (checked by the caller) as the bytes of an entry file."""
    from safetensors.torch import save

    stored = stored or Stored()
    dtype = STORED_DTYPES[stored.dtype]
    kept = {name: tensors[name].detach().to("cpu", dtype).contiguous() for name in sorted(tensors)}
    digest = hashlib.sha256()
    for tensor in kept.values():  # sorted by name, the order in which safetensors writes tensors of one dtype
        digest.update(_bytes_of(tensor))
    metadata = {"key": key, "sha256": digest.hexdigest()}
    if stored.compression == "none":
        return _in_order(save(kept, metadata=metadata))
    plain = save(kept)
    payload_start = header_end(plain)
    metadata["tensors"] = plain[8:payload_start].decode().strip()
    frame = compress(memoryview(plain)[payload_start:], dtype.itemsize)
    return _in_order(save({_FRAME: torch.frombuffer(bytearray(frame), dtype=torch.uint8)}, metadata=metadata))


def _in_order(data: bytes) -> bytes:
    """Returns a safetensors file with sorted metadata, so that equal entries have equal bytes."""
    # safetensors writes metadata in the order of a hash table, which differs between processes.
    start = header_end(data)
    header = json.loads(data[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    return framed_header(json.dumps(header, separators=(",", ":")).encode()) + data[start:]


def unpack_entry(
    data: bytearray, *, allowed: Collection[str], key: str, dtypes: Collection[str] = ("bf16",)
) -> dict[str, Tensor]:
    """Returns name -> tensor of an entry; tensors of an uncompressed entry share memory with `data`.

    `dtypes`: accepted names of STORED_DTYPES. ValueError says what is wrong; DependencyError if the entry is compressed
    and zstandard is missing.
    """
    payload_start = header_end(data)
    if not 8 + 2 <= payload_start <= min(8 + _MAX_HEADER_BYTES, len(data)):
        raise ValueError("it is not a complete safetensors file")
    header = _stated(bytes(data[8:payload_start]))
    if header.data_bytes != len(data) - payload_start:
        raise ValueError("its shapes do not match its length")
    metadata, names = header.metadata, set(header.tensors)
    if metadata.get("key") != key and names <= {*allowed, _FRAME}:
        raise ValueError("it belongs to another key")
    if names == {_FRAME}:
        header, data = _decompressed(header, memoryview(data)[payload_start:], dtypes)
        names, payload_start = set(header.tensors), 0
    if not names or not names <= set(allowed):
        known = ", ".join(allowed)
        raise ValueError(
            f'it must hold exactly one tensor named "{known}"'
            if len(allowed) == 1
            else f"it must hold some of the tensors {known} and no others"
        )
    dtype = _dtype_of(header, dtypes)
    payload = memoryview(data)[payload_start:]
    if hashlib.sha256(payload).hexdigest() != metadata.get("sha256"):
        raise ValueError("its checksum does not match")
    tensors = {
        name: torch.frombuffer(
            data, dtype=dtype, count=math.prod(place.shape), offset=payload_start + place.begin
        ).view(place.shape)
        for name, place in header.tensors.items()
    }
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise ValueError("it holds NaN or infinity")
    return tensors


def _stated(raw: bytes) -> StatedHeader:
    try:
        return parse_header(raw)
    except ValueError as error:
        raise ValueError("its header is damaged") from error


def _decompressed(outer: StatedHeader, frame: memoryview, dtypes: Collection[str]) -> tuple[StatedHeader, bytearray]:
    """Returns the header and payload of a compressed entry."""
    place = outer.tensors[_FRAME]
    if place.dtype != "U8":
        raise ValueError("its tensor is not U8")
    _require_filled(place, 1)
    inner = _stated(outer.metadata.get("tensors", "").encode())
    dtype = _dtype_of(inner, dtypes)
    if inner.data_bytes > MAX_ENTRY_BYTES:
        raise ValueError(f"it has {inner.data_bytes} bytes")
    return inner, decompress(frame, inner.data_bytes, dtype.itemsize)


def _dtype_of(header: StatedHeader, dtypes: Collection[str]) -> torch.dtype:
    """Returns the common dtype of all tensors; ValueError if they differ or one is empty."""
    found = {place.dtype for place in header.tensors.values()}
    name = next((name for name in dtypes if found == {_NAMES[name]}), None)
    if name is None:
        raise ValueError(f"its tensors are {', '.join(sorted(found))}, not {' or '.join(dtypes)}")
    dtype = STORED_DTYPES[name]
    for place in header.tensors.values():
        _require_filled(place, dtype.itemsize)
    return dtype


def _require_filled(place: TensorPlace, itemsize: int) -> None:
    if place.end == place.begin or place.end - place.begin != math.prod(place.shape) * itemsize:
        raise ValueError("its shape does not match its length")


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy().data).cast("B")
