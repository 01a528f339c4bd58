"""`sim:0` ... `sim:3`: devices without hardware, on which a tensor forgotten on the wrong one is an error. And `cuda:0`
... `cuda:3` on a torch built without CUDA, for what torch does with CUDA tensors only (`.data =` from and to the CPU).

Works with fake tensors only (`FakeTensorMode(allow_non_fake_inputs=True)`): forward, backward, checkpointing and
optimizers of full-size models run without memory. Changes the process for good, so use it in a process of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

SOURCE = Path(__file__).with_suffix(".cpp")
BUILDS = Path(__file__).parents[2] / ".cache" / "sim_device"


def missing() -> str:
    """Says what this machine lacks for simulated devices; '' when they are to be had."""
    if not _compiler():
        return "no C++ compiler (g++ or c++) for the simulated devices"
    if not hasattr(torch._C, "_acc"):
        return f"torch {torch.__version__} takes no device that is written in Python (torch._C._acc)"
    return ""


def register() -> None:
    """Make `sim` a device type of this process."""
    torch.utils.rename_privateuse1_backend("sim")
    torch.utils.generate_methods_for_privateuse1_backend()
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 4,
        current_device=lambda: 0,
        set_device=lambda _device: None,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _seed: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
        get_rng_state=lambda _device=0: torch.zeros(8, dtype=torch.uint8),
        set_rng_state=lambda _state, _device=0: None,
        synchronize=lambda _device=None: None,
    )
    torch._register_device_module("sim", module)

    class Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def is_built(self) -> bool:
            return True

        def has_primary_context(self, _index: int) -> bool:
            return True

    hooks = Hooks()
    torch._C._acc.register_python_privateuseone_hook(hooks)
    torch._sim_hooks = hooks  # kept alive for the life of the process
    ctypes.CDLL(str(_build("PrivateUse1")))


def register_cuda() -> None:
    """Let fake tensors of this process lie on `cuda`; only for a torch without CUDA of its own."""
    assert torch.version.cuda is None, "this torch has real CUDA devices"
    ctypes.CDLL(str(_build("CUDA")))


def _compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def _build(device_type: str) -> Path:
    """Returns the library, built where this source and torch have none yet."""
    include = Path(torch.__file__).parent / "include"
    library = Path(torch.__file__).parent / "lib"
    made_of = f"{torch.__version__} {library} {device_type}".encode() + SOURCE.read_bytes()
    kept = BUILDS / f"{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if kept.exists():
        return kept
    target = Path(tempfile.mkdtemp()) / "sim_device.so"
    subprocess.run(
        [
            str(_compiler()), "-std=c++20", "-shared", "-fPIC", f"-DSIM_TYPE={device_type}", f"-I{include}",
            str(SOURCE), f"-L{library}", "-lc10", f"-Wl,-rpath,{library}", "-o", str(target),
        ],
        check=True,
    )  # fmt: skip
    try:
        BUILDS.mkdir(parents=True, exist_ok=True)
        whole = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(target, whole)
        os.replace(whole, kept)
    except OSError:  # a checkout that cannot be written to builds each time
        return target
    return kept
