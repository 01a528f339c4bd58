"""The header of a safetensors file, checked without reading weights (rules S5, S6)."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import CheckpointError
from ..files import FileError, open_regular

_DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
DRAWN = ".drawn"
"""suffix of a header without values (drawn.py)"""
_LENGTH = struct.Struct("<Q")
_HEADER_LIMIT = 32 << 20
"""largest header in bytes; known headers have up to 1 MiB, mostly metadata"""
_MOST_TENSORS = 100_000
_MOST_SIGNS = 1_500_000
_MAX_DIMENSIONS = 32
_LONGEST_NAME = 500
"""characters of a tensor name; known ones have at most about 100"""
_NOT_SAFETENSORS = (
    (b"PK\x03\x04", "a pickled PyTorch file (.pt/.pth/.ckpt), which can run code when opened"),
    (b"\x80", "a pickle, which can run code when opened"),
    (b"GGUF", "a GGUF file with another file extension; rename it to end in .gguf"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"<", "a web page, not a model (from a failed download)"),
)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a header."""

    dtype: str
    """name in safetensors"""
    shape: tuple[int, ...]
    size_bytes: int
    begin: int = 0
    """offset in the file"""


@dataclass(frozen=True)
class CheckpointHeader:
    """All tensors of a file, or of a folder of files, by their names there, and the text metadata."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    size_bytes: int
    container: str = "safetensors"
    """safetensors, folder, sharded folder, gguf"""
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """tensor -> file, for tensors in other files than `path`"""

    def __post_init__(self) -> None:
        for name in self.tensors:
            if len(name) > _LONGEST_NAME:
                raise CheckpointError(
                    f"{self.path.name}: the name of tensor {name[:80]} has {len(name):,} characters; in a Wan file "
                    f"none has more than {_LONGEST_NAME}. Choose another file."
                )

    def file_of(self, name: str) -> Path:
        return self.files.get(name, self.path)


def read_header(path: Path) -> CheckpointHeader:
    """Returns the checked header of a file; raises CheckpointError, which says what a foreign file is, with a
    remedy."""
    try:
        with open_regular(path) as file:
            return header_of(file, path)
    except FileError as error:
        raise CheckpointError(str(error)) from error


def header_of(file: BinaryIO, path: Path) -> CheckpointHeader:
    """Returns the header at the beginning of an open file; `path`: its name in errors."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(32)
    raw = b""
    end = header_end(start)
    if start[_LENGTH.size : _LENGTH.size + 1] == b"{" and end <= _LENGTH.size + _HEADER_LIMIT:
        file.seek(_LENGTH.size)
        raw = file.read(end - _LENGTH.size)
    if not raw:
        known = next((words for magic, words in _NOT_SAFETENSORS if start.startswith(magic)), "not a safetensors file")
        what = known if size else "an empty file"
        raise CheckpointError(
            "{name} is {start}. Choose a .safetensors Wan diffusion model.", name=path.name, start=what
        )
    if _LENGTH.size + len(raw) < end:
        raise truncated(path, size, end)
    try:
        stated = parse_header(raw)
    except ValueError as error:
        raise damaged(path.name) from error
    if size != end + stated.data_bytes and not (size == end and path.suffix == DRAWN):
        raise truncated(path, size, end + stated.data_bytes)
    tensors = {name: _tensor(name, place, path, end) for name, place in stated.tensors.items()}
    return CheckpointHeader(path, tensors, stated.metadata, size)


@dataclass(frozen=True)
class TensorPlace:
    """One tensor in a header; `begin` and `end` are offsets in the data section."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class StatedHeader:
    """A parsed header, whose tensors fill `data_bytes` bytes without holes or overlaps."""

    tensors: Mapping[str, TensorPlace]
    metadata: Mapping[str, str]
    data_bytes: int


def header_end(start: bytes | bytearray) -> int:
    """Returns the offset of the data, from the first 8 bytes of a file; 8 for a shorter file."""
    return _LENGTH.size + (_LENGTH.unpack_from(start)[0] if len(start) >= _LENGTH.size else 0)


def framed_header(text: bytes) -> bytes:
    """Returns the start of a file: the length of the JSON, the JSON, and spaces up to a multiple of 8."""
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def parse_header(raw: bytes) -> StatedHeader:
    """Parses the JSON of the safetensors header of a model file or cache entry. Raises ValueError for an invalid
    header."""
    # Their number is limited before parsing, because json.loads holds the GIL while it creates a value for each.
    if sum(map(raw.count, (b"{", b"[", b","))) > _MOST_SIGNS:
        raise ValueError("more entries than any model has")
    try:
        entries = json.loads(raw)
        stated = entries.pop("__metadata__", None)
        metadata = {} if stated is None else {str(k): str(v) for k, v in stated.items()}
        if len(entries) > _MOST_TENSORS:
            raise ValueError("more tensors than any model has")
        places = {name: _place(info) for name, info in entries.items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a header") from error
    return StatedHeader(places, metadata, _end_of_data((place.begin, place.end) for place in places.values()))


def fits_memory(shape: Iterable[int]) -> bool:
    """Returns whether the number of elements stays below 2**60; a side may be 0."""
    return prod(max(1, side) for side in shape) < 1 << 60


def damaged(file_name: str) -> CheckpointError:
    """Returns the error for every invalid header."""
    return CheckpointError("{file_name} has a damaged safetensors header. Download it again.", file_name=file_name)


def _place(info: dict[str, Any]) -> TensorPlace:
    """Returns a tensor's place; ValueError or TypeError for an invalid entry."""
    shape, offsets = _whole_numbers(info["shape"]), _whole_numbers(info["data_offsets"])
    sound = len(shape) <= _MAX_DIMENSIONS and fits_memory(shape)
    if not isinstance(info["dtype"], str) or not sound or len(offsets) != 2:
        raise ValueError("not a tensor")
    return TensorPlace(info["dtype"], tuple(shape), offsets[0], offsets[1])


def _whole_numbers(value: object) -> list[int]:
    """Returns `value` as a list of integers 0 to 2**63 - 1; ValueError or TypeError for anything else."""
    if not isinstance(value, list):
        raise TypeError("not a list")
    numbers = cast("list[object]", value)
    # Types are compared, because bool is an int for isinstance.
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise ValueError("not whole numbers")
    return cast("list[int]", numbers)


def _end_of_data(places: Iterable[tuple[int, int]]) -> int:
    """Returns the end of the last tensor; ValueError if tensors overlap or leave a hole."""
    end = 0
    for begin, until in sorted(places):
        if begin != end or until < begin:
            raise ValueError("tensors overlap or leave a hole")
        end = until
    return end


def _tensor(name: str, place: TensorPlace, path: Path, data_begins: int) -> TensorInfo:
    dtype, sizes, span = place.dtype, place.shape, place.end - place.begin
    if dtype in _DTYPE_BYTES and span != prod(sizes) * _DTYPE_BYTES[dtype]:
        raise CheckpointError(
            f"{path.name}: tensor {name[:80]} has {span} bytes for shape {sizes}. Download the file again."
        )
    return TensorInfo(dtype, sizes, span, data_begins + place.begin)


def truncated(path: Path, size: int, wanted: int) -> CheckpointError:
    """Returns the error for a file whose size differs from the one its header states."""
    return CheckpointError(
        "{name} has {size} bytes, but its header says {wanted}: the file is truncated or damaged. Download it again.",
        name=path.name,
        size=f"{size:,}",
        wanted=f"{wanted:,}",
    )
