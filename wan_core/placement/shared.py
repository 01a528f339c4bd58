"""Host memory shared by the processes of a run on one machine: one process writes it, the others map it. Linux only.

Each piece is an anonymous file (memfd): it has no name in any folder, only processes of the same user can open it, the
size of /dev/shm does not limit it, and the kernel frees it when the last process that maps it ends, even if killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..words import logger

if sys.platform == "linux":
    import fcntl

_log = logger(__name__)
_PATIENCE_S = 60.0
"""seconds to wait for a process that writes a piece, which takes less than one"""
_POLL_S = 0.005
"""seconds between two checks for a written piece"""


class OwnMemory:
    """Host memory for the frozen weights of the models of one process, built one after the other from one plan."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], Tensor] = {}
        self._locked: dict[int, Tensor] = {}
        """address of a piece -> the pinned piece"""

    def piece(
        self, name: str, size: int, write: Callable[[Tensor], None], holds: Callable[[Tensor], bool]
    ) -> Tensor | None:
        """Returns the piece without calling `holds`, because the same files and settings give the same bytes."""
        if (name, size) not in self._pieces:
            memory = self._pieces[name, size] = torch.empty(size, dtype=torch.uint8)
            write(memory)
        return self._pieces[name, size]

    def locked(self, memory: Tensor, lock: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns a piece pinned by `lock`, once in each process."""
        address = memory.data_ptr()
        if address not in self._locked:
            self._locked[address] = lock(memory)
        return self._locked[address]


class _Peer(NamedTuple):
    machine: str
    """equal for processes that can see each other's open files"""
    process: int
    door: int
    """descriptor of a file that this process has open"""
    label: str
    """name of that file, which nobody can guess"""


@dataclass
class SharedMemory:
    """Memory that this process shares with the other ranks of the machine, which request the same pieces."""

    ranks: tuple[int, ...]
    """all ranks that share it, this one included"""
    processes: tuple[int, ...]
    """process ids of the others"""
    door: int
    """descriptor of a file that all these processes have open; a process locks it before it begins a piece"""
    model: str = ""
    """short name of the model of the pieces"""

    def of(self, model: str) -> SharedMemory:
        """Returns the memory for the pieces of one model. `model`: short text that identifies its weights."""
        return replace(self, model=model)

    def piece(
        self, name: str, size: int, write: Callable[[Tensor], None], holds: Callable[[Tensor], bool]
    ) -> Tensor | None:
        """Returns the read-only piece `name`, (size,) uint8; None if it cannot be shared.

        The first process that requests it calls `write(memory)`; the others wait for that, and call `holds(memory)` to
        check the bytes. Processes may request it at different times, or not at all.
        """
        label = f"wan_trainer {self.model} {name}"
        try:
            file, is_new = self._found_or_begun(label, size)
            if file is None:
                return None
            try:
                # The mapping keeps the file's memory alive after `close`.
                memory = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
                if is_new:
                    write(memory)
                    _seal(file)
                elif not holds(memory):
                    _log.warning(
                        "%s: the bytes of another process of this run differ, so this process keeps its own", name
                    )
                    return None
                return memory
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            _log.warning("%s is in memory of this process only: %s", name, error)
            return None

    def locked(self, memory: Tensor, lock: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns a piece pinned by `lock`."""
        return lock(memory)

    def _found_or_begun(self, label: str, size: int) -> tuple[int | None, bool]:
        """Returns the open file of a piece, and whether this process must write it; None after the time limit."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.processes:
            with _locked(self.door) as may_begin:
                if may_begin:
                    if (found := self._find(label, size)) is None:
                        return _new_file(label, size), True
                    if found:
                        return found, False
            if time.monotonic() > deadline:
                _log.warning("Another process of this run did not respond, so this one stops sharing memory.")
                self.processes = ()
            time.sleep(_POLL_S)
        return None, False

    def _find(self, label: str, size: int) -> int | None:
        """Returns the open file of another rank's piece; 0 while it is being written, None if no rank has it."""
        written = True
        for process in self.processes:
            for link in _open_files(process):
                with contextlib.suppress(OSError):  # the other process may close it at any time
                    if os.readlink(link) != _link_to(label):
                        continue
                    file = os.open(link, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
                    if _is_sealed(file) and os.fstat(file).st_size == size:
                        return file
                    written &= _is_sealed(file)
                    os.close(file)
        return None if written else 0


Shared = OwnMemory | SharedMemory
"""host memory for frozen weights, shared by several models"""


def can_share() -> bool:
    """Returns whether this platform can share memory between processes."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def share_memory(rank: int, gather: Callable[[Any], list[Any]]) -> SharedMemory | None:
    """Returns the memory shared with the other ranks of this machine; None for a single rank, or if a rank cannot
    share.

    Every rank calls it at the same time. `gather`: `Group.gather`.
    """
    me = _this_process()
    said: list[_Peer | None] = [None if one is None else _Peer(*one) for one in gather(me and tuple(me))]
    peers = {
        other: one for other, one in enumerate(said) if one is not None and me is not None and one.machine == me.machine
    }
    doors = [_open_door(one) for one in peers.values()]
    ready = gather(bool(doors) and all(door is not None for door in doors))
    for door in [*doors[1:], None if me is None else me.door]:
        if door is not None:
            os.close(door)
    if doors and doors[0] is not None:
        if len(peers) > 1 and all(ready[other] for other in peers):
            others = tuple(one.process for other, one in peers.items() if other != rank)
            return SharedMemory(ranks=tuple(peers), processes=others, door=doors[0])
        os.close(doors[0])
    return None


def _this_process() -> _Peer | None:
    """Returns the data of this process, with a new door; None if the platform cannot share memory."""
    if not can_share():
        return None
    label = f"wan_trainer door {secrets.token_hex(16)}"
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        names = os.stat("/proc/self/ns/pid").st_ino  # a container has process ids of its own
        return _Peer(f"{machine} {names}", os.getpid(), _new_file(label, 1), label)
    except OSError as error:
        _log.info("memory is not shared with other processes: %s", error)
        return None


def _open_door(peer: _Peer) -> int | None:
    """Returns the door of another process, opened by this one; None if it cannot."""
    link = f"/proc/{peer.process}/fd/{peer.door}"
    try:
        return (
            os.open(link, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
            if os.readlink(link) == _link_to(peer.label)
            else None
        )
    except OSError as error:
        _log.info("memory is not shared with process %s: %s", peer.process, error)
        return None


def _link_to(label: str) -> str:
    """Returns the name that Linux shows for an anonymous file."""
    return f"/memfd:{label} (deleted)"


def _open_files(process: int) -> list[str]:
    folder = f"/proc/{process}/fd"
    with contextlib.suppress(OSError):
        return [f"{folder}/{number}" for number in os.listdir(folder)]
    return []


def _new_file(label: str, size: int) -> int:
    """Returns the descriptor of a new anonymous file of `size` bytes. Raises OSError if memory is short.

    The memory is allocated here, because a later write without memory would kill the process (SIGBUS).
    """
    if sys.platform != "linux":
        raise OSError("This system has no anonymous files.")
    file = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, size)
    except BaseException:
        os.close(file)
        raise
    return file


def _seal(file: int) -> None:
    """Mark a piece as written. It can no longer be truncated, which would kill every process that maps it."""
    if sys.platform == "linux":
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _is_sealed(file: int) -> bool:
    return sys.platform == "linux" and bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL)


@contextlib.contextmanager
def _locked(door: int) -> Iterator[bool]:
    """Lock the door without waiting; yields whether this process has the lock. The system unlocks it for a dead
    process.
    """
    if sys.platform != "linux":
        yield False
        return
    try:
        fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(door, fcntl.LOCK_UN)
