"""GGUF files: their header, and their tensors dequantized by the optional package `gguf`.

Layout: the GGUF specification, versions 2 and 3. Wan files follow city96's converter: original names; shapes that GGUF
cannot store are in `comfy.gguf.orig_shape.<name>`; small and one-dimensional tensors are float32. The package's own
reader maps the file and creates an array for every number of the metadata, so it is not used.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..errors import CheckpointError, DependencyError
from ..files import FileError, open_regular
from ..packages import pip_line
from .header import CheckpointHeader, TensorInfo, fits_memory
from .tensor_file import FileBytes

_ORIGINAL_SHAPE, _ALIGNMENT = "comfy.gguf.orig_shape.", "general.alignment"
_USUAL_ALIGNMENT = 32
_VERSIONS = (2, 3)
_MOST_ENTRIES = 100_000
_MOST_METADATA_BYTES = 64 << 20
_MOST_TEXTS = 1 << 20
"""strings in the metadata: four times the vocabulary of a text encoder"""
_MOST_SIDES = 8
"""largest number of dimensions of a tensor in the format"""
# Types of metadata values (gguf_metadata_value_type): struct codes, sizes, and the integer types.
_STRING, _ARRAY = 8, 9
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_WHOLE_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a GGUF file and its place."""

    kind: Any
    """type of the tensor, a GGMLQuantizationType of the package gguf"""

    shape: tuple[int, ...]
    """original shape, in torch's order"""
    size_bytes: int
    row_bytes: int
    """bytes of a row; rows are quantized independently"""
    begin: int
    """offset in the file"""


def read_gguf_header(path: Path) -> CheckpointHeader:
    """Returns the header of a GGUF file; DependencyError without the package, CheckpointError for a damaged file."""
    tensors = {n: TensorInfo(t.kind.name, t.shape, t.size_bytes, t.begin) for n, t in _tensors_of(path).items()}
    return CheckpointHeader(path, tensors, {}, os.stat(path).st_size, container="gguf")


class GgufFile:
    """An open GGUF file. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.tensors = _tensors_of(path)
        self.data = FileBytes(path)

    def blocks(self, name: str) -> Tensor:
        """Returns a tensor's bytes, uint8, row by row."""
        tensor = self.tensors[name]
        found = torch.empty(tensor.size_bytes, dtype=torch.uint8)
        self.data.fill(found, tensor.begin)
        return found

    def values(self, name: str, values_at_once: int) -> Iterator[Tensor]:
        """Yields the dequantized values in flat float32 pieces of about `values_at_once`."""
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        rows = max(1, values_at_once * tensor.size_bytes // tensor.row_bytes // max(1, prod(tensor.shape)))
        for piece in self.data.pieces(tensor.begin, tensor.size_bytes, rows * tensor.row_bytes):
            try:
                values = dequantize(piece.view(-1, tensor.row_bytes).numpy(), tensor.kind)
            except NotImplementedError as error:
                raise CheckpointError(
                    f"{self.data.path.name} stores {name} as {tensor.kind.name}, which the gguf package cannot "
                    "dequantize. Use a Q8_0, Q6_K, Q5_K or Q4_K file."
                ) from error
            yield torch.from_numpy(values).flatten()


def _tensors_of(path: Path) -> dict[str, GgufTensor]:
    """Returns the tensors of a file by name; CheckpointError for another format or an implausible header."""
    try:
        with open_regular(path) as file:
            start = file.read(24)
            if start[:4] != b"GGUF" or len(start) < 24:
                raise CheckpointError(f"{path.name} is not a GGUF file. Download it again.")
            version, tensors, entries = struct.unpack("<IQQ", start[4:])
            if max(tensors, entries) > _MOST_ENTRIES:
                raise _damaged(path)
            kinds = _kinds(path)
            if version not in _VERSIONS:
                raise _damaged(path)
            return _Header(file).tensors(tensors, entries, kinds)
    except FileError as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, KeyError, struct.error) as error:
        raise _damaged(path) from error


def _kinds(path: Path) -> dict[int, tuple[Any, int, int]]:
    """Returns (package name, values per block, bytes per block) by type number."""
    try:
        from gguf import GGML_QUANT_SIZES
    except Exception as error:  # a broken gguf or numpy package can raise anything
        raise DependencyError(
            "{name}: GGUF files need the gguf package ({kind}: {error}). Run: {command}",
            name=path.name,
            kind=type(error).__name__,
            error=error,
            command=pip_line("gguf>=0.19", upgrade=True),
        ) from error
    return {int(kind): (kind, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


class _Header:
    """Parses the header of a file after its counts. Raises ValueError, KeyError or struct.error for an invalid one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._limit = min(self._size, _MOST_METADATA_BYTES)
        self._texts = 0

    def tensors(self, tensors: int, entries: int, kinds: dict[int, tuple[Any, int, int]]) -> dict[str, GgufTensor]:
        numbers = dict(self._entry() for _ in range(entries))
        placed = [self._placed(kinds) for _ in range(tensors)]
        (alignment,) = numbers.get(_ALIGNMENT, (_USUAL_ALIGNMENT,))
        if alignment < 1 or alignment & (alignment - 1):
            raise ValueError("an alignment that is no power of two")
        data = -(-self._file.tell() // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        for name, (kind, values, size), sides, offset in placed:
            shape = numbers.get(_ORIGINAL_SHAPE + name, tuple(reversed(sides)))
            row, whole = sides[0] if sides else 1, prod(sides)
            wrong = min(shape, default=1) < 0 or prod(shape) != whole or not fits_memory(shape)
            if name in found or wrong or row % values:
                raise ValueError("a tensor that cannot be")
            begin, row_bytes = data + offset, row // values * size
            size_bytes = whole // values * size
            if begin + size_bytes > self._size:
                raise ValueError("a tensor beyond the end of the file")
            found[name] = GgufTensor(kind, shape, size_bytes, max(1, row_bytes), begin)
        return found

    def _placed(self, kinds: dict[int, tuple[Any, int, int]]) -> tuple[str, tuple[Any, int, int], tuple[int, ...], int]:
        """Parses one tensor: name, type, shape (row length first), offset in the data."""
        name = self._text()
        (count,) = self._read("<I")
        if count > _MOST_SIDES:
            raise ValueError("too many sides")
        sides = self._read(f"<{count}Q")
        number, offset = self._read("<IQ")
        return name, kinds[number], sides, offset

    def _entry(self) -> tuple[str, tuple[int, ...]]:
        """Parses a metadata entry: returns its key, and its integers if this module needs them; skips other values."""
        key = self._text()
        (kind,), count = self._read("<I"), 1
        if kind == _ARRAY:
            kind, count = self._read("<IQ")
        if key == _ALIGNMENT or key.startswith(_ORIGINAL_SHAPE):
            if count > _MOST_SIDES:
                raise ValueError("too many numbers")
            return key, self._read(f"<{count}{_WHOLE_NUMBERS[kind]}")
        if kind == _STRING:
            self._texts += count
            if self._texts > _MOST_TEXTS:
                raise ValueError("too many texts")
            for _ in range(count):
                self._skip(self._read("<Q")[0])
        else:
            self._skip(count * _VALUE_BYTES[kind])
        return key, ()

    def _text(self) -> str:
        (size,) = self._read("<Q")
        self._check(size)
        return self._file.read(size).decode()

    def _read(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._file.read(struct.calcsize(form)))

    def _skip(self, size: int) -> None:
        self._check(size)
        self._file.seek(size, os.SEEK_CUR)

    def _check(self, size: int) -> None:
        if self._file.tell() + size > self._limit:
            raise ValueError("longer than the file, or than any header")


def _damaged(path: Path) -> CheckpointError:
    return CheckpointError(f"{path.name} is a damaged GGUF file. Download it again.")
