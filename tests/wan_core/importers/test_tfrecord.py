"""TFRecord files byte by byte: known answers, a file that TensorFlow wrote, and what is said of damaged ones."""

from __future__ import annotations

import base64
import gzip
import struct
import sys
import zlib

import google_crc32c
import pytest
import torch

from wan_core.errors import DatasetError, DependencyError
from wan_core.importers.maxdiffusion.example import decode_example, decode_tensor, encode_example, encode_tensor
from wan_core.importers.maxdiffusion.records import read_records, record_bytes

FROM_TENSORFLOW = zlib.decompress(
    base64.b64decode(
        "eNpFjz9Lw1AUxW/SGF+P2pbrH7QohOAkLoJKcfB18SPYtUbzioE0KeZJcRC6FQrugp/C2SVfwm/h4uik1zbigR93uId7z3mhhXZOeoRnB0fY"
        "NNlNHpu7/m0SxybrFzaypuBtbGFDNVixqxyhFvqlppIIF1hOxZLZgs/QwamsW2JwK+PvdMOg+nNONBFKgTRRIHSFK41d1G0yNIU1o4Kb7TWs"
        "PH59V3Kmn28fT9UJ3ZxEmDnYhx/n99ep4TYknTz6y+aE6nKud406lsxwZB+YEMAfJGlqYpYqYLGqKl/twJMcXanoD9I8kiarDKhFxlJj778i"
        "o4WGWmdvXsujDh2PXw97P/CGQUE="
    )
)
"""two examples by TensorFlow 2.21: tf.io.TFRecordWriter, tf.io.serialize_tensor and tf.make_tensor_proto"""


def test_a_file_of_tensorflow_is_read_value_by_value(tmp_path):
    path = tmp_path / "golden.tfrec"
    path.write_bytes(FROM_TENSORFLOW)
    first, second = (decode_example(record) for record in read_records(path))
    assert sorted(first) == ["encoder_hidden_states", "latents", "timesteps"]
    assert torch.equal(decode_tensor(first["latents"][0]), torch.arange(8.0).view(2, 1, 2, 2) / 8)
    text = decode_tensor(first["encoder_hidden_states"][0])
    assert (text.dtype, text.tolist()) == (torch.bfloat16, [[1.5, -2.0, 0.0]])
    assert first["timesteps"] == [125, -7]
    half = decode_tensor(second["latents"][0])
    assert (half.dtype, half.tolist()) == (torch.float16, [0.5, 0.25])
    assert torch.equal(decode_tensor(second["filled"][0]), torch.full((2, 3), 3.0))
    assert decode_tensor(second["double"][0]).item() == 1 / 3
    assert (second["floats"], second["empty"]) == ([0.5, 1.5], [])


def test_the_same_content_makes_the_bytes_tensorflow_made(tmp_path):
    tensor = torch.arange(8.0).view(2, 1, 2, 2) / 8
    path = tmp_path / "golden.tfrec"
    path.write_bytes(FROM_TENSORFLOW)
    theirs = decode_example(next(read_records(path)))
    assert encode_tensor(tensor) == theirs["latents"][0]
    record = encode_example({**theirs, "latents": [encode_tensor(tensor)]})
    assert FROM_TENSORFLOW.startswith(record_bytes(record))


def test_what_is_written_comes_back(tmp_path):
    tensor = torch.randn(16, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    features = {"t": [encode_tensor(tensor)], "n": [3, -1, 1 << 62], "f": [0.25], "empty": [], "two": [b"a", b""]}
    (tmp_path / "a.tfrec").write_bytes(record_bytes(b"") + record_bytes(encode_example(features)))
    empty, back = read_records(tmp_path / "a.tfrec")
    assert empty == b""
    assert decode_example(back) == features
    assert torch.equal(decode_tensor(decode_example(back)["t"][0]), tensor)


def cut(data: bytes, end: int) -> bytes:
    return data[:end]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


TWO = record_bytes(b"a" * 5000) + record_bytes(b"b" * 50)  # the second one starts at byte 5016


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (cut(TWO, -1), "Record 1 of s.tfrec is cut off: it has 50 bytes and 49 are there"),
        (cut(TWO, 5016 + 7), "Record 1 of s.tfrec is cut off"),
        (cut(TWO, 100), "Record 0 of s.tfrec is cut off: it has 5000 bytes and 84 are there"),
        (flipped(TWO, 5016), "Record 1 of s.tfrec has a length whose checksum does not match"),
        (flipped(TWO, 2000), "Record 0 of s.tfrec is damaged: its checksum does not match"),
        (flipped(TWO, len(TWO) - 1), "Record 1 of s.tfrec is damaged"),
        (gzip.compress(TWO, mtime=0), r"s.tfrec is compressed with gzip. Decompress it first"),
        (b"no record at all", "Record 0 of s.tfrec has a length"),
    ],
)
def test_damage_is_named_with_the_number_of_the_record(tmp_path, data: bytes, said: str):
    (tmp_path / "s.tfrec").write_bytes(data)
    with pytest.raises(DatasetError, match=said):
        list(read_records(tmp_path / "s.tfrec"))


def test_good_records_before_a_bad_one_are_given(tmp_path):
    (tmp_path / "s.tfrec").write_bytes(TWO[:-1])
    records = read_records(tmp_path / "s.tfrec")
    assert next(records) == b"a" * 5000
    with pytest.raises(DatasetError, match="Record 1"):
        next(records)


def test_an_impossible_length_reads_nothing(tmp_path):
    length = struct.pack("<Q", 1 << 62)
    crc = google_crc32c.value(length)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    (tmp_path / "s.tfrec").write_bytes(length + struct.pack("<I", masked))
    with pytest.raises(DatasetError, match=f"claims {1 << 62} bytes"):
        list(read_records(tmp_path / "s.tfrec"))


def test_without_the_package_of_checksums_the_refusal_names_it(tmp_path, monkeypatch):
    (tmp_path / "s.tfrec").write_bytes(TWO)
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(
        DependencyError, match=r'^TFRecords need the package google-crc32c.* -m pip install "google-crc'
    ):
        list(read_records(tmp_path / "s.tfrec"))


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a field without its length
        b"\x0a\x05ab",  # longer than the message
        b"\x0b",  # a group, which proto3 does not have
        b"\x08" + b"\xff" * 11,  # a number without end
    ],
)
def test_what_is_no_message_is_refused(data: bytes):
    with pytest.raises(ValueError, match=r"number|field|wire"):
        decode_example(data)
    with pytest.raises(ValueError, match=r"number|field|wire"):
        decode_tensor(data)


def test_a_tensor_that_lies_about_its_size_is_refused():
    honest = encode_tensor(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="do not make shape"):
        decode_tensor(honest[:-4].replace(b"\x22\x18", b"\x22\x14"))
    with pytest.raises(ValueError, match="data type 9 is not a float type"):
        decode_tensor(b"\x08\x09" + honest[2:])
    huge = b"\x08\x01\x12\x08\x12\x06\x08\xff\xff\xff\xff\x0f\x2a\x04" + struct.pack("<f", 1.0)
    with pytest.raises(ValueError, match="1 values do not make shape"):
        decode_tensor(huge)
