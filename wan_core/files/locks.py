"""File locks between processes: a system lock, or a claim file where the file system has no locks.

A lock ends with its process. NFS without a lock daemon and many FUSE volumes have no locks. A claim is a file next to
the lock file, named by machine and process. The process renews the file's modification time. A process with a system
lock writes a claim too, for machines on which the same folder has no locks
(docs/adr/0036-a-claim-where-there-are-no-locks.md).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .inside import OpenFolder, open_to_append, opened_folder
from .reading import FileError, open_regular

_HELD = (errno.EAGAIN, errno.EWOULDBLOCK)
"""errno of a lock that another process holds; all other errors mean that the file system has no locks"""
_HELD_ON_WINDOWS = (errno.EACCES, errno.EDEADLK)
_ATTEMPTS = 3
_BEAT_S = 20.0
"""seconds between renewals of a claim"""
_SILENT_S = 300.0
"""seconds without a renewal after which a claim expires, if its process cannot be checked"""
_SETTLE_S = 1.0
"""longest time that network file systems cache attributes; after this time, all machines see each other's claims"""
_WANTED, _CLAIMED, _LOCKED = "wanted", "claimed", "locked"
_CLAIM = re.compile(r"\.(wanted|claimed|locked)-([0-9a-f]{16})-([1-9][0-9]{0,8})-([0-9]{1,18})-([0-9a-f]{16})")
_WAIT = f"if that process ended together with its machine or container, wait {_SILENT_S / 60:.0f} minutes."
_NO_LOCKS = f"This file system has no file locks: {_WAIT}"
_NONE_THERE = f"It runs where this folder has no file locks: {_WAIT}"


class LockLost(FileError):  # noqa: N818  not an error of this process
    """The claim of this process has expired, for example because the machine was suspended."""


@dataclass
class Hold:
    """A lock held by this process until `locked` exits."""

    path: Path
    by_system: bool
    """True for a system lock, False for a claim file only"""
    lost: bool = False

    def check(self) -> None:
        """Raises LockLost if another process may have taken the lock."""
        if self.lost:
            raise LockLost(
                f"{self.path.parent.name} was taken over by another process, because this one did not renew its "
                "lock for "
                f"{_SILENT_S / 60:.0f} minutes. Check which process trains it; saved steps are kept."
            )


@contextlib.contextmanager
def locked(path: Path, busy: str, below: Path | None = None) -> Iterator[Hold]:
    """Hold an exclusive lock on `path`, which is created if needed; FileError(`busy`) if another process holds it.

    After a crash, the system releases the lock. Processes of the same machine ignore the claim; on other machines the
    claim expires after minutes.
    """
    with open_to_append(path, below) as file:
        has_lock = _taken(file, busy)
        with opened_folder(path.parent, below) as folder, _Claims(folder, path).held(busy, has_lock) as hold:
            yield hold


def is_locked(path: Path) -> bool:
    """Returns whether a process holds `locked(path)`. Writes nothing and creates no file."""
    try:
        with open_regular(path, follow_links=False) as file:
            is_ours = _try_lock(file, shared=True)  # released when the file is closed
        if is_ours is False:
            return True
        with opened_folder(path.parent) as folder:
            return _Claims(folder, path).are_there(_CLAIMED, *(() if is_ours else (_LOCKED,)))
    except FileError:
        return False
    except OSError:
        return True


def _taken(file: BinaryIO, busy: str) -> bool:
    """Lock an open file; returns whether the file system has locks. FileError(`busy`) if another process holds it."""
    for attempt in range(_ATTEMPTS):
        if (is_ours := _try_lock(file)) is not False:
            return is_ours is not None
        if attempt < _ATTEMPTS - 1:
            time.sleep(0.05)  # `is_locked` of another process holds the lock briefly
    raise FileError(busy)


def mark_as_written(file: BinaryIO) -> None:
    """Mark a file as being written (see `is_written`). On Windows an open file cannot be deleted anyway."""
    if os.name != "nt":
        _try_lock(file)  # Where the file system has no locks, `clean_partials` checks only the age of the file.


def is_written(path: Path) -> bool:
    """Returns whether a process is writing a marked file; False if the file system has no locks."""
    try:
        with open_regular(path, follow_links=False) as file:
            return _try_lock(file, shared=True) is False
    except FileError:
        return False


def _try_lock(file: BinaryIO, *, shared: bool = False) -> bool | None:
    """Returns whether this process got the lock; None if the file system has no locks."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)  # Windows locks a range of bytes from the current position on
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            # NFS grants an exclusive lock only on a file that is open for writing, so `is_locked` takes a shared one.
            fcntl.flock(file.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        held = _HELD_ON_WINDOWS if os.name == "nt" else _HELD
        return False if error.errno in held else None
    return True


class _Claims:
    """The claims on one lock: files named by state, machine, process and a random number.

    States: "wanted" (checks for other claims); "claimed" (holds the lock by its claim); "locked" (has the system lock).
    """

    def __init__(self, folder: OpenFolder, path: Path) -> None:
        self._folder, self._path = folder, path
        self._machine, self._token = _machine(path.parent), secrets.token_hex(8)
        self._mine, self._now = "", time.time()

    @contextlib.contextmanager
    def held(self, busy: str, has_lock: bool) -> Iterator[Hold]:
        """Hold a claim; raises FileError if another process has one. A process writes its claim before it looks for
        others, so at least one of two processes sees the other's claim."""
        try:
            if not (self._claim_with_lock() if has_lock else self._claim_alone()):
                raise FileError(f"{busy} {_NONE_THERE if has_lock else _NO_LOCKS}")
            hold = Hold(self._path, by_system=has_lock)
            with _repeated(lambda: self._beat(hold)):
                yield hold
        finally:
            self._remove(self._mine)

    def _claim_with_lock(self) -> bool:
        with contextlib.suppress(OSError):  # deleting a run on a full disk must work
            self._make(_LOCKED)
        with contextlib.suppress(OSError):
            others = self._others()
            for state, _token, name, _lives in others:
                if state == _LOCKED:
                    self._remove(name)  # the claim's process has ended, because this process has the system lock
            return not any(lives and state == _CLAIMED for state, _token, _name, lives in others)
        return True

    def _claim_alone(self) -> bool:
        self._make(_WANTED)
        time.sleep(_SETTLE_S)
        # Of several waiting processes, the one with the smallest token continues.
        if self.are_there(_CLAIMED, _LOCKED) or self.are_there(_WANTED, before=self._token):
            return False
        claimed = self._name(_CLAIMED)
        self._folder.rename(self._mine, self._folder, claimed)
        self._mine = claimed
        return not self.are_there(_CLAIMED, _LOCKED)

    def are_there(self, *states: str, before: str = "g") -> bool:
        """Returns whether another live process has a claim in one of these states."""
        return any(lives and state in states and token < before for state, token, _name, lives in self._others())

    def _others(self) -> list[tuple[str, str, str, bool]]:
        """Returns (state, random number, name, is alive) of all other claims; removes dead ones once it has a claim."""
        found: list[tuple[str, str, str, bool]] = []
        for name in self._folder.names():
            if name == self._mine or not name.startswith(self._path.name):
                continue
            if (said := _CLAIM.fullmatch(name, len(self._path.name))) is None:
                continue
            state, machine, process, started, token = said.groups()
            with contextlib.suppress(FileNotFoundError):  # the claim was released after `names` was read
                lives = _lives(int(process), int(started)) if machine == self._machine else None
                if lives is None:
                    lives = abs(self._now - self._folder.look(name).st_mtime) < _SILENT_S
                if not lives and self._mine:
                    self._remove(name)
                found.append((state, token, name, lives))
        return found

    def _name(self, state: str) -> str:
        process = os.getpid()
        return f"{self._path.name}.{state}-{self._machine}-{process}-{max(0, _start_of(process))}-{self._token}"

    def _make(self, state: str) -> None:
        name = self._name(state)
        os.close(self._folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        self._mine = name
        # The clock is the file server's, like for the times of all claims.
        self._now = self._folder.look(name).st_mtime

    def _beat(self, hold: Hold) -> None:
        """Renew the claim."""
        try:
            file = self._folder.open(self._mine, os.O_WRONLY | (os.O_CREAT if hold.by_system else 0))
        except FileNotFoundError:  # another process removed the claim as dead; a system lock remains
            hold.lost = not hold.by_system
            return
        try:
            os.write(file, b"\n")  # writing sets the modification time even on file systems without utime
        except OSError:  # for example because the disk is full
            if os.utime in os.supports_fd:
                os.utime(file)
        finally:
            os.close(file)

    def _remove(self, name: str) -> None:
        if name:
            with contextlib.suppress(OSError):
                self._folder.remove(name)


@contextlib.contextmanager
def _repeated(beat: Callable[[], None]) -> Iterator[None]:
    """Call `beat` in a background thread while the context is open."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_BEAT_S):
            with contextlib.suppress(OSError):  # a network file system may work again at the next renewal
                beat()

    thread = threading.Thread(target=renew, daemon=True, name="renew claim")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # a daemon thread, because a thread that hangs in a file system must not block the end of the process
        thread.join(1.0)


def _machine(folder: Path) -> str:
    """Returns an id of machine, container and folder. A copied folder has another id."""
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    facts = [host, os.path.realpath(folder)]
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))  # containers have separate process ids
    return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _lives(process: int, started: int) -> bool | None:
    """Returns whether a process of this machine is running; None if unknown."""
    if os.name == "nt":  # on Windows os.kill(pid, 0) would end the process
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # EPERM: the process exists and belongs to another user
    seen = _start_of(process)
    return None if not seen or not started else seen == started


def _start_of(process: int) -> int:
    """Returns the start time of a process in ticks since boot; -1 if it has ended, 0 if unknown."""
    try:
        said = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if said[0] in b"ZX" else int(said[19])
    except (OSError, ValueError, IndexError):
        return 0
