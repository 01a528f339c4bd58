"""Reads the tensors of a file one at a time into new memory, without mapping the file.

A writable mapping counts in full against Linux's commit limit. A disk error under a mapping ends the process with
SIGBUS. Some file systems do not support mappings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..files import FileError, open_regular
from .header import CheckpointHeader, damaged, header_of, truncated

_AT_ONCE = 8 << 20
"""bytes of one conversion: small enough for the CPU cache, large enough that threads seldom synchronise"""
_MOST_A_READ = 64 << 20
_BY_TWO = 4 << 20
"""size in bytes from which two threads read a tensor"""
_AT_A_PLACE = hasattr(os, "preadv")
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class FileBytes:
    """An open file of weights that is read at offsets. For one thread at a time; each thread opens its own."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError if the file cannot be opened or is not a regular file."""
        self.path = path
        try:
            self.file = open_regular(path)
        except FileError as error:
            raise CheckpointError(str(error)) from error
        self.size = os.fstat(self.file.fileno()).st_size
        self._piece = torch.empty(0, dtype=torch.uint8)
        self._other: ThreadPoolExecutor | None = None

    def close(self) -> None:
        self.file.close()
        if self._other is not None:
            self._other.shutdown()

    def fill(self, memory: Tensor, begin: int) -> None:
        """Fills `memory` (contiguous, on the CPU) from offset `begin`.

        CheckpointError if the file ends early, or the disk or the network fails.
        """
        if not memory.nbytes:
            return
        data = memory.view(-1).view(torch.uint8).numpy().data
        try:
            # Page faults of the new memory limit a single thread, so a second thread reads half. Windows has no preadv,
            # and threads would share one file position.
            if len(data) < _BY_TWO or not _AT_A_PLACE:
                self._read(data, begin)
            else:
                half = len(data) // 2
                self._other = self._other or ThreadPoolExecutor(1, "weights")
                other = self._other.submit(self._read, data[half:], begin + half)
                try:
                    self._read(data[:half], begin)
                finally:
                    other.result()
        except OSError as error:
            raise CheckpointError(
                f"{self.path.name} cannot be read: {error.strerror}. Check its disk or network, then try again."
            ) from error

    def _read(self, data: memoryview, begin: int) -> None:
        done = 0
        while done < len(data):
            part = data[done : done + _MOST_A_READ]
            if _AT_A_PLACE:
                count = os.preadv(self.file.fileno(), [part], begin + done)
            else:
                self.file.seek(begin + done)
                count = self.file.readinto(part)  # type: ignore[attr-defined]
            if not count:
                raise truncated(self.path, begin + done, self.size)
            done += count

    def pieces(self, begin: int, size: int, piece: int) -> Iterator[Tensor]:
        """Yields `size` bytes from `begin` on, in tensors (n,) uint8 of at most `piece` bytes. Each tensor is
        overwritten by the next."""
        if self._piece.numel() < min(size, piece):
            self._piece = torch.empty(min(size, piece), dtype=torch.uint8)
        memory = self._piece
        for start in range(0, size, piece):
            part = memory[: min(piece, size - start)]
            self.fill(part, begin + start)
            yield part


class TensorFile:
    """An open safetensors file. For one thread at a time."""

    def __init__(self, path: Path, header: CheckpointHeader | None = None) -> None:
        """`header`: from an earlier read; CheckpointError if the file's size has changed."""
        self.data = FileBytes(path)
        try:
            self.header = header_of(self.data.file, path) if header is None else header
            if self.header.size_bytes != self.data.size:
                raise truncated(path, self.data.size, self.header.size_bytes)
        except BaseException:
            self.data.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.data.close()

    def read(self, name: str) -> Tensor:
        """Returns one tensor in the file's dtype, in new memory."""
        info = self.header.tensors[name]
        value = torch.empty(info.shape, dtype=self._dtype(name))
        self.data.fill(value, info.begin)
        return value

    def read_as(self, name: str, dtype: torch.dtype) -> Tensor:
        """Returns one tensor in `dtype`, converted in small pieces."""
        stored, info = self._dtype(name), self.header.tensors[name]
        if stored == dtype:
            return self.read(name)
        value = torch.empty(info.shape, dtype=dtype)
        flat, start = value.view(-1), 0
        for part in self.data.pieces(
            info.begin, info.size_bytes, max(1, _AT_ONCE // stored.itemsize) * stored.itemsize
        ):
            values = part.view(stored)
            flat[start : start + len(values)] = values
            start += len(values)
        return value

    def _dtype(self, name: str) -> torch.dtype:
        found = getattr(torch, _DTYPES.get(self.header.tensors[name].dtype, ""), None)
        # An unknown dtype is refused here and not in the header, because the model may not need the tensor.
        if found is None:
            raise damaged(self.data.path.name)
        return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns all tensors of a safetensors file by name, in file order, each in new memory."""
    with TensorFile(path) as file:
        places = sorted(file.header.tensors.items(), key=lambda item: item[1].begin)
        return {name: file.read(name) for name, _ in places}
