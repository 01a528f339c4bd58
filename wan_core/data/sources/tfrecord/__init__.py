"""TFRecord without TensorFlow: records with checksums, tf.train.Example messages, serialized tensors."""

from __future__ import annotations

from .crc32c import crc32c
from .example import Example, decode_example, decode_tensor, encode_example, encode_tensor
from .records import RecordWriter, read_records, record_bytes

__all__ = [
    "Example",
    "RecordWriter",
    "crc32c",
    "decode_example",
    "decode_tensor",
    "encode_example",
    "encode_tensor",
    "read_records",
    "record_bytes",
]
