"""What a safetensors file says about itself, without reading one weight.

Owns the checks that decide 'this is a whole, honest safetensors file' (rules S5, S6); what the tensors mean is
variant.py's business.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ..errors import CheckpointError
from ..files import FileError, open_regular

__all__ = ["DTYPE_BYTES", "CheckpointHeader", "TensorInfo", "read_header"]

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_HEADER_LIMIT = 100_000_000
_NOT_SAFETENSORS = (
    (b"PK\x03\x04", "a pickled PyTorch file (.pt/.pth/.ckpt), which can run code when opened"),
    (b"\x80", "a pickle, which can run code when opened"),
    (b"GGUF", "a GGUF file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"<", "a web page, not a model (a download that failed)"),
)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a header: safetensors dtype name, shape, and its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class CheckpointHeader:
    """All tensors of a file by the names the file uses, and its text metadata."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    size_bytes: int


def read_header(path: Path) -> CheckpointHeader:
    """Read and check a safetensors header. CheckpointError names the file, what it is instead, and what to do."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(32)
            raw = b""
            length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
            if start[8:9] == b"{" and 0 < length <= _HEADER_LIMIT:
                file.seek(8)
                raw = file.read(length)
    except FileError as error:
        raise CheckpointError(str(error)) from error
    if not raw:
        raise CheckpointError(f"{path.name} is {_what_it_is(start, size)}. Choose a .safetensors Wan diffusion model.")
    if len(raw) < length:
        raise _truncated(path, size, 8 + length)
    try:
        entries = json.loads(raw)
        metadata = {str(k): str(v) for k, v in entries.pop("__metadata__", {}).items()}
        tensors = {name: _tensor(name, info, path) for name, info in entries.items()}
        end = max((info["data_offsets"][1] for info in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path.name} has a damaged safetensors header. Download it again.") from error
    if size != 8 + length + end:
        raise _truncated(path, size, 8 + length + end)
    return CheckpointHeader(path, tensors, metadata, size)


def _tensor(name: str, info: dict[str, object], path: Path) -> TensorInfo:
    dtype, shape, offsets = str(info["dtype"]), info["shape"], info["data_offsets"]
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    sizes = tuple(int(n) for n in shape)
    span = int(offsets[1]) - int(offsets[0])
    if dtype in DTYPE_BYTES and span != prod(sizes) * DTYPE_BYTES[dtype]:
        raise CheckpointError(
            f"{path.name}: tensor {name[:80]} has {span} bytes for shape {sizes}. Download the file again."
        )
    return TensorInfo(dtype, sizes, span)


def _what_it_is(start: bytes, size: int) -> str:
    if size == 0:
        return "empty"
    for magic, words in _NOT_SAFETENSORS:
        if start.startswith(magic):
            return words
    return "not a safetensors file"


def _truncated(path: Path, size: int, wanted: int) -> CheckpointError:
    return CheckpointError(
        f"{path.name} has {size:,} bytes where its header promises {wanted:,}: truncated or damaged. Download it again."
    )
