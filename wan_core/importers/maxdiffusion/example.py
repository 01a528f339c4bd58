"""Encodes and decodes tf.train.Example and the tensors of tf.io.serialize_tensor in the wire format of protocol
buffers.

Sources: tensorflow/core/example/example.proto, tensorflow/core/framework/tensor.proto. Only the parts of the wire
format that these messages use are implemented.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
"""wire type of a fixed-width number -> number of bytes"""

_MOST_FIELDS = 10_000
"""largest number of fields in a message, because parsing cannot be cancelled and takes long for many small fields"""


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yields (field number, value) of a message; a varint is an int. ValueError for an invalid message."""
    place = count = 0
    while place < len(message):
        count += 1
        if count > _MOST_FIELDS:
            raise ValueError(f"it has more than {_MOST_FIELDS} fields")
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if kind == _LENGTH:
            size, place = _varint(message, place)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            raise ValueError(f"wire type {kind} is not used by Example")
        if place + size > len(message):
            raise ValueError("a field is longer than its message")
        yield number, message[place : place + size]
        place += size


def _write_varint(value: int) -> bytes:
    """Returns a 64-bit number as a varint; a negative one takes ten bytes, as in protobuf's int64."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    """Returns a serialized field: an int as varint, bytes with their length."""
    if isinstance(value, int):
        return _write_varint(number << 3 | _VARINT) + _write_varint(value)
    return _write_varint(number << 3 | _LENGTH) + _write_varint(len(value)) + value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Returns the number at `place`, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number is cut off")
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place
    raise ValueError("a number is longer than 64 bits")


Feature = list[bytes] | list[float] | list[int]
Example = dict[str, Feature]
"""feature name -> values"""

_BYTES, _FLOATS, _INTS = 1, 2, 3
_DT_FLOAT = 1
_DTYPES = {_DT_FLOAT: torch.float32, 2: torch.float64, 14: torch.bfloat16, 19: torch.float16}
"""DataType of tensorflow/core/framework/types.proto"""
_MOST_VALUES, _MOST_FEATURES, _MOST_DIMENSIONS = 1000, 1000, 8
"""largest numbers of values in a feature (more are ignored), of features in an Example, and of dimensions of a
tensor"""
_MOST_FILLED = 1 << 24
"""largest number of values of a tensor that stores one repeated value"""


def decode_example(data: bytes) -> Example:
    """Returns the features of a serialized Example; ValueError if it is invalid."""
    found: Example = {}
    for features in _messages(memoryview(data), 1):
        for entry in _messages(features, 1):
            name, feature = "", memoryview(b"")
            for number, value in _fields(entry):
                if number == 1 and isinstance(value, memoryview):
                    name = bytes(value).decode("utf-8")
                elif number == 2 and isinstance(value, memoryview):
                    feature = value
            found[name] = _values(feature)
            if len(found) > _MOST_FEATURES:
                raise ValueError(f"it has more than {_MOST_FEATURES} features")
    return found


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Returns a serialized Example with its features sorted by name, so that equal features give equal bytes."""
    entries = [field(1, name.encode()) + field(2, _feature(features[name])) for name in sorted(features)]
    return field(1, b"".join(field(1, entry) for entry in entries))


def decode_tensor(data: bytes) -> Tensor:
    """Returns the tensor of a serialized TensorProto (float32, float64, float16, bfloat16); ValueError if invalid."""
    dtype, shape, content, floats = 0, (), memoryview(b""), memoryview(b"")
    for number, value in _fields(memoryview(data)):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 2 and isinstance(value, memoryview):
            shape = tuple(_size(dim) for dim in itertools.islice(_messages(value, 2), _MOST_DIMENSIONS + 1))
            if len(shape) > _MOST_DIMENSIONS:
                raise ValueError(f"it has more than {_MOST_DIMENSIONS} dimensions")
        elif number == 4 and isinstance(value, memoryview):
            content = value
        elif number == 5 and isinstance(value, memoryview):
            floats = value
    if dtype not in _DTYPES:
        raise ValueError(f"its data type {dtype} is not a float type")
    if not content and floats and dtype == _DT_FLOAT:
        return _filled(floats, shape)
    if len(content) != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise ValueError(f"its {len(content)} bytes do not make shape {list(shape)}")
    if not content:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(bytearray(content), dtype=_DTYPES[dtype]).view(shape)


def encode_tensor(tensor: Tensor) -> bytes:
    """Returns `tensor` in float32, which MaxDiffusion needs, as tf.io.serialize_tensor writes it."""
    plain = tensor.detach().to("cpu", torch.float32).contiguous()
    shape = b"".join(field(2, field(1, size)) for size in plain.shape)
    content = plain.numpy().astype("<f4", copy=False).tobytes()
    return field(1, _DT_FLOAT) + field(2, shape) + field(4, content)


def _filled(floats: memoryview, shape: tuple[int, ...]) -> Tensor:
    """Returns a tensor from float_val, in which the last value is repeated up to the shape."""
    values = torch.frombuffer(bytearray(floats), dtype=torch.float32)
    count = math.prod(shape)
    if not 0 < len(values) <= count <= _MOST_FILLED:
        raise ValueError(f"its {len(values)} values do not make shape {list(shape)}")
    return torch.cat([values, values[-1:].expand(count - len(values))]).view(shape)


def _messages(message: memoryview, wanted: int) -> Iterator[memoryview]:
    return (value for number, value in _fields(message) if number == wanted and isinstance(value, memoryview))


def _size(dim: memoryview) -> int:
    size = [0, *(value for number, value in _fields(dim) if number == 1 and isinstance(value, int))][-1]
    if size >= 1 << 32:
        raise ValueError(f"a side of {size} is impossible")
    return size


def _values(feature: memoryview) -> Feature:
    for number, value in _fields(feature):
        if not isinstance(value, memoryview):
            continue
        if number == _BYTES:
            return [bytes(item) for item in itertools.islice(_messages(value, 1), _MOST_VALUES)]
        if number == _FLOATS:
            parts = (bytes(part[: 4 * _MOST_VALUES]) for part in itertools.islice(_messages(value, 1), _MOST_VALUES))
            return [float(number) for number in np.frombuffer(b"".join(parts)[: 4 * _MOST_VALUES], "<f4")]
        if number == _INTS:
            return list(itertools.islice(_ints(value), _MOST_VALUES))
    return []


def _ints(message: memoryview) -> Iterator[int]:
    """Yields the signed 64-bit numbers of an Int64List, packed or one per field."""
    for number, value in _fields(message):
        if number != 1:
            continue
        place, packed = 0, value if isinstance(value, memoryview) else memoryview(_write_varint(value))
        while place < len(packed):
            found, place = _varint(packed, place)
            yield found - (1 << 64) if found >> 63 else found


def _feature(values: Feature) -> bytes:
    if all(isinstance(value, bytes) for value in values):
        return field(_BYTES, b"".join(field(1, value) for value in cast("Sequence[bytes]", values)))
    if all(isinstance(value, int) for value in values):
        packed = b"".join(_write_varint(value) for value in cast("Sequence[int]", values))
        return field(_INTS, field(1, packed))
    return field(_FLOATS, field(1, np.asarray(values, "<f4").tobytes()))
