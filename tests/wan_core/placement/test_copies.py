"""The file that knows CUDA, against a stand-in that writes down what it is told: order is all it is about."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wan_core.placement.copies import Copies, CudaCopies, copies_of

GPU = torch.device("cuda", 1)


class Cuda:
    """Streams and a runtime that do nothing."""

    def __init__(self, refuses: bool = False) -> None:
        self.told: list[Any] = []
        self.names = iter(("out", "in"))
        self.current, self.refuses = "compute", refuses
        self.locked: dict[int, int] = {}

    def new_stream(self, device: torch.device) -> SimpleNamespace:
        name = next(self.names)
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.told.append((name, "waits for", other.name)),
            record_event=lambda: f"event of {name}",
        )

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        assert device == GPU
        return SimpleNamespace(name="compute", wait_event=lambda event: self.told.append(("compute", "waits", event)))

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        self.current = stream.name
        yield
        self.current = "compute"

    def lock(self, pointer: int, size: int, flags: int) -> int:
        if not self.refuses:
            self.locked[pointer] = size
        return int(self.refuses)

    def tensor(self, *, on_gpu: bool) -> Any:
        def copy(source: Any, *, non_blocking: bool) -> None:
            self.told.append((self.current, "copies", non_blocking))

        return SimpleNamespace(is_cuda=on_gpu, copy_=copy)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    runtime = SimpleNamespace(cudaHostRegister=made.lock, cudaHostUnregister=made.locked.pop)
    changes = {
        "Stream": made.new_stream,
        "current_stream": made.current_stream,
        "stream": made.stream,
        "device": lambda device: nullcontext(),
        "cudart": lambda: runtime,
        "synchronize": lambda device: made.told.append(("host", "waits for", device)),
    }
    for name, value in changes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr("wan_core.placement.copies.host_bytes", lambda: 8 << 30)
    return made


@pytest.mark.parametrize(("on_gpu", "stream"), [(True, "in"), (False, "out")])
def test_a_copy_waits_for_what_was_computed_before_it_and_compute_for_the_copy(
    cuda: Cuda, on_gpu: bool, stream: str
) -> None:
    copies = copies_of(GPU)
    copy = copies.start(cuda.tensor(on_gpu=not on_gpu), cuda.tensor(on_gpu=on_gpu))
    copies.wait(copy)
    assert cuda.told == [
        (stream, "waits for", "compute"),
        (stream, "copies", True),
        ("compute", "waits", f"event of {stream}"),
    ]


def test_host_memory_is_locked_to_the_byte_while_somebody_holds_it(cuda: Cuda) -> None:
    memory = CudaCopies(GPU).host_memory(1001)
    assert memory is not None
    assert cuda.locked == {memory.data_ptr(): 1001}
    del memory
    gc.collect()
    assert not cuda.locked
    assert cuda.told == [("host", "waits for", GPU)], "a copy that is under way still needs it"


def test_memory_stays_locked_while_only_a_piece_of_it_is_held(cuda: Cuda) -> None:
    """As an optimizer in host memory holds it: seen on an H200, where it was unlocked before the first step."""
    memory = CudaCopies(GPU).host_memory(1024)
    assert memory is not None
    pointer, pieces = memory.data_ptr(), list(memory.view(torch.float32).split([64, 192]))
    del memory, pieces[0]
    gc.collect()
    assert cuda.locked == {pointer: 1024}
    weight = torch.nn.Parameter(torch.zeros(192))
    weight.data = pieces.pop()
    gc.collect()
    assert cuda.locked == {pointer: 1024}
    del weight
    gc.collect()
    assert not cuda.locked


@pytest.mark.parametrize(("free", "given"), [(2 << 30, True), ((2 << 30) - 1, False)])
def test_memory_that_was_written_already_is_locked_where_it_lies(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, free: int, given: bool
) -> None:
    """It is taken, so it counts no more; what is left to others still does."""
    monkeypatch.setattr("wan_core.placement.copies.host_bytes", lambda: free)
    memory = torch.zeros(1001, dtype=torch.uint8)
    locked = CudaCopies(GPU).lock(memory)
    assert cuda.locked == ({memory.data_ptr(): 1001} if given else {})
    assert (locked is not memory) == given
    del locked
    gc.collect()
    assert not cuda.locked


def test_memory_that_the_system_refuses_to_lock_is_pageable_and_that_is_said_once(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[torch.device] = []
    monkeypatch.setattr("wan_core.placement.copies._forget_error", forgotten.append)
    copies = CudaCopies(GPU)
    before, written = copies.host_memory(3 << 29), torch.zeros(1001, dtype=torch.uint8)
    cuda.refuses = True
    memory = copies.host_memory(1001)
    assert memory is not None
    assert memory.shape == (1001,)
    assert copies.lock(written) is written
    assert forgotten == [GPU, GPU]
    assert before is not None
    assert cuda.locked == {before.data_ptr(): 3 << 29}
    (said,) = copies.remarks.values()
    assert said.startswith("The system page-locked 1.5 GiB of host memory and refuses more")


@pytest.mark.parametrize(("free", "given"), [((2 << 30) + 1001, True), ((2 << 30) + 1000, False), (None, True)])
def test_two_gibibytes_are_left_to_others(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, free: int | None, given: bool
) -> None:
    monkeypatch.setattr("wan_core.placement.copies.host_bytes", lambda: free)
    assert (CudaCopies(GPU).host_memory(1001) is not None) == given


def test_other_devices_copy_at_once() -> None:
    copies = copies_of(torch.device("cpu"))
    assert isinstance(copies, Copies)
    target = copies.host_memory(4)
    assert target is not None
    copies.wait(copies.start(torch.arange(4, dtype=torch.uint8), target))
    assert target.tolist() == [0, 1, 2, 3]
