"""Writes a cache set as TFRecords that MaxDiffusion trains Wan on.

Its Wan trainers (maxdiffusion, src/maxdiffusion/trainers/wan_trainer.py and
data_preprocessing/wan_pusav1_to_tfrecords.py) read one tf.train.Example per clip, with `latents` (C, F, h, w) and
`encoder_hidden_states` (512, 4096), each a serialized float32 tensor; evaluation sets also have `timesteps`, an int64.
Latents are normalised, as in the cache, so the export only widens bfloat16, which is exact, and pads texts.

The wire format is that of tensorflow/core/example/example.proto, tensorflow/core/framework/tensor.proto and TFRecord.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..cache import TEXT_WIDTH, CacheItem, CacheSet, LatentCache, pad_text, synthetic_note
from ..errors import CacheError, DatasetError, DependencyError
from ..files import atomic_write
from ..model import TEXT_LENGTH
from ..packages import pip_line

_MOST_RECORDS = 100_000
_BYTES, _INTS, _DT_FLOAT = 1, 3, 1


class ExportReport(NamedTuple):
    """The result of an export."""

    folders: tuple[str, ...]
    """subfolders of the requested folder, one per clip size; "." for a single size"""
    files: int
    records: int
    size_bytes: int


def export_records(
    cache: LatentCache,
    fingerprint: str,
    folder: Path,
    *,
    records_per_shard: int = 10,
    eval_timesteps: Sequence[int] = (),
) -> ExportReport:
    """Write a cache set as shards. `folder` must be empty or new.

    MaxDiffusion reads all files of a folder and stacks their records, so each clip size gets a folder of its own.
    `eval_timesteps`: each record has one of these timesteps, in equal shares and in this order.
    """
    cache_set = cache.read_set(fingerprint)
    _require_exportable(cache_set, folder, records_per_shard)
    groups: dict[str, list[CacheItem]] = {}
    for item in cache_set.items:
        groups.setdefault(str(item.bucket), []).append(item)
    names = dict.fromkeys(groups, ".") if len(groups) == 1 else {bucket: bucket for bucket in groups}
    files = size = 0
    for bucket, items in groups.items():
        below = folder / names[bucket]
        below.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(items), records_per_shard):
            # File names as in MaxDiffusion's script: number of the shard, and number of records up to the shard's end.
            name = f"file_{start // records_per_shard:02d}-{start + records_per_shard}.tfrec"
            with atomic_write(below / name) as file:
                for number, item in enumerate(items[start : start + records_per_shard], start):
                    features: dict[str, bytes | int] = {
                        "latents": encode_tensor(cache.read_latent(item.latent_key, cache_set.latent_shape(item))),
                        "encoder_hidden_states": encode_tensor(pad_text(cache.read_text(item.text_key))),
                    }
                    if eval_timesteps:
                        features["timesteps"] = eval_timesteps[number * len(eval_timesteps) // len(items)]
                    size += file.write(record_bytes(encode_example(features)))
            files += 1
    return ExportReport(tuple(names.values()), files, len(cache_set.items), size)


def _require_exportable(cache_set: CacheSet, folder: Path, records_per_shard: int) -> None:
    cache_set.require_items()
    if not 1 <= records_per_shard <= _MOST_RECORDS:
        raise DatasetError(f"records_per_shard is {records_per_shard}. Set it between 1 and {_MOST_RECORDS}.")
    if note := synthetic_note(cache_set):
        raise DatasetError(f"This set is not exported: {note} MaxDiffusion has its own (dataset_type synthetic).")
    if cache_set.kind.tensors:
        raise DatasetError(
            f'The set is conditioned on "{cache_set.conditioning}"; MaxDiffusion trains Wan on latents and texts '
            "alone. Export a set made for a text-to-video model."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DatasetError(f"{folder.name} is there and not empty. Choose a new folder: MaxDiffusion reads every file.")
    need = 4 * sum(_values(cache_set, item) for item in cache_set.items)
    above = next(place for place in (folder, *folder.parents) if place.is_dir())
    if need > (free := shutil.disk_usage(above).free):
        raise CacheError(f"The records take {need / 2**30:.1f} GiB, of {free / 2**30:.1f} GiB free. Free disk space.")


def _values(cache_set: CacheSet, item: CacheItem) -> int:
    channels, frames, height, width = cache_set.latent_shape(item)
    return channels * frames * height * width + TEXT_LENGTH * TEXT_WIDTH


def encode_example(features: Mapping[str, bytes | int]) -> bytes:
    """Returns a serialized Example of one value per feature, sorted by name as TensorFlow does."""
    entries = [_field(1, name.encode()) + _field(2, _feature(features[name])) for name in sorted(features)]
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def encode_tensor(tensor: Tensor) -> bytes:
    """Returns `tensor` in float32, which MaxDiffusion needs, as tf.io.serialize_tensor writes it."""
    content = tensor.detach().cpu().float().contiguous().numpy().astype("<f4", copy=False).tobytes()
    shape = b"".join(_field(2, _field(1, size)) for size in tensor.shape)
    return _field(1, _DT_FLOAT) + _field(2, shape) + _field(4, content)


def record_bytes(data: bytes) -> bytes:
    """Returns `data` as a TFRecord, with length and checksums; DependencyError without google-crc32c."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    try:
        import google_crc32c
    except ImportError as error:
        raise DependencyError(
            f"TFRecords need the package google-crc32c, for their checksums. Run: {pip_line('google-crc32c')}."
        ) from error
    crc: Any = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _feature(value: bytes | int) -> bytes:
    if isinstance(value, bytes):
        return _field(_BYTES, _field(1, value))
    return _field(_INTS, _field(1, _varint(value)))


def _field(number: int, value: int | bytes) -> bytes:
    """Returns a field of a message: an int as varint, bytes with their length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Returns a number from 0 on in groups of seven bits, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
