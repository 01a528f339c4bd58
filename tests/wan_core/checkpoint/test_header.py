"""Headers: every wrong file is refused in one sentence that says what it is."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.tiny_run import random_weights
from wan_core.checkpoint import read_header
from wan_core.errors import CheckpointError


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is an empty file"),
        (pickle.dumps({"a": 1}), "pickle"),
        (b"PK\x03\x04" + bytes(40), "pickled PyTorch file"),
        (b"GGUF" + bytes(40), "GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (struct.pack("<Q", 1 << 40) + b"{}" * 20, "not a safetensors file"),
        (struct.pack("<Q", 20) + b'{"a": [1, 2, 3], "b"' + bytes(9), "damaged"),
    ],
)
def test_files_that_are_no_models_are_named_for_what_they_are(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as refusal:
        read_header(path)
    assert "model.safetensors" in str(refusal.value)


def test_a_truncated_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "wan.safetensors"
    save_file(random_weights(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=rf"has {len(whole) - 100:,} bytes, but its header says {len(whole):,}"):
        read_header(path)


def safetensors_of(header: str, data_bytes: int) -> bytes:
    """The bytes of a file with that header, well-formed or not."""
    return struct.pack("<Q", len(header)) + header.encode() + bytes(data_bytes)


def entry(shape: str = "[1]", offsets: str = "[0, 4]", dtype: str = '"F32"') -> str:
    return f'{{"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}}}'


def header_with(**entries: str) -> str:
    return "{" + ", ".join(f'"{name}": {text}' for name, text in entries.items()) + "}"


DAMAGED = {
    "shape is an object": header_with(a=entry(shape="{}")),
    "shape is text": header_with(a=entry(shape='"1"')),
    "shape holds Infinity": header_with(a=entry(shape="[Infinity]")),
    "shape holds NaN": header_with(a=entry(shape="[NaN]")),
    "shape holds a fraction": header_with(a=entry(shape="[1.0]")),
    "shape holds true": header_with(a=entry(shape="[true]")),
    "shape is negative": header_with(a=entry(shape="[-1, -1]")),
    "shape is beyond 64 bits": header_with(a=entry(shape=f"[{1 << 64}]")),
    "shape has a thousand sides": header_with(a=entry(shape=str([1] * 1000))),
    "offsets are text": header_with(a=entry(offsets='"04"')),
    "offsets are texts": header_with(a=entry(offsets='["0", "4"]')),
    "offsets hold Infinity": header_with(a=entry(offsets="[0, Infinity]")),
    "one offset": header_with(a=entry(offsets="[4]")),
    "three offsets": header_with(a=entry(offsets="[0, 4, 4]")),
    "offsets run backwards": header_with(a=entry(offsets="[4, 0]")),
    "dtype is a list": header_with(a=entry(dtype="[]")),
    "no dtype": header_with(a='{"shape": [1], "data_offsets": [0, 4]}'),
    "an entry is a number": header_with(a="1"),
    "metadata is a list": header_with(__metadata__="[]", a=entry()),
    "100,000 nested lists": '{"a": ' + "[" * 100_000,
    "offsets overlap": header_with(a=entry(), b=entry()),
    "offsets leave a hole": header_with(a=entry(), b=entry(offsets="[8, 12]")),
    "data begins late": header_with(a=entry(offsets="[4, 8]")),
    "a tensor without bytes lies inside another": header_with(a=entry(), b=entry("[0]", "[2, 2]")),
}


@pytest.mark.parametrize("header", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("data_bytes", [0, 4, 8, 12])
def test_a_damaged_header_is_one_sentence_whatever_is_wrong(tmp_path: Path, header: str, data_bytes: int) -> None:
    path = tmp_path / "wan.safetensors"
    path.write_bytes(safetensors_of(header, data_bytes))
    with pytest.raises(CheckpointError) as refusal:
        read_header(path)
    assert str(refusal.value) == "wan.safetensors has a damaged safetensors header. Download it again."


def test_tensors_without_bytes_and_in_any_order_are_a_whole_header(tmp_path: Path) -> None:
    path = tmp_path / "wan.safetensors"
    header = header_with(c=entry("[0, 3]", "[4, 4]"), b=entry("[]", "[4, 8]"), a=entry(), d=entry("[0]", "[8, 8]"))
    path.write_bytes(safetensors_of(header, 8))
    found = {name: (info.shape, info.size_bytes) for name, info in read_header(path).tensors.items()}
    assert found == {"a": ((1,), 4), "b": ((), 4), "c": ((0, 3), 0), "d": ((0,), 0)}
    with safe_open(path, "pt") as file:  # the library that loads it agrees
        assert {name: tuple(file.get_slice(name).get_shape()) for name in found} == {
            n: s for n, (s, _) in found.items()
        }
