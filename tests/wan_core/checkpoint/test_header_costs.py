"""What the header of a model file costs is bounded before it is parsed, and damage is a sentence of ours."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from tests.support.damages import damages
from wan_core.checkpoint import read_checkpoint, read_tensors
from wan_core.checkpoint.header import parse_header, read_header
from wan_core.errors import CheckpointError

PLACE = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def write(path: Path, header: str, data: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
    return path


@pytest.mark.parametrize(
    "header",
    [
        '{"a":[' + "[]," * 10_000_000 + "[]]}",
        '{"a":' + "[" * 20_000_000,
        pytest.param('{"a":[' + "1," * 15_000_000 + "1]}", marks=pytest.mark.soak),
        pytest.param("{" + ",".join(f'"{number}":{{}}' for number in range(600_000)) + "}", marks=pytest.mark.soak),
        '{"__metadata__":' + '{"a":' * 1_400_000 + "1" + "}" * 1_400_000 + "}",
        json.dumps({str(number): PLACE for number in range(100_001)}),
    ],
    ids=["lists", "deep", "numbers", "tables", "metadata", "tensors"],
)
def test_a_header_that_would_hold_the_process_does_not(tmp_path: Path, header: str) -> None:
    """30 MB of empty lists took seconds and a gigabyte."""
    path = write(tmp_path / "a.safetensors", header)
    began = time.thread_time()
    with pytest.raises(CheckpointError, match=r"^a\.safetensors has a damaged safetensors header\."):
        read_header(path)
    assert time.thread_time() - began < 5


def test_a_header_of_more_tensors_and_words_than_any_is_read(tmp_path: Path) -> None:
    words = json.dumps({"nodes": [{"id": number, "inputs": [number]} for number in range(20_000)]})
    entries = {"__metadata__": {"workflow": words}, **{f"blocks.{number}.a.weight": PLACE for number in range(20_000)}}
    found = read_header(write(tmp_path / "a.safetensors", json.dumps(entries)))
    assert (len(found.tensors), found.metadata["workflow"]) == (20_000, words)


def test_a_longer_header_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 33 << 20) + b"{" + bytes(100))
    with pytest.raises(CheckpointError, match=r"a\.safetensors is not a safetensors file"):
        read_header(path)


@pytest.mark.parametrize("size", [17 << 20, 1 << 20])
def test_an_index_has_limits(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    places = {f"{number}": "a.safetensors" for number in range(size // 9 if size == 1 << 20 else 3)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}) + " " * (size if size != 1 << 20 else 0))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json is damaged"):
        read_checkpoint(folder)


def test_damage_is_a_sentence_or_a_header() -> None:
    whole = json.dumps(
        {
            "__metadata__": {"a": "b"},
            "x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "y": {"dtype": "BF16", "shape": [1], "data_offsets": [16, 18]},
        }
    ).encode()
    read = 0
    for damaged in damages(whole, 1000):
        try:
            read += len(parse_header(damaged).tensors) >= 0
        except ValueError:
            continue
    assert 0 < read < 500


def test_no_side_beside_a_side_of_nothing_is_larger_than_memory_has_numbers(tmp_path: Path) -> None:
    """Nothing times anything is nothing, so the bytes of such a tensor say nothing of its sides."""
    place = {"dtype": "F32", "shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]}
    path = write(tmp_path / "a.safetensors", json.dumps({"a": place}))
    with pytest.raises(CheckpointError, match=r"^a\.safetensors has a damaged safetensors header\."):
        read_tensors(path)
    sides = struct.pack("<Q1sI2QIQ", 1, b"a", 2, 0, 1 << 62, 0, 0)
    gguf = tmp_path / "a.gguf"
    gguf.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + sides + bytes(64))
    with pytest.raises(CheckpointError, match=r"^a\.gguf is a damaged GGUF file\."):
        read_checkpoint(gguf)


def test_an_alignment_that_is_a_list_of_nothing_is_damage(tmp_path: Path) -> None:
    key = b"general.alignment"
    gguf = tmp_path / "a.gguf"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 4, 0)
    gguf.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry + bytes(64))
    with pytest.raises(CheckpointError, match=r"^a\.gguf is a damaged GGUF file\."):
        read_checkpoint(gguf)
