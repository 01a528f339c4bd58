"""The kinds of accelerators: the only file that names a device type of torch and calls its module.

`_BACKENDS` has a row for each kind; the rest of the code reads the row of a device and never compares types. torch for
ROCm calls AMD cards cuda.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The properties of one kind of device in torch 2.6 and newer."""

    title: str
    is_gpu: bool = True
    float64: bool | None = True
    """whether it computes in float64; None: depends on the device"""
    float8: bool = True
    """whether it stores float8 tensors"""
    late_copies: bool = False
    """whether host copies overlap with computation, by streams, events and page-locked memory"""
    shares_host: bool = False
    """whether the device uses host memory as its own (unified memory)"""
    triton: bool = False
    """whether triton kernels run on it"""
    compiles: bool = True
    """whether torch.compile is offered"""
    fused_attention: bool = True
    """whether torch trains attention without storing a matrix of scores; `Abilities.fuses_attention` refines it"""
    packaged_attention: bool = False
    """whether attention packages such as flash_attn have kernels for it"""
    fused_optimizer: bool = False
    nccl: bool = False
    """whether ranks with a card each communicate over NCCL (RCCL)"""
    visible: str = ""
    """environment variable that selects the cards of a process; "" if unknown"""
    memory_history: bool = False
    """whether the allocator records its history for a memory snapshot"""
    full: str = ""
    """regular expression of out-of-memory messages, besides torch.OutOfMemoryError"""
    proven: bool = True
    """False if this pack was never run on such hardware"""


_BACKENDS = {
    "cuda": Backend(
        title="CUDA",
        late_copies=True,
        triton=True,
        packaged_attention=True,
        fused_optimizer=True,
        nccl=True,
        visible="CUDA_VISIBLE_DEVICES",
        memory_history=True,
        full=r"(CUDA|HIP) error: out of memory|_STATUS_ALLOC_FAILED|Error \[(CUDA|HIP)\]: out of memory",
    ),
    "xpu": Backend(
        title="Intel XPU",
        float64=None,
        triton=True,
        fused_attention=False,
        full=r"XPU out of memory|(UR|PI)_(RESULT_)?ERROR_OUT_OF_(DEVICE_MEMORY|RESOURCES)",
        proven=False,
    ),
    "mps": Backend(
        title="Apple MPS",
        float64=False,
        float8=False,
        shares_host=True,
        compiles=False,
        fused_attention=False,
        full=r"MPS backend out of memory",
        proven=False,
    ),
    "cpu": Backend(title="CPU", is_gpu=False, fused_optimizer=True),
}
_OTHER = Backend(title="", is_gpu=False)
"""the meta device, and device types without a row"""
_FULL = re.compile("|".join(backend.full for backend in _BACKENDS.values() if backend.full))
DEVICE_TYPES = tuple(_BACKENDS)


def backend_of(device: torch.device | str) -> Backend:
    """Returns the row of a device's kind."""
    return _BACKENDS.get(torch.device(device).type, _OTHER)


def is_gpu(device: torch.device | str) -> bool:
    """Returns whether a device is a GPU, of any vendor."""
    return backend_of(device).is_gpu


def gpu_count() -> int:
    """Returns the number of GPUs without opening one."""
    return _counted()[1]


def gpu_name(index: str) -> str:
    """Returns the name of GPU `index`, such as cuda:0, xpu:0 or mps:0. The GPU need not exist."""
    return f"{_counted()[0]}:{index}"


def gpu_names() -> tuple[str, ...]:
    """Returns the names of all GPUs: cuda:0, cuda:1 ..., or the same for xpu or mps."""
    kind, count = _counted()
    return tuple(f"{kind}:{index}" for index in range(count))


def default_device() -> torch.device:
    """Returns the first GPU, or the CPU."""
    return torch.device((*gpu_names(), "cpu")[0])


def planned_gpu(index: int) -> torch.device:
    """Returns cuda:`index`, for a plan that assumes cards this machine lacks."""
    return torch.device("cuda", index)


def is_here(device: torch.device) -> bool:
    """Returns whether this machine has a device; True for every device that is no GPU."""
    return not is_gpu(device) or f"{device.type}:{device.index or 0}" in gpu_names()


def _counted() -> tuple[str, int]:
    """Returns the device type and number of GPUs; ("cuda", 0) without one."""
    if count := torch.cuda.device_count():
        return "cuda", count
    if count := torch.xpu.device_count():
        return "xpu", count
    # bfloat16 requires macOS 14.
    if torch.backends.mps.is_available() and torch.backends.mps.is_macos_or_newer(14, 0):
        return "mps", 1
    return "cuda", 0


def has_float64(device: torch.device) -> bool:
    """Returns whether a device computes in float64. Apple GPUs and some Intel GPUs do not."""
    known = backend_of(device).float64
    return bool(getattr(properties(device), "has_fp64", False)) if known is None else known


def properties(device: torch.device) -> Any:
    """Returns torch's cached properties of a GPU: `name`, `total_memory` (bytes), and more for some kinds."""
    return _module(device).get_device_properties(device.index or 0)


def built_architectures(device: torch.device) -> list[str]:
    """Returns the NVIDIA architectures that this torch was built for, such as sm_90; [] for other GPUs."""
    return torch.cuda.get_arch_list() if device.type == "cuda" else []


def memory_of(device: torch.device) -> dict[str, int | None]:
    """Returns this process's bytes on a GPU: `now` (allocated), and the maxima `peak` (allocated) and `reserved` since
    the last `reset_peak`.

    Apple's allocator counts no maxima: there `peak` is None, and `reserved` is the present value.
    """
    module = _module(device)
    return {
        "now": module.memory_allocated(device),
        "peak": module.max_memory_allocated(device),
        "reserved": module.max_memory_reserved(device),
    }


def utilization_of(device: torch.device) -> int | None:
    """Returns the driver's GPU utilization in percent; None if the driver's package (pynvml, amdsmi) is missing or
    fails.
    """
    try:
        return _module(device).utilization(device)
    except Exception:  # each vendor's package raises errors of its own
        return None


def reset_peak(device: torch.device) -> None:
    """Resets the maxima of `memory_of` on a GPU to the present values."""
    _module(device).reset_peak_memory_stats(device)


def reserved_bytes(device: torch.device) -> int:
    """Returns the bytes that torch's allocator holds on a GPU, in use or cached."""
    return _module(device).memory_reserved(device)


def free_bytes(device: torch.device) -> int:
    """Returns the free bytes of a GPU as its driver reports them; opens a context on it."""
    return _module(device).mem_get_info(device)[0]


def synchronize(device: torch.device) -> None:
    """Waits for all work of a GPU; returns at once for other devices."""
    if is_gpu(device):
        _module(device).synchronize(device)


def empty_cache() -> None:
    """Returns unused reserved memory of this process to the driver, on all GPUs."""
    _module(torch.device(_counted()[0])).empty_cache()


def select(device: torch.device) -> None:
    """Makes a GPU the current one of this thread."""
    _module(device).set_device(device)


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context in which a GPU is the current one of this thread; an empty one for other devices."""
    return _module(device).device(device) if is_gpu(device) else nullcontext()


def memory_ran_out_on_gpu(text: str) -> bool:
    """Returns whether the text of an error says that the memory of a GPU is full."""
    return _FULL.search(text) is not None


def random_state(device: torch.device) -> Tensor | None:
    """Returns the state of a GPU's default generator; None for other devices."""
    return _module(device).get_rng_state(device) if is_gpu(device) else None


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Sets a GPU's default generator to what `random_state` returned."""
    _module(device).set_rng_state(state, device)


def seed_of(device: torch.device) -> int:
    """Returns the seed of the default generator of a device: cards that work at once have one each."""
    generators = getattr(_module(device), "default_generators", ()) if is_gpu(device) else ()
    return generators[device.index].initial_seed() if generators else torch.initial_seed()


def profiled() -> list[torch.profiler.ProfilerActivity]:
    """Returns what torch's profiler records here."""
    activities = torch.profiler.ProfilerActivity
    kind, count = _counted()
    own = getattr(activities, kind.upper(), None) if count else None
    return [activities.CPU, *([own] if own else [])]


def allocator() -> Any:
    """Returns torch's module of the allocator whose history is recorded; see `Backend.memory_history`."""
    return torch.cuda.memory


def _apple_properties(_: int) -> Any:
    name = getattr(torch.backends.mps, "get_name", None)  # from torch 2.9 on
    most = int(torch.mps.recommended_max_memory())
    return SimpleNamespace(name=str(name()) if name else "Apple GPU", total_memory=most)


def _apple_memory(_: torch.device) -> tuple[int, int]:
    most = int(torch.mps.recommended_max_memory())
    return max(most - torch.mps.driver_allocated_memory(), 0), most


def _set_apple_state(state: Tensor, _: torch.device) -> None:
    torch.mps.set_rng_state(state)


_APPLE = SimpleNamespace(
    get_device_properties=_apple_properties,
    memory_allocated=lambda _device: torch.mps.current_allocated_memory(),
    memory_reserved=lambda _device: torch.mps.driver_allocated_memory(),
    max_memory_allocated=lambda _device: None,
    max_memory_reserved=lambda _device: torch.mps.driver_allocated_memory(),
    mem_get_info=_apple_memory,
    reset_peak_memory_stats=lambda _device: None,
    set_device=lambda _device: None,
    device=lambda _device: nullcontext(),
    synchronize=lambda _device: torch.mps.synchronize(),
    empty_cache=lambda: torch.mps.empty_cache(),
    get_rng_state=lambda _device: torch.mps.get_rng_state(),
    set_rng_state=_set_apple_state,
)
"""torch.mps under the names that torch.cuda and torch.xpu share. It knows one GPU, and counts no peaks"""


def _module(device: torch.device) -> Any:
    # Not torch.accelerator: in torch 2.6 it has only `synchronize` and `device_count` of these functions.
    return _APPLE if device.type == "mps" else torch.get_device_module(device.type)
