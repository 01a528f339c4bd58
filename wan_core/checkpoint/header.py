"""The header of a safetensors file: what it says about itself, without reading one weight.

Owns the checks that decide 'this is a whole, honest safetensors file' (rules S5, S6). Folders and GGUF are the business
of container.py, what the tensors mean is that of variant.py.
"""

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
_LENGTH = struct.Struct("<Q")
"""what a file begins with: how long the JSON of its header is"""
_HEADER_LIMIT = 32 << 20
"""bytes of JSON; the largest known have one, of which most are metadata"""
_MOST_TENSORS = 100_000
_MOST_SIGNS = 1_500_000
"""brackets and commas of the JSON: each may be a value, and the parser holds the interpreter while it makes them"""
_MAX_DIMENSIONS = 32
_LONGEST_NAME = 500
"""the longest known has some hundred characters"""
_NOT_SAFETENSORS = (
    (b"PK\x03\x04", "a pickled PyTorch file (.pt/.pth/.ckpt), which can run code when opened"),
    (b"\x80", "a pickle, which can run code when opened"),
    (b"GGUF", "a GGUF file under another name; let it end in .gguf"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"<", "a web page, not a model (a download that failed)"),
)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a header: safetensors dtype name, shape, and its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    begin: int = 0
    """where they begin in the file"""


@dataclass(frozen=True)
class CheckpointHeader:
    """All tensors of a file, or of a folder of files, by the names used there, and the text metadata."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    size_bytes: int
    container: str = "safetensors"
    """safetensors, folder, sharded folder, gguf"""
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """tensor -> its file, where that is not `path` itself"""

    def __post_init__(self) -> None:
        for name in self.tensors:
            if len(name) > _LONGEST_NAME:
                raise CheckpointError(
                    f"{self.path.name}: the name of tensor {name[:80]} has {len(name):,} characters; in a Wan file "
                    f"none has more than {_LONGEST_NAME}. Choose another file."
                )

    def file_of(self, name: str) -> Path:
        """The file that holds the tensor `name`."""
        return self.files.get(name, self.path)


def read_header(path: Path) -> CheckpointHeader:
    """Read and check a safetensors header. CheckpointError names the file, what it is instead, and what to do."""
    try:
        with open_regular(path) as file:
            return header_of(file, path)
    except FileError as error:
        raise CheckpointError(str(error)) from error


def header_of(file: BinaryIO, path: Path) -> CheckpointHeader:
    """Returns the same of a file that is open at its beginning and called `path`."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(32)
    raw = b""
    end = header_end(start)
    if start[_LENGTH.size : _LENGTH.size + 1] == b"{" and end <= _LENGTH.size + _HEADER_LIMIT:
        file.seek(_LENGTH.size)
        raw = file.read(end - _LENGTH.size)
    if not raw:
        raise CheckpointError(
            "{name} is {start}. Choose a .safetensors Wan diffusion model.",
            name=path.name,
            start=_what_it_is(start, size),
        )
    if _LENGTH.size + len(raw) < end:
        raise truncated(path, size, end)
    try:
        stated = parse_header(raw)
    except ValueError as error:
        raise damaged(path.name) from error
    if size != end + stated.data_bytes:
        raise truncated(path, size, end + stated.data_bytes)
    tensors = {name: _tensor(name, place, path, end) for name, place in stated.tensors.items()}
    return CheckpointHeader(path, tensors, stated.metadata, size)


@dataclass(frozen=True)
class TensorPlace:
    """One tensor as a header states it; `begin` and `end` are bytes of the data section."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class StatedHeader:
    """The JSON of a header, read; its tensors tile `data_bytes` bytes with no hole and no overlap."""

    tensors: Mapping[str, TensorPlace]
    metadata: Mapping[str, str]
    data_bytes: int


def header_end(start: bytes | bytearray) -> int:
    """Returns where the header of a file ends and its data begins, as its first 8 bytes state it; 8 where they lack."""
    return _LENGTH.size + (_LENGTH.unpack_from(start)[0] if len(start) >= _LENGTH.size else 0)


def framed_header(text: bytes) -> bytes:
    """Returns the JSON of a header as the start of a file: its length before it, spaces after it to a multiple of 8."""
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def parse_header(raw: bytes) -> StatedHeader:
    """Reads the JSON of a safetensors header; ValueError when it cannot be one. Cache entries are read with it too."""
    if sum(map(raw.count, (b"{", b"[", b","))) > _MOST_SIGNS:
        raise ValueError("more of everything than any model has")
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
    """Returns whether the sides of a tensor can be multiplied in 63 bits, of bytes; one side may be nothing."""
    return prod(max(1, side) for side in shape) < 1 << 60


def damaged(file_name: str) -> CheckpointError:
    """Returns the one sentence for every header that cannot be right."""
    return CheckpointError("{file_name} has a damaged safetensors header. Download it again.", file_name=file_name)


def _place(info: dict[str, Any]) -> TensorPlace:
    """Returns a tensor's place; ValueError or TypeError when the entry cannot be one."""
    shape, offsets = _whole_numbers(info["shape"]), _whole_numbers(info["data_offsets"])
    sound = len(shape) <= _MAX_DIMENSIONS and fits_memory(shape)
    if not isinstance(info["dtype"], str) or not sound or len(offsets) != 2:
        raise ValueError("not a tensor")
    return TensorPlace(info["dtype"], tuple(shape), offsets[0], offsets[1])


def _whole_numbers(value: object) -> list[int]:
    """Returns `value` as what JSON must hold there.

    It is a list of numbers 0 to 2**63 - 1, no bool, no float, no Infinity.
    """
    if not isinstance(value, list):
        raise TypeError("not a list")
    numbers = cast("list[object]", value)
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise ValueError("not whole numbers")
    return cast("list[int]", numbers)


def _end_of_data(places: Iterable[tuple[int, int]]) -> int:
    """Returns where the last tensor ends; ValueError unless the tensors tile the data with no hole and no overlap."""
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


def _what_it_is(start: bytes, size: int) -> str:
    if size == 0:
        return "an empty file"
    for magic, words in _NOT_SAFETENSORS:
        if start.startswith(magic):
            return words
    return "not a safetensors file"


def truncated(path: Path, size: int, wanted: int) -> CheckpointError:
    """Returns the one sentence for every file that ends too early, or late."""
    return CheckpointError(
        "{name} has {size} bytes where its header promises {wanted}: truncated or damaged. Download it again.",
        name=path.name,
        size=f"{size:,}",
        wanted=f"{wanted:,}",
    )
