"""Model offload: moves the weights of a complete model to host memory while another model uses its devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ..accelerator import empty_cache, memory_ran_out_on_gpu
from ..errors import RESUME, OutOfMemory, failure
from ..model import models_of
from ..words import first_line
from .offload import BlockOffload

RETURN_WAITS_S = (0.0, 2.0, 8.0)
"""seconds before each attempt to load a model again; another program may still have to free memory"""
HOST_RESERVE = 2 << 30
"""bytes of host memory that offloaded weights leave free"""
_HOST = torch.device("cpu")


def device_memory_ran_out(error: BaseException) -> bool:
    """Returns whether an error means that the memory of a GPU is full.

    torch has a type for errors of its allocator. Allocations of the driver and its libraries (handles, kernels, events)
    fail with a plain RuntimeError, from torch 2.8 on with AcceleratorError.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and memory_ran_out_on_gpu(str(error))


@contextmanager
def offloaded_model(model: nn.Module, *, trained: bool = False) -> Iterator[None]:
    """Inside, no frozen parameter or buffer of `model` lies on an accelerator; afterwards each is where it was.

    `trained`: the trained parameters are offloaded too, and the pinned memory of kept activations is freed, since
    another model trains meanwhile. Buffers of swapped blocks are freed either way; the next pass allocates new ones.
    Raises OutOfMemory if the weights do not fit back; weights that did not fit stay in host memory.
    """
    places = [place for one in models_of(model) for place in _places(one, trained)]
    for one in models_of(model):
        if isinstance(offload := getattr(one, "offload", None), BlockOffload):
            offload.release(for_long=trained)
    try:
        for place in places:
            place.put(_HOST)
        empty_cache()
        yield
    finally:
        _load_again(places)


def bytes_to_offload(model: nn.Module) -> int:
    """Returns the bytes of a model on accelerators: the host memory that offloading it takes."""
    values = (value for one in models_of(model) for value in (*one.parameters(), *one.buffers()))
    return sum(value.nbytes for value in values if value.device != _HOST)


@dataclass(frozen=True)
class _Place:
    module: nn.Module
    name: str
    home: torch.device

    def put(self, device: torch.device) -> None:
        value = getattr(self.module, self.name)
        if value.device == device:
            return
        moved = value.detach().to(device)
        if value.requires_grad:
            value.data = moved  # `data` is replaced and not the parameter, because the optimizer refers to it.
            return
        is_weight = isinstance(value, nn.Parameter)
        setattr(self.module, self.name, nn.Parameter(moved, requires_grad=False) if is_weight else moved)


def _places(model: nn.Module, trained: bool) -> Iterator[_Place]:
    for module in model.modules():
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        for name, value in tensors:
            if hasattr(value, "device_mesh"):  # Other ranks gather this rank's part of a sharded weight.
                continue
            if value.device != _HOST and (trained or not value.requires_grad):
                yield _Place(module, name, value.device)


def _load_again(places: list[_Place]) -> None:
    full: RuntimeError | None = None
    for wait_s in RETURN_WAITS_S:
        time.sleep(wait_s)
        empty_cache()
        try:
            for place in places:
                place.put(place.home)
            return
        except RuntimeError as error:
            if not device_memory_ran_out(error):
                raise
            full = error
    assert full is not None
    devices = ", ".join(dict.fromkeys(str(place.home) for place in places))
    what = (
        f"The model was offloaded for a preview and does not fit again on {devices}, because another "
        f"program has taken the memory ({first_line(full)}). Close what else uses the GPU, or render "
        "smaller or no previews."
    )
    raise OutOfMemory(failure(what, closing=RESUME)) from full
