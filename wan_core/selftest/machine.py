"""Checks of this machine: system, libraries, devices and codecs."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np
import torch

from .. import __version__
from ..abilities import abilities_of
from ..accelerator import gpu_names
from ..errors import PlacementError
from ..packages import version_of
from ..placement.host import host_bytes, host_total
from ..precision import torch_dtype
from ..video import VideoProcess

_GIB = 1 << 30
_LIBRARIES = (
    *("torch", "numpy", "safetensors", "av", "pillow", "psutil", "gguf", "zstandard", "tensorboard", "bitsandbytes"),
    *("torchao", "pytorch-optimizer", "peft", "google-crc32c", "triton", "xformers", "flash-attn"),
)
_SIDE, _FRAMES = 64, 9


def system(_place: Path) -> str:
    """Returns the versions of pack, Python and system, and the host memory."""
    free, total = host_bytes(), host_total()
    memory = "" if free is None or total is None else f", {free / _GIB:.1f} of {total / _GIB:.1f} GiB RAM free"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"wan_core {__version__}, Python {python}, {platform.system()} {platform.machine()}{memory}"


def libraries(_place: Path) -> str:
    """Returns the versions of libraries and optional packages; raises if a required library cannot be imported."""
    from ..load import import_libraries

    import_libraries()
    found = {name: version_of(name) for name in _LIBRARIES}
    there = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    absent = ", ".join(name for name, version in found.items() if not version)
    return f"{there}; absent: {absent}" if absent else there


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
