"""Halves of one card: green contexts of the driver (CUDA 12.5), each of which owns some multiprocessors.

Kernels of a stream of such a context run on these alone; memory, power and copies are shared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from .case import Bench


def halves(bench: Bench) -> tuple[Sequence[Any], str]:
    """Returns a stream for each stage, and what they are."""
    if not bench.cuda:
        return (None, None), "two threads of a CPU"
    torch.zeros(1, device=bench.device)
    try:
        multiprocessors, handles = _green_streams()
        streams = [torch.cuda.ExternalStream(handle, bench.device) for handle in handles]
        for stream in streams:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(stream):
                begin.record()
                torch.ones(512, 512, device=bench.device).matmul(torch.ones(512, 512, device=bench.device))
                end.record()
            end.synchronize()
            begin.elapsed_time(end)
    except (OSError, RuntimeError, AttributeError) as error:
        streams = [torch.cuda.Stream(bench.device) for _ in range(2)]
        return streams, f"two streams of the complete card, as green contexts failed: {error}"[:300]
    return streams, f"green contexts of {multiprocessors[0]} and {multiprocessors[1]} multiprocessors"


class _Resource(ctypes.Structure):
    """CUdevResource of the driver, 144 bytes: its kind, padding, and for a kind 1 the number of multiprocessors."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("_padding", ctypes.c_ubyte * 92),
        ("count", ctypes.c_uint),
        ("_more", ctypes.c_ubyte * 44),
    )


def _green_streams() -> tuple[list[int], list[int]]:
    """Returns the multiprocessors and the streams of two halves of card 0. Raises RuntimeError with an error code."""
    driver, of_multiprocessors, non_blocking = ctypes.CDLL("libcuda.so.1"), 1, 1

    def call(name: str, *given: Any) -> None:
        if code := getattr(driver, name)(*given):
            raise RuntimeError(f"{name} returned {code}")

    device, complete, rest = ctypes.c_int(), _Resource(), _Resource()
    groups, halves = ctypes.c_uint(2), (_Resource * 2)()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetDevResource", device, ctypes.byref(complete), of_multiprocessors)
    fewest = ctypes.c_uint(complete.count // 2 // 8 * 8)  # they are given in eights
    call(
        "cuDevSmResourceSplitByCount",
        halves,
        ctypes.byref(groups),
        ctypes.byref(complete),
        ctypes.byref(rest),
        0,
        fewest,
    )
    if groups.value != 2:
        raise RuntimeError(f"the driver made {groups.value} groups of {fewest.value} multiprocessors")
    streams = list[int]()
    for half in halves:
        what, context, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevResourceGenerateDesc", ctypes.byref(what), ctypes.byref(half), 1)
        call("cuGreenCtxCreate", ctypes.byref(context), what, device, 1)
        call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, non_blocking, 0)
        streams.append(stream.value or 0)
    return [half.count for half in halves], streams
