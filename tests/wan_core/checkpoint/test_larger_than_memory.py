"""A model file may be larger than the memory of the computer: what is needed of it is one tensor at a time."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from pathlib import Path

import pytest
import torch

from tests.support.forked import RunScript
from wan_core.checkpoint.header import framed_header
from wan_core.model import WanShape, WanTransformer
from wan_core.placement.host import host_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
SCRIPT = Path(__file__).parents[2] / "support" / "read_in_little.py"
MIB, GIB = 1 << 20, 1 << 30


def shapes_of(shape: WanShape) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in WanTransformer(shape).named_parameters()}


def write_sparse(path: Path, sizes: dict[str, tuple[int, ...]]) -> int:
    """A file of zeros in bf16 (of GGUF in fp16) with a true header, that takes no room; returns its bytes."""
    counts = {name: 2 * torch.Size(size).numel() for name, size in sizes.items()}
    header, offset = (_gguf if path.suffix == ".gguf" else _safetensors)(sizes, counts)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + offset)
    if path.stat().st_blocks * 512 > GIB // 4:
        pytest.skip(f"the disk of {path.parent} makes no sparse files")
    return path.stat().st_size


def _safetensors(sizes: dict[str, tuple[int, ...]], counts: dict[str, int]) -> tuple[bytes, int]:
    entries, offset = {}, 0
    for name, size in sizes.items():
        entries[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, offset + counts[name]]}
        offset += counts[name]
    return framed_header(json.dumps(entries).encode()), offset


def _gguf(sizes: dict[str, tuple[int, ...]], counts: dict[str, int]) -> tuple[bytes, int]:
    """Version 3, no metadata; type 1 is fp16, each tensor begins at a multiple of 32."""
    text, offset = b"GGUF" + struct.pack("<IQQ", 3, len(sizes), 0), 0
    for name, size in sizes.items():
        text += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(size))
        text += struct.pack(f"<{len(size)}QIQ", *reversed(size), 1, offset)
        offset += -(-counts[name] // 32) * 32
    return text + bytes(-len(text) % 32), offset


@pytest.mark.lasts(1)
@pytest.mark.parametrize("ending", ["safetensors", "gguf"])
def test_a_file_is_read_in_the_memory_of_one_tensor(run_script: RunScript, tmp_path: Path, ending: str) -> None:
    """10 tensors of 34 MiB in 64 MiB: address space, so that what is mapped counts whole."""
    if ending == "gguf":
        pytest.importorskip("gguf", reason="gguf is an extra")
    file = tmp_path / f"wan.{ending}"
    size = write_sparse(file, {f"blocks.{i}.ffn.0.weight": (4352, 4096) for i in range(10)})
    done = run_script(SCRIPT, str(file), "64")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["tensors"], found["read"], found["nonzero"]) == (10, 10 * 34 * MIB, 0)
    assert size > found["read"]


@pytest.mark.soak
@pytest.mark.parametrize("ending", ["safetensors", "gguf"])
def test_a_file_of_40_gb_is_read_with_16(run_script: RunScript, tmp_path: Path, ending: str) -> None:
    if ending == "gguf":
        pytest.importorskip("gguf", reason="gguf is an extra")
    sizes = shapes_of(WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=57))
    if ending == "gguf":
        sizes = {
            name: size if len(size) <= 4 else (size[0], torch.Size(size[1:]).numel()) for name, size in sizes.items()
        }
    file = tmp_path / f"wan.{ending}"
    try:
        size = write_sparse(file, sizes)
    except OSError as error:
        pytest.skip(f"the disk of {tmp_path} takes no file of 40 GB: {error.strerror}")
    assert size > 40e9
    done = run_script(SCRIPT, str(file), f"={16 << 10}")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["tensors"], found["nonzero"]) == (len(sizes), 0)
    assert 0 < size - found["read"] < MIB


@pytest.mark.soak
@pytest.mark.parametrize(("name", "file_gib", "memory_gib"), [("14B-4", 3.1, 4.0), ("14B", 26.7, 17.5)])
def test_a_bf16_file_is_quantized_at_load_in_the_memory_that_the_plan_says(
    run_script: RunScript, tmp_path: Path, name: str, file_gib: float, memory_gib: float
) -> None:
    """Random weights, one step of 208x112x9 on the CPU; a few minutes, of the whole model ten."""
    for what, free, needed in (
        (f"on the disk of {tmp_path}", shutil.disk_usage(tmp_path).free, file_gib + 1),
        ("of memory", host_bytes() or 0, memory_gib),
    ):
        if free < needed * GIB:
            pytest.skip(f"{free / GIB:.1f} GiB are free {what}, and {needed:.1f} are needed")
    done = run_script(SCRIPT.with_name("measure_quantized_run.py"), str(tmp_path), name)
    (tmp_path / "wan_random_bf16.safetensors").unlink(missing_ok=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)  # noqa: T201
    assert found["saved"]
    assert found["file"] == pytest.approx(file_gib * GIB, rel=0.05)
    # Beside what is planned: the libraries that a run is the first to call.
    assert 0.9 * found["predicted"] < found["measured"] < found["predicted"] + GIB / 4
