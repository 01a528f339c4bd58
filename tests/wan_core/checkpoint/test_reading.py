"""Weights are read from their places in a file: nothing is mapped, one tensor is held at a time, to the bit."""

from __future__ import annotations

import errno
import io
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
import safetensors.torch
import torch

from tests.support.containers import cast, write_folder, write_gguf, write_scaled_fp8
from tests.support.lora_formats import FORMATS, write_format, write_lycoris
from tests.support.sessions import train_here
from tests.support.tiny_run import make_run, random_weights
from wan_core.checkpoint import TensorFile, WeightReader, locate_weights, read_checkpoint, read_tensors, tensor_file
from wan_core.errors import CheckpointError
from wan_core.files import Roots
from wan_core.job.config import read_status
from wan_core.load import ModelPlan, materialize
from wan_core.lora import read_lora
from wan_core.train import TrainConfig

real_preadv: Any = getattr(os, "preadv", None)
SIZES = ((), (0,), (1,), (3, 0, 2), (5, 7), (2, 3, 4, 5, 6))
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *([torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []),
]


def every_dtype() -> dict[str, torch.Tensor]:
    """Random bytes of each dtype and shape: every bit counts, those of NaN too."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for dtype in DTYPES:
        for size in SIZES:
            count = torch.Size(size).numel() * dtype.itemsize
            top = 2 if dtype == torch.bool else 256
            data = torch.randint(0, top, (count,), dtype=torch.uint8, generator=generator)
            found[f"{dtype}.{size}"] = data.view(dtype).view(size)
    return found


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_tensors_of_every_dtype_and_shape_are_those_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(tensor_file, "_AT_ONCE", piece)
    path = tmp_path / "all.safetensors"
    safetensors.torch.save_file(every_dtype(), path, metadata={"a": "ü"})
    expected, found = safetensors.torch.load_file(path), read_tensors(path)
    assert {name: bits(value) for name, value in found.items()} == {n: bits(v) for n, v in expected.items()}
    assert all(value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes for value in found.values())
    with TensorFile(path) as file:
        assert file.header.metadata == {"a": "ü"}
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for name, value in expected.items():
                if value.is_floating_point() and value.itemsize > 1:
                    asked, had = value.to(dtype), file.read_as(name, dtype)
                    assert torch.equal(had.isnan(), asked.isnan()), name  # torch itself gives one NaN several bits
                    assert torch.equal(had.nan_to_num(), asked.nan_to_num()), name


class Trickle(io.BytesIO):
    """A file of a network: each read gives a part of what was asked for; at its end it breaks off."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[: max(1, len(buffer) // 3)])


def trickle(descriptor: int, buffers: list[Any], offset: int) -> int:
    """The same of `os.preadv`."""
    return real_preadv(descriptor, [memoryview(buffers[0])[: max(1, len(buffers[0]) // 3)]], offset)


@pytest.mark.parametrize("at_a_place", [True, False])
def test_reads_that_give_less_than_was_asked_for_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_a_place: bool
) -> None:
    path = tmp_path / "all.safetensors"
    tensors = {**every_dtype(), "large": torch.randn(3 << 20, generator=torch.Generator().manual_seed(1))}
    safetensors.torch.save_file(tensors, path)
    whole = path.read_bytes()
    monkeypatch.setattr(tensor_file, "_AT_A_PLACE", at_a_place)
    with TensorFile(path) as file:
        if at_a_place:
            monkeypatch.setattr(tensor_file.os, "preadv", trickle)
        else:
            file.data.close()
            monkeypatch.setattr(file.data, "file", Trickle(whole))
        found = {name: bits(file.read(name)) for name in file.header.tensors}
    assert found == {name: bits(value) for name, value in safetensors.torch.load_file(path).items()}


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system reads a file at one place")
@pytest.mark.parametrize("fails_from", [0, 8 << 20])
def test_of_a_large_tensor_either_half_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_from: int
) -> None:
    path = tmp_path / "wan.safetensors"
    safetensors.torch.save_file({"large": torch.randn(4 << 20)}, path)

    def broken(descriptor: int, buffers: list[Any], offset: int) -> int:
        if offset >= fails_from:
            raise OSError(errno.EIO, "Input/output error")
        return real_preadv(descriptor, buffers, offset)

    with TensorFile(path) as file:
        monkeypatch.setattr(tensor_file.os, "preadv", broken)
        with pytest.raises(CheckpointError, match=r"^wan\.safetensors cannot be read: Input/output error\."):
            file.read("large")
        monkeypatch.setattr(tensor_file.os, "preadv", real_preadv)
        assert torch.equal(file.read("large"), safetensors.torch.load_file(path)["large"])


def test_a_file_that_ends_while_it_is_read_is_the_sentence_of_truncated_ones(tmp_path: Path) -> None:
    path = tmp_path / "wan.safetensors"
    safetensors.torch.save_file(random_weights(), path)
    size = path.stat().st_size
    with WeightReader() as reader:
        weights = locate_weights(read_checkpoint(path)).weights
        first, *_, last = sorted(weights.values(), key=lambda source: read_checkpoint(path).tensors[source.key].begin)
        reader.raw(first)
        with open(path, "r+b") as file:
            file.truncate(size - 100)
        said = rf"^wan\.safetensors has {size - 100:,} bytes, but its header says {size:,}: the file is truncated or "
        for read in (lambda: reader.raw(last), lambda: reader.read(last, torch.bfloat16)):
            with pytest.raises(CheckpointError, match=said):
                read()


class Broken(io.BytesIO):
    def readinto(self, _buffer: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_disk_that_fails_is_named_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file ends the process with a signal there."""
    path = tmp_path / "wan.safetensors"
    safetensors.torch.save_file(random_weights(), path)
    monkeypatch.setattr(tensor_file, "_AT_A_PLACE", False)
    with TensorFile(path) as file:
        file.data.close()
        monkeypatch.setattr(file.data, "file", Broken())
        with pytest.raises(CheckpointError, match=r"^wan\.safetensors cannot be read: Input/output error\. Check its "):
            file.read("patch_embedding.weight")


# ---- nothing is mapped --------------------------------------------------------------------------


def mapped() -> set[str]:
    """The files of models that this process has in its memory map."""
    lines = Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else []
    return {line for line in lines if ".safetensors" in line or ".gguf" in line}


@pytest.fixture
def no_mapping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file system that maps no file, as far as Python and safetensors ask for it."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    for place, name in (
        (mmap, "mmap"),
        (numpy, "memmap"),
        (safetensors, "safe_open"),
        (safetensors.torch, "safe_open"),
        (safetensors.torch, "load_file"),
        (torch.UntypedStorage, "from_file"),
    ):
        monkeypatch.setattr(place, name, refused)
    before = mapped()
    yield
    assert mapped() <= before


def write_model(path: Path, kind: str) -> None:
    weights = random_weights()
    if kind == "gguf":
        pytest.importorskip("gguf", reason="gguf is an extra")
        write_gguf(path, weights, "Q8_0")
    elif kind == "shards":
        write_folder(path, cast(weights, torch.bfloat16), shards=3)
    elif kind == "fp8":
        write_scaled_fp8(path, weights)
    else:
        safetensors.torch.save_file(weights, path)


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        *[("plain", "bf16"), ("shards", "as in file"), ("fp8", "as in file"), ("gguf", "bf16")],
        *(
            pytest.param(kind, precision, marks=pytest.mark.soak)
            for kind, precision in [
                ("plain", "as in file"),
                ("shards", "bf16"),
                ("fp8", "bf16"),
                ("gguf", "as in file"),
            ]
        ),
    ],
)
def test_a_model_is_loaded_where_nothing_can_be_mapped(
    tmp_path: Path, kind: str, precision: str, request: pytest.FixtureRequest
) -> None:
    name = {"shards": "wan", "gguf": "wan.gguf"}.get(kind, "wan.safetensors")
    write_model(tmp_path / name, kind)
    request.getfixturevalue("no_mapping")
    plan = ModelPlan(base_file=f"diffusion_models:{name}", base_precision=precision)
    seen, before = list[set[str]](), mapped()
    model = materialize(
        plan,
        Roots({"diffusion_models": (str(tmp_path),)}),
        None,
        on_tensor=lambda _done, _total: seen.append(mapped()),
    )
    assert len(seen) == sum(1 for _ in random_weights())
    assert not set().union(*seen) - before
    assert not any(parameter.is_meta for parameter in model.parameters())


@pytest.mark.lasts(1)
@pytest.mark.usefixtures("no_mapping")
def test_a_run_trains_saves_and_goes_on_where_nothing_can_be_mapped(tmp_path: Path) -> None:
    train = TrainConfig(steps=2, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    run = make_run(tmp_path, train=train)
    for steps in (1, 0):
        train_here(run, max_steps=steps)
    assert read_status(run.directory).state == "done"
    saved = run.directory / "saves" / "step-000002"
    assert set(read_tensors(saved / "lora.safetensors")) != set()
    assert all(bool(value.isfinite().all()) for value in read_tensors(saved / "state.safetensors").values())


def test_a_lora_is_read_where_nothing_can_be_mapped(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    paths = [write_format(name, tmp_path / f"{number}.safetensors") for number, name in enumerate(FORMATS)]
    paths += [write_lycoris(kind, "lycoris_", tmp_path / f"{kind}.safetensors") for kind in ("lokr", "loha")]
    request.getfixturevalue("no_mapping")
    before = mapped()
    for path in paths:
        source = read_lora(path)
        for module in source.modules:
            assert source.change(module).norm() > 0
        assert mapped() <= before
