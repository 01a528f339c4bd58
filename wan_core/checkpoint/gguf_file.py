"""GGUF files through the `gguf` package, an optional extra: what they hold, and their tensors dequantised.

Layout of Wan files as city96's converter writes them: original names, shapes of tensors GGUF cannot hold in
`comfy.gguf.orig_shape.<name>`, small and one-dimensional tensors in float32.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, DependencyError
from ..files import FileError, open_regular
from ..packages import pip_line
from .header import CheckpointHeader, TensorInfo

__all__ = ["GgufTensor", "gguf_blocks", "gguf_values", "open_gguf", "read_gguf_header"]

_ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
_MOST_ENTRIES = 100_000
_MOST_METADATA_BYTES = 64 << 20
# Types of metadata values (GGUF specification, gguf_metadata_value_type) and their bytes.
_STRING, _ARRAY = 8, 9
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a GGUF file; `data` is mapped from the file, not read."""

    kind: Any
    """the package's GGMLQuantizationType"""
    shape: tuple[int, ...]
    """as the model has it: torch's order, and what it was before GGUF"""
    size_bytes: int
    data: Any
    """numpy array; the last dimension holds whole rows, packed"""


def read_gguf_header(path: Path) -> CheckpointHeader:
    """Names, types and shapes of a GGUF file. DependencyError without the package, CheckpointError for a bad file."""
    _check_start(path)
    tensors = {n: TensorInfo(t.kind.name, t.shape, t.size_bytes) for n, t in open_gguf(path).items()}
    return CheckpointHeader(path, tensors, {}, os.stat(path).st_size, container="gguf")


def open_gguf(path: Path) -> dict[str, GgufTensor]:
    """The tensors of a file by name, mapped; the file stays open as long as they live."""
    try:
        from gguf import GGUFReader
    except Exception as error:  # numpy or the package itself may be broken in many ways, all mean the same to a user
        raise DependencyError(
            f"{path.name}: GGUF files need the gguf package ({type(error).__name__}: {error}). "
            f"Run: {pip_line('gguf>=0.19', upgrade=True)}"
        ) from error
    try:
        reader = GGUFReader(path)
        return {str(tensor.name): _tensor(reader, tensor) for tensor in reader.tensors}
    except Exception as error:  # a damaged file makes the package and numpy fail in as many ways
        raise _damaged(path) from error


def gguf_values(path: Path, name: str, tensor: GgufTensor, values_at_once: int) -> Iterator[Tensor]:
    """The tensor as float32, flat, in pieces of about `values_at_once` values, in order."""
    import numpy
    from gguf.quants import dequantize

    data = tensor.data.reshape(-1, tensor.data.shape[-1])
    rows = max(1, values_at_once * data.shape[0] // max(1, prod(tensor.shape)))
    for start in range(0, data.shape[0], rows):
        try:
            values = dequantize(data[start : start + rows], tensor.kind)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{path.name} stores {name} as {tensor.kind.name}, which the gguf package cannot unpack. "
                "Use a Q8_0, Q6_K, Q5_K or Q4_K file."
            ) from error
        yield torch.from_numpy(numpy.require(values, requirements="W")).flatten()


def gguf_blocks(tensor: GgufTensor) -> Tensor:
    """Returns a copy of the tensor's bytes, uint8, in the order of its rows."""
    import numpy

    return torch.from_numpy(numpy.array(tensor.data, copy=True)).view(torch.uint8).flatten()


def _tensor(reader: Any, tensor: Any) -> GgufTensor:
    field = reader.get_field(_ORIGINAL_SHAPE + str(tensor.name))
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if field is not None:
        shape = tuple(int(field.parts[index][0]) for index in field.data)
    if prod(shape) != int(tensor.n_elements):
        raise ValueError("a shape that does not fit")
    return GgufTensor(tensor.tensor_type, shape, int(tensor.n_bytes), tensor.data)


def _check_start(path: Path) -> None:
    """Refuse what is no GGUF file before the package maps it, and counts no model has."""
    try:
        with open_regular(path) as file:
            start = file.read(24)
    except FileError as error:
        raise CheckpointError(str(error)) from error
    if start[:4] != b"GGUF" or len(start) < 24:
        raise CheckpointError(f"{path.name} is not a GGUF file. Download it again.")
    if max(struct.unpack("<QQ", start[8:24])) > _MOST_ENTRIES:
        raise _damaged(path)
    _check_metadata(path, struct.unpack("<Q", start[16:24])[0])


def _check_metadata(path: Path, entries: int) -> None:
    """Walk the metadata by its own lengths: the package would loop over an array that claims more than the file has."""
    limit = min(os.stat(path).st_size, _MOST_METADATA_BYTES)
    with open_regular(path) as file:

        def read(form: str) -> int:
            data = file.read(struct.calcsize(form))
            if len(data) < struct.calcsize(form):
                raise _damaged(path)
            return struct.unpack(form, data)[0]

        def skip(count: int) -> None:
            if file.tell() + count > limit:
                raise _damaged(path)
            file.seek(count, os.SEEK_CUR)

        file.seek(24)
        for _ in range(entries):
            skip(read("<Q"))  # its key
            kind, count = read("<I"), 1
            if kind == _ARRAY:
                kind, count = read("<I"), read("<Q")
            if kind == _STRING:
                if count * 8 > limit:
                    raise _damaged(path)
                for _ in range(count):
                    skip(read("<Q"))
            elif kind in _VALUE_BYTES:
                skip(count * _VALUE_BYTES[kind])
            else:
                raise _damaged(path)


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(f"{path.name} is a damaged GGUF file. Download it again.")
