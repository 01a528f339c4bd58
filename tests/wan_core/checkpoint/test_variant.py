"""Variants from headers alone, and every wrong file refused in one sentence."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tests.support.tiny_run import random_weights
from wan_core.checkpoint import CheckpointHeader, TensorInfo, detect_variant, read_header
from wan_core.checkpoint.keys import PREFIXES
from wan_core.errors import CheckpointError

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEMPLATES = json.loads((FIXTURES / "wan_variant_keys.json").read_text())


def header_of(template: str, file_name: str, prefix: str = "") -> CheckpointHeader:
    """A header as a file of that variant would have it, without the file."""
    tensors = {}
    for key, info in TEMPLATES[template]["keys"].items():
        for index in range(info["count"]) if "{i}" in key else [0]:
            tensors[prefix + key.replace("{i}", str(index))] = TensorInfo("BF16", tuple(info["shape"]), 0)
    return CheckpointHeader(Path(file_name), tensors, {}, 0)


def _variants() -> dict:
    return {name: variant for name, variant in TEMPLATES.items() if not name.startswith("_")}


@pytest.mark.parametrize("prefix", ["", *PREFIXES])
def test_text_to_video_models_are_told_apart_by_their_width(prefix: str) -> None:
    found = {}
    for template in _variants():
        if "t2v" in template.lower():
            variant = detect_variant(header_of(template, f"{template}.safetensors", prefix))
            found[template] = (variant.task, variant.shape.dim, variant.shape.num_layers, variant.shape.num_heads)
    widths = {shape[1:] for shape in found.values()}
    assert (1536, 30, 12) in widths
    assert (5120, 40, 40) in widths
    assert all(task == "t2v" for task, *_ in found.values())


def test_only_text_to_video_is_trainable_and_every_other_task_is_named() -> None:
    tasks = {name: detect_variant(header_of(name, f"{name}.safetensors")) for name in _variants()}
    assert {v.task for v in tasks.values()} >= {"t2v", "i2v", "ti2v", "vace", "s2v", "animate"}
    assert all(v.trainable == (v.task == "t2v") for v in tasks.values())


def test_the_file_name_decides_between_experts_and_the_rest_are_candidates() -> None:
    template = next(n for n in _variants() if "t2v" in n.lower() and "14b" in n.lower())
    high = detect_variant(header_of(template, "wan2.2_t2v_high_noise_14B_fp16.safetensors"))
    low = detect_variant(header_of(template, "wan2.2_t2v_low_noise_14B_fp16.safetensors"))
    plain = detect_variant(header_of(template, "wan2.1_t2v_14B_bf16.safetensors"))
    assert high.sigma_range() == (0.875, 1.0)
    assert low.sigma_range() == (0.0, 0.875)
    assert plain.name == "2.1 T2V-14B"
    assert len(plain.candidates) == 2


def test_a_pair_of_no_published_size_is_told_apart_by_its_file_names(tmp_path: Path) -> None:
    found = {}
    for name in ("tiny_high_noise", "tiny_low_noise", "tiny"):
        save_file(random_weights(), tmp_path / f"{name}.safetensors")
        found[name] = detect_variant(read_header(tmp_path / f"{name}.safetensors"))
    assert {name: variant.sigma_range() for name, variant in found.items()} == {
        "tiny_high_noise": (0.875, 1.0),
        "tiny_low_noise": (0.0, 0.875),
        "tiny": (0.0, 1.0),
    }
    assert found["tiny_high_noise"].name.endswith("high noise")
    assert all(variant.trainable for variant in found.values())


def test_a_vae_given_as_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wan_2.1_vae.safetensors"
    save_file({"decoder.head.0.gamma": torch.ones(4), "encoder.conv1.weight": torch.ones(2, 2)}, path)
    with pytest.raises(CheckpointError, match=r"wan_2\.1_vae\.safetensors is a VAE.*VAELoader"):
        detect_variant(read_header(path))


def test_a_lora_given_as_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "style.safetensors"
    save_file({"diffusion_model.blocks.0.ffn.0.lora_A.weight": torch.ones(4, 4)}, path)
    with pytest.raises(CheckpointError, match="is a LoRA"):
        detect_variant(read_header(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
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
    with pytest.raises(
        CheckpointError, match=rf"has {len(whole) - 100:,} bytes where its header promises {len(whole):,}"
    ):
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


@pytest.mark.parametrize("sizes", [(), (1,), (1, 1, 1, 1), "a side of 0"], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "head.modulation",
        "blocks.0.ffn.0.weight",
        "patch_embedding.weight",
        "head.head.weight",
        "text_embedding.0.weight",
        "time_embedding.0.weight",
    ],
)
def test_a_weight_of_the_wrong_dimension_is_a_damaged_header(name: str, sizes: tuple[int, ...] | str) -> None:
    whole = header_of(next(n for n in _variants() if "t2v" in n.lower()), "wan.safetensors")
    wrong = (*whole.tensors[name].shape[:-1], 0) if isinstance(sizes, str) else sizes
    tensors = {**whole.tensors, name: TensorInfo("BF16", wrong, 0)}
    with pytest.raises(CheckpointError, match=r"^wan\.safetensors has a damaged safetensors header\."):
        detect_variant(CheckpointHeader(whole.path, tensors, {}, 0))
