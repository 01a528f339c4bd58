"""Checks of this machine: system, libraries, devices, attention kernels, pinned memory and codecs."""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

from .. import __version__
from ..abilities import abilities_of
from ..accelerator import backend_of, default_device, gpu_names, is_gpu, synchronize
from ..errors import PlacementError
from ..kernels import sdpa_choice
from ..packages import version_of
from ..placement.host import host_bytes, host_total
from ..precision import torch_dtype
from ..video import VideoProcess

_GIB = 1 << 30
_NEEDED = ("torch", "numpy", "safetensors", "av", "pillow", "psutil")
_OPTIONAL = (
    *("gguf", "zstandard", "tensorboard", "bitsandbytes", "torchao", "pytorch-optimizer", "peft"),
    *("google-crc32c", "triton", "xformers", "flash-attn"),
)
_SIDE, _FRAMES = 64, 9


class Unneeded(Exception):  # noqa: N818  not an error
    """A check does not apply to this machine."""


def device() -> torch.device:
    """Returns the default training device: the first CUDA device, else the CPU."""
    return default_device()


def system(_place: Path) -> str:
    """Returns the versions of pack, Python and system, and the host memory."""
    free, total = host_bytes(), host_total()
    memory = "" if free is None or total is None else f", {free / _GIB:.1f} of {total / _GIB:.1f} GiB RAM free"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"wan_core {__version__}, Python {python}, {platform.system()} {platform.machine()}{memory}"


def libraries(_place: Path) -> str:
    """Returns the versions of required libraries; raises if one cannot be imported."""
    from ..load import import_libraries

    import_libraries()
    return ", ".join(f"{name} {version_of(name) or 'absent'}" for name in _NEEDED)


def optional_packages(_place: Path) -> str:
    """Returns the installed optional packages."""
    found = {name: version_of(name) for name in _OPTIONAL}
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    absent = ", ".join(name for name, version in found.items() if not version)
    return "; ".join(part for part in (there, f"absent: {absent}" if absent else "") if part)


def compute(_place: Path) -> str:
    """Returns the devices and their abilities, after a product in the compute dtype and a check of 8-bit floats.

    PlacementError for a card for which this torch has no kernels.
    """
    names: list[str] = []
    for name in gpu_names():
        card = abilities_of(name)
        if refusal := card.refusal():
            raise PlacementError(refusal)
        names.append(f"{card.name} {card.memory / _GIB:.1f} GiB ({_numbers_on(name)}). {card.sentence()}")
    if not names:
        names.append(
            f"no CUDA device: the CPU trains ({_numbers_on('cpu')}). {abilities_of('cpu').sentence()}".strip(" .")
        )
    return f"torch {torch.__version__}, " + "; ".join(names)


def _numbers_on(where: str) -> str:
    name = abilities_of(where).compute
    square = torch.ones(64, 64, device=where, dtype=torch_dtype(name))
    if float((square @ square).float().sum()) != 64.0**3:
        raise ArithmeticError(f"a product in {name} on {where} is wrong")
    try:
        stored = square.to(torch.float8_e4m3fn).to(square.dtype)
    except (RuntimeError, AttributeError, TypeError) as error:  # TypeError on Apple
        return f"{name}, no fp8: {type(error).__name__}"
    return f"{name}, fp8 storage" if bool((stored == square).all()) else f"{name}, fp8 storage is wrong"


def attention(_place: Path) -> str:
    """Returns the attention kernel, after a forward and a backward pass."""
    where = device()
    dtype = torch_dtype(abilities_of(where).compute) if is_gpu(where) else torch.float32
    parts = [torch.randn(1, 2, 256, 128, device=where, dtype=dtype, requires_grad=True) for _ in range(3)]
    query, key, value = parts
    torch.nn.functional.scaled_dot_product_attention(query, key, value).float().square().mean().backward()
    if not all(part.grad is not None and bool(part.grad.isfinite().all()) for part in parts):
        raise ArithmeticError(f"gradients of attention on {where} are not finite")
    kernel = sdpa_choice(device=where, dtype=dtype, head_dim=128) or "chosen by torch"
    return f"{kernel} on {where.type}, {str(dtype).removeprefix('torch.')}"


def pinned_memory(_place: Path) -> str:
    """Returns the speed of copies from pinned memory, on which block swap depends."""
    if not backend_of(device()).late_copies:
        raise Unneeded("no CUDA device, so the transfer was not tested")
    size = 64 << 20
    held = torch.empty(size, dtype=torch.uint8).pin_memory()
    there = torch.empty(size, dtype=torch.uint8, device=device())
    there.copy_(held, non_blocking=True)
    synchronize(there.device)
    began = time.monotonic()
    for _ in range(8):
        there.copy_(held, non_blocking=True)
    synchronize(there.device)
    return f"{8 * size / (time.monotonic() - began) / _GIB:.1f} GiB/s to the GPU"


def media(place: Path) -> str:
    """Returns the result of writing and reading a clip in a child process."""
    frames = np.zeros((_FRAMES, _SIDE, _SIDE, 3), np.uint8)
    frames[:, :, : _SIDE // 2] = 200
    file = place / "clip.mp4"
    with VideoProcess() as video:
        video.write(file, frames, 16.0)
        read = video.read(file, fps=16.0, num_frames=_FRAMES, width=_SIDE, height=_SIDE)
    off = int(np.abs(read.astype(int) - frames).mean())
    if read.shape != frames.shape or off > 8:
        raise ArithmeticError(f"a clip came back as {read.shape} and {off} levels off")
    return f"H.264 written and read in a process of its own, {_FRAMES} frames"
