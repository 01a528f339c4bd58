"""Host memory that the processes of a run share on one machine: one writes it, the others map it. Linux only.

Each piece is an anonymous file (memfd). It has no name in any folder, only processes of the same user can open it, the
size of /dev/shm does not bound it, and the kernel ends it with the last process that maps it, however that one ends.
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
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..words import logger

_log = logger(__name__)
_PATIENCE_S = 60.0
"""how long one that writes a piece is waited for: it takes less than a second"""
_LOOKS_S = 0.005
"""seconds between two looks whether it has done so"""
_TOKEN_BYTES = 16
_DOOR = "wan_trainer door"


class Shared(Protocol):
    """Host memory for frozen weights that several models have together."""

    def piece(
        self, name: str, size: int, write: Callable[[Tensor], None], holds: Callable[[Tensor], bool]
    ) -> Tensor | None:
        """Returns the piece called `name`, (size,) uint8, which nobody may change; None where it cannot be shared.

        The first model that needs it writes it. The others check whether it `holds` what they would have written.
        """
        ...

    def locked(self, memory: Tensor, lock: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns a piece as `lock` returns it, page-locked once in this process where the system locks it."""
        ...


class OwnMemory:
    """`Shared` of models that one process holds, built one after the other from one plan."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], Tensor] = {}
        self._locked: dict[int, Tensor] = {}
        """by address of the piece"""

    def piece(
        self, name: str, size: int, write: Callable[[Tensor], None], holds: Callable[[Tensor], bool]
    ) -> Tensor | None:
        """Returns the piece; it is not compared, as the same files and settings made the same bytes."""
        if (name, size) not in self._pieces:
            memory = self._pieces[name, size] = torch.empty(size, dtype=torch.uint8)
            write(memory)
        return self._pieces[name, size]

    def locked(self, memory: Tensor, lock: Callable[[Tensor], Tensor]) -> Tensor:
        address = memory.data_ptr()
        if address not in self._locked:
            self._locked[address] = lock(memory)
        return self._locked[address]


class _Peer(NamedTuple):
    """A process as it introduces itself to the others."""

    machine: str
    """the same text for all that can see each other's open files"""
    process: int
    door: int
    """a file it has open, which holds the token"""
    token: bytes


@dataclass
class SharedMemory:
    """Memory that this process shares with the other ranks of the machine, which request the same pieces."""

    ranks: tuple[int, ...]
    """of all of them, this one's too"""
    processes: tuple[int, ...]
    """the ids of the others"""
    door: int
    """a file that each of them has opened again: the process that locks it may begin a piece"""
    model: str = ""
    """whose pieces these are"""

    def of(self, model: str) -> SharedMemory:
        """Returns the same for the pieces of one model; `model` names all that decides its bytes, in a few letters."""
        return replace(self, model=model)

    def piece(
        self, name: str, size: int, write: Callable[[Tensor], None], holds: Callable[[Tensor], bool]
    ) -> Tensor | None:
        """Returns the piece called `name`, (size,) uint8, which nobody may change; None where it cannot be shared.

        The first process that asks for it writes it; the others wait for that, and look whether it `holds` what they
        would have written. Not all of them need to ask for it, nor at the same time.
        """
        label = f"wan_trainer {self.model} {name}"
        try:
            file, is_new = self._found_or_begun(label, size)
            if file is None:
                return None
            try:
                memory = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)  # holds the file open by itself
                if is_new:
                    write(memory)
                    _seal(file)
                elif not holds(memory):
                    _log.warning("%s: another process of this run has other bytes, so this one keeps its own", name)
                    return None
                return memory
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            _log.warning("%s lies in memory of this process alone: %s", name, error)
            return None

    def locked(self, memory: Tensor, lock: Callable[[Tensor], Tensor]) -> Tensor:
        return lock(memory)

    def _found_or_begun(self, label: str, size: int) -> tuple[int | None, bool]:
        """Returns the open file of a piece, and whether it is to be written here; None where nobody's can be had."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.processes:
            with _locked(self.door) as may_begin:
                if may_begin:
                    if (found := self._find(label, size)) is None:
                        return _new_file(label, size), True
                    if found:
                        return found, False
            if time.monotonic() > deadline:
                _log.warning("Another process of this run was waited for in vain, so this one shares no more memory.")
                self.processes = ()
            time.sleep(_LOOKS_S)
        return None, False

    def _find(self, label: str, size: int) -> int | None:
        """Returns the open file of a piece of another rank; 0 while it is being written, None if no rank has it."""
        written = True
        for process in self.processes:
            for link in _open_files(process):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(link) != _link_to(label):
                        continue
                    file = os.open(link, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
                    if _is_sealed(file) and os.fstat(file).st_size == size:
                        return file
                    written &= _is_sealed(file)
                    os.close(file)
        return None if written else 0


def can_share() -> bool:
    """Returns whether processes of one machine can share memory, as far as the platform says."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def share_memory(rank: int, gather: Callable[[Any], list[Any]]) -> SharedMemory | None:
    """Returns what this process has together with the others of its machine; None where it is alone, or cannot.

    Each process of the run calls it at once; `gather` is `Group.gather`. All of a machine share, or none.
    """
    me = _introduced()
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


def _introduced() -> _Peer | None:
    """Returns this process as it introduces itself, with a door it has opened; None where the platform has no such."""
    if not can_share():
        return None
    token = secrets.token_bytes(_TOKEN_BYTES)
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        names = os.stat("/proc/self/ns/pid").st_ino  # a container has process ids of its own
        door = _new_file(_DOOR, _TOKEN_BYTES)
        os.pwrite(door, token, 0)
    except OSError as error:
        _log.info("memory is not shared with other processes: %s", error)
        return None
    return _Peer(f"{machine} {names}", os.getpid(), door, token)


def _open_door(peer: _Peer) -> int | None:
    """Returns the door of a process, opened again; None where it is out of reach, or misnamed."""
    link = f"/proc/{peer.process}/fd/{peer.door}"
    try:
        if os.readlink(link) != _link_to(_DOOR):
            return None
        door = os.open(link, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        _log.info("memory is not shared with process %s: %s", peer.process, error)
        return None
    if os.pread(door, _TOKEN_BYTES, 0) == peer.token:
        return door
    os.close(door)
    return None


def _link_to(label: str) -> str:
    """Returns what Linux shows as the name of an anonymous file."""
    return f"/memfd:{label} (deleted)"


def _open_files(process: int) -> list[str]:
    """Returns the open files of a process, as links; none of one that has ended."""
    folder = f"/proc/{process}/fd"
    with contextlib.suppress(OSError):
        return [f"{folder}/{number}" for number in os.listdir(folder)]
    return []


def _new_file(label: str, size: int) -> int:
    """Returns an anonymous file of `size` bytes, open. OSError where the system has no memory for it.

    Allocated at once: memory that is missing when it is written to would end the process.
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
    """Say that a piece is written. Nobody can make it shorter from now on, which would end all that map it."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _is_sealed(file: int) -> bool:
    if sys.platform == "linux":
        import fcntl

        return bool(fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SEAL)
    return False


@contextlib.contextmanager
def _locked(door: int) -> Iterator[bool]:
    """Inside, this process may begin a piece, unless another one may just now. The system unlocks for the dead."""
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(door, fcntl.LOCK_UN)
    else:
        yield False
