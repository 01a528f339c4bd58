"""Memory that processes of one machine share: written once, found by the others, and gone with the last of them."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.late_copies import LateCopies
from wan_core.placement import SharedMemory, can_share, share_memory, shared
from wan_core.placement.copies import Copies, CudaCopies
from wan_core.placement.streaming import Ring

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is shared on Linux alone")
SIZE = 1 << 20
SEEN = torch.arange(SIZE, dtype=torch.int32).to(torch.uint8)


class Other:
    """A process forked from this one, which does what it is told and says what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._said, saying = os.pipe()
        self._hears, self._told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self._said)
                os.close(self._told)
                answer = work()
                os.write(saying, repr(answer).encode() + b"\n")
                os.read(self._hears, 1)  # holds what it has until it is told to end
                code = 0
            finally:
                os._exit(code)
        os.close(saying)
        os.close(self._hears)

    def answer(self) -> str:
        with os.fdopen(self._said) as said:
            return said.readline().strip()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def end(self) -> None:
        os.close(self._told)
        assert os.waitpid(self.pid, 0)[1] == 0


def write(memory: Tensor) -> None:
    memory.copy_(SEEN)


def holds(memory: Tensor) -> bool:
    return torch.equal(memory, SEEN)


def asks(memory: SharedMemory, write: Callable[[Tensor], None], holds: Callable[[Tensor], Any]) -> bool:
    """Whether there is a piece, which this process holds from now on."""
    HELD.append(memory.piece("blocks.1", SIZE, write, holds))
    return HELD[-1] is not None and torch.equal(HELD[-1], SEEN)


HELD: list[Tensor | None] = []


def nobody(_memory: Tensor) -> Any:
    raise AssertionError("it was there, or was not")


@pytest.fixture
def door() -> int:
    found = shared._new_file("wan_trainer door", 16)
    yield found
    os.close(found)


def among(door: int, *others: int) -> SharedMemory:
    """As `share_memory` returns it: with a door that this process opened for itself."""
    own = os.open(f"/proc/self/fd/{door}", os.O_RDWR)
    return SharedMemory(ranks=(0, 1), processes=others, door=own).of("model")


def pieces(process: int | str = "self") -> list[str]:
    """The shared files that a process has open."""
    links = [
        os.readlink(f"/proc/{process}/fd/{number}")
        for number in os.listdir(f"/proc/{process}/fd")
        if os.path.lexists(f"/proc/{process}/fd/{number}")
    ]
    return [link for link in links if "memfd:wan_trainer model" in link]


def proportional(process: int | str) -> int:
    """Bytes of shared pieces that count for a process, each page divided by those that map it."""
    found, inside = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = "memfd:wan_trainer" in line
        elif inside and line.startswith("Pss:"):
            found += int(line.split()[1]) << 10
    return found


def test_what_one_process_wrote_the_other_maps_and_it_counts_once(door: int) -> None:
    ours = among(door, 0).piece("blocks.1", SIZE, write, nobody)
    parent = os.getpid()
    other = Other(lambda: asks(among(door, parent), nobody, holds))
    assert other.answer() == "True"
    assert ours is not None
    assert proportional("self") == proportional(other.pid) == SIZE // 2
    other.end()
    assert proportional("self") == SIZE
    del ours
    gc.collect()
    assert not pieces(), "the file ends with what is mapped of it"


def test_a_piece_outlives_the_process_that_wrote_it_and_is_found_with_the_one_that_mapped_it(door: int) -> None:
    writer = Other(lambda: asks(among(door, 0), write, nobody))
    assert writer.answer() == "True"
    ours = among(door, writer.pid).piece("blocks.1", SIZE, nobody, holds)
    writer.kill()
    parent = os.getpid()
    third = Other(lambda: asks(among(door, writer.pid, parent), nobody, holds))
    assert third.answer() == "True"
    assert ours is not None
    assert holds(ours)
    third.end()


def test_another_one_writes_where_the_first_dies_in_the_middle(door: int) -> None:
    def half(memory: Tensor) -> None:
        memory[: SIZE // 2] = SEEN[: SIZE // 2]
        os.write(saying, b"x")
        time.sleep(60)

    reading, saying = os.pipe()
    writer = Other(lambda: among(door, 0).piece("blocks.1", SIZE, half, nobody))
    os.read(reading, 1)
    waiting = Other(lambda: asks(among(door, writer.pid), write, nobody))
    time.sleep(0.2)
    writer.kill()
    assert waiting.answer() == "True"
    waiting.end()
    os.close(reading)
    os.close(saying)


def test_one_that_writes_for_ever_is_waited_for_once(door: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, saying = os.pipe()

    def stuck(_memory: Tensor) -> None:
        os.write(saying, b"x")
        time.sleep(60)

    writer = Other(lambda: among(door, 0).piece("blocks.1", SIZE, stuck, nobody))
    os.read(reading, 1)
    monkeypatch.setattr(shared, "_PATIENCE_S", 0.2)
    ours = among(door, writer.pid)
    began = time.monotonic()
    assert ours.piece("blocks.1", SIZE, nobody, nobody) is None
    assert 0.2 < time.monotonic() - began < 5
    assert ours.piece("blocks.2", SIZE, nobody, nobody) is None, "and not again for each block"
    writer.kill()
    os.close(reading)
    os.close(saying)


def test_bytes_that_differ_stay_private(door: int, caplog: pytest.LogCaptureFixture) -> None:
    ours = among(door, 0).piece("blocks.1", SIZE, write, nobody)
    parent = os.getpid()
    other = Other(lambda: among(door, parent).piece("blocks.1", SIZE, nobody, lambda memory: memory[7] == 8))
    assert other.answer() == "None"
    other.end()
    assert ours is not None


def test_a_piece_of_another_model_or_size_is_another_piece(door: int) -> None:
    ours = among(door, 0).piece("blocks.1", SIZE, write, nobody)
    parent = os.getpid()

    def ask() -> list[bool]:
        here = among(door, parent)
        asked = (here.of("another").piece("blocks.1", SIZE, write, nobody), here.piece("blocks.1", 4096, zeros, nobody))
        return [one is not None for one in asked]

    other = Other(ask)
    assert other.answer() == "[True, True]"
    other.end()
    assert ours is not None


def zeros(memory: Tensor) -> None:
    memory.zero_()


def test_memory_that_the_system_does_not_give_leaves_each_process_its_own(
    door: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert among(door, 0).piece("blocks.1", SIZE, nobody, nobody) is None
    assert not pieces()


@pytest.mark.parametrize("lacks", ["nothing", "memfd", "another machine", "another file", "names of files"])
def test_all_processes_of_a_machine_share_or_none(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them in one process, which hear each other in turns."""
    if lacks == "memfd":
        monkeypatch.delattr(os, "memfd_create")
        assert not can_share()
    reading, saying = os.pipe()

    def introduced() -> None:
        me = shared._this_process()
        os.write(saying, repr(me and tuple(me)).encode() + b"\n")

    other = Other(introduced)
    with os.fdopen(reading) as said:
        theirs = ast.literal_eval(said.readline())
    if lacks == "another machine":
        theirs = ("elsewhere", *theirs[1:])
    elif lacks == "another file":
        theirs = (*theirs[:3], "wan_trainer door 0123456789abcdef")
    elif lacks == "names of files":  # a system that calls them otherwise: pieces would be found by nobody
        monkeypatch.setattr(os, "readlink", lambda _link: "memfd:wan_trainer door")

    def gather(mine: Any) -> list[Any]:
        return [mine, theirs] if not isinstance(mine, bool) else [mine, True]

    before = len(os.listdir("/proc/self/fd"))
    found = share_memory(0, gather)
    if lacks == "nothing":
        assert found is not None
        assert (found.ranks, found.processes) == ((0, 1), (other.pid,))
        os.close(found.door)
    else:
        assert found is None
    assert len(os.listdir("/proc/self/fd")) == before, "no file is left open"
    other.answer()
    other.end()
    os.close(saying)


def new_block() -> nn.Module:
    torch.manual_seed(0)
    block = nn.ModuleDict({"norm": nn.LayerNorm(64), "linear": nn.Linear(64, 256)})
    return block.requires_grad_(False)


def rested(door: int, *others: int) -> nn.Module:
    block = new_block()
    Ring(torch.device("cpu"), Copies(), ["blocks.0"], among(door, *others)).offload_block("blocks.0", block)
    return block


def test_a_norm_that_previews_change_in_place_is_no_part_of_what_is_shared(door: int) -> None:
    ours = rested(door, 0)
    parent = os.getpid()

    def change() -> tuple[bool, ...]:
        theirs = rested(door, parent)
        same = [
            torch.equal(one, other) for one, other in zip(theirs.parameters(), new_block().parameters(), strict=True)
        ]
        theirs.get_parameter("norm.weight").fill_(7)
        return (*same, len(pieces()) == 2)  # that of its parent, which a fork keeps, and its own

    other = Other(change)
    assert other.answer() == str((True, True, True, True, True))
    assert torch.equal(ours.get_parameter("norm.weight"), torch.ones(64))
    other.end()


def test_both_parts_of_a_resting_block_travel_to_the_device_and_are_waited_for(door: int) -> None:
    block, copies = new_block(), LateCopies()
    ring = Ring(torch.device("cpu"), copies, ["blocks.0"], among(door, 0))
    ring.offload_block("blocks.0", block)
    with ring.run("blocks.0", again=False, returns=False):
        for one, other in zip(block.parameters(), new_block().parameters(), strict=True):
            assert torch.equal(one, other)
    assert len(copies.begun) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_a_mapping_is_page_locked_and_copied_from(door: int) -> None:
    ours = among(door, 0).piece("blocks.1", SIZE, write, nobody)
    assert ours is not None
    copies = CudaCopies(torch.device("cuda", 0))
    locked = copies.lock(ours)
    assert locked is not None
    assert locked.is_pinned()
    target = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    copies.wait(copies.start(locked, target))
    assert torch.equal(target.cpu(), SEEN)
    del locked
    gc.collect()
    assert not ours.is_pinned()
