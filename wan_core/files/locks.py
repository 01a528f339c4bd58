"""Locks: one process at a time has a file, by a lock of the system, or by a claim where the file system has none.

Owns every lock on a file that has a name. A lock goes with the process that holds it, however that one ends. NFS
without a lock daemon and many FUSE volumes refuse it. There a claim says the same: a file beside the lock's own whose
name says which process of which machine it is of, and whose time that process renews. Who has a lock makes a claim too,
so that a machine that can lock and one that cannot see each other (docs/adr/0036-a-claim-where-there-are-no-locks.md).
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
"""what a system says of a lock that another process holds; whatever else it says, it has no lock to give"""
_HELD_ON_WINDOWS = (errno.EACCES, errno.EDEADLK)
_ATTEMPTS = 3
_BEAT_S = 20.0
"""seconds between two signs of life of a claim"""
_SILENT_S = 300.0
"""seconds after which a claim without one is given up; only where its process cannot be asked"""
_SETTLE_S = 1.0
"""how long file systems of several machines may keep names in memory: then all see what each has claimed"""
_WANTED, _CLAIMED, _LOCKED = "wanted", "claimed", "locked"
_CLAIM = re.compile(r"\.(wanted|claimed|locked)-([0-9a-f]{16})-([1-9][0-9]{0,8})-([0-9]{1,18})-([0-9a-f]{16})")
_WAIT = f"if that process ended together with its machine or container, wait {_SILENT_S / 60:.0f} minutes."
_NO_LOCKS = f"This file system has no file locks: {_WAIT}"
_NONE_THERE = f"It runs where this folder has no file locks: {_WAIT}"


class LockLost(FileError):  # noqa: N818  nothing went wrong here: another one has it
    """A claim that was given up for this process: it was silent for too long, as a machine that slept is."""


@dataclass
class Hold:
    """A lock that this process holds until `locked` ends."""

    path: Path
    by_system: bool
    """whether the system knows of it; else it is known by its claim alone"""
    lost: bool = False

    def check(self) -> None:
        """Raises LockLost once another process may have taken it."""
        if self.lost:
            raise LockLost(
                f"{self.path.parent.name} was taken over by another process, as this one gave no sign of life for "
                f"{_SILENT_S / 60:.0f} minutes. Look which one trains it; saved steps are kept."
            )


@contextlib.contextmanager
def locked(path: Path, busy: str, below: Path | None = None) -> Iterator[Hold]:
    """Have `path` (made if needed) alone among all processes; FileError(`busy`) when another one has it.

    A crash leaves nothing that holds anybody up: the system gives a lock back, and the claim of a process that has
    ended counts no more. Where the end cannot be seen, since it was on another machine, that takes minutes.
    """
    with open_to_append(path, below) as file:
        has_lock = _taken(file, busy)
        with opened_folder(path.parent, below) as folder, _Claims(folder, path).held(busy, has_lock) as hold:
            yield hold


def is_locked(path: Path) -> bool:
    """Returns whether a process has `locked(path)` now. Writes nothing, and makes no file."""
    try:
        with open_regular(path, follow_links=False) as file:
            is_ours = _try_lock(file, to_look=True)  # given back when the file is closed
        if is_ours is False:
            return True
        with opened_folder(path.parent) as folder:
            return _Claims(folder, path).are_there(_CLAIMED, *(() if is_ours else (_LOCKED,)))
    except FileError:
        return False
    except OSError:
        return True


def _taken(file: BinaryIO, busy: str) -> bool:
    """Lock it for this process; returns whether the file system has locks. FileError(`busy`) where it is another's."""
    for attempt in range(_ATTEMPTS):
        if (is_ours := _try_lock(file)) is not False:
            return is_ours is not None
        if attempt < _ATTEMPTS - 1:
            time.sleep(0.05)  # somebody may only be looking
    raise FileError(busy)


def mark_as_written(file: BinaryIO) -> None:
    """Show `is_written` that somebody writes it. Windows lets nobody delete an open file anyway."""
    if os.name != "nt":
        _try_lock(file)  # without locks its age protects it


def is_written(path: Path) -> bool:
    """Returns whether a process has marked it and writes it still; False where the file system has no locks."""
    try:
        with open_regular(path, follow_links=False) as file:
            return _try_lock(file, to_look=True) is False
    except FileError:
        return False


def _try_lock(file: BinaryIO, *, to_look: bool = False) -> bool | None:
    """Returns whether the file is locked for this process now; None where there are no locks."""
    try:
        _lock(file, to_look)
    except OSError as error:
        held = _HELD_ON_WINDOWS if os.name == "nt" else _HELD
        return False if error.errno in held else None
    return True


def _lock(file: BinaryIO, to_look: bool = False) -> None:
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        # NFS gives a lock that shuts others out only to a file that is open for writing.
        fcntl.flock(file.fileno(), (fcntl.LOCK_SH if to_look else fcntl.LOCK_EX) | fcntl.LOCK_NB)


class _Claims:
    """The claims to one lock: files beside its own, each called after a state, machine, process and a number drawn.

    wanted: it looks who else is there; claimed: it has it, by this alone; locked: it has a lock of the system.
    """

    def __init__(self, folder: OpenFolder, path: Path) -> None:
        self._folder, self._path = folder, path
        self._machine, self._token = _machine(path.parent), secrets.token_hex(8)
        self._mine, self._now = "", time.time()

    @contextlib.contextmanager
    def held(self, busy: str, has_lock: bool) -> Iterator[Hold]:
        """Claim it until the end; FileError where another process has it.

        First the claim, then the look, by everybody: of two that meet at least one sees the other and gives way.
        """
        try:
            if not (self._claim_beside_lock() if has_lock else self._claim_alone()):
                raise FileError(f"{busy} {_NONE_THERE if has_lock else _NO_LOCKS}")
            hold = Hold(self._path, by_system=has_lock)
            with _repeated(lambda: self._beat(hold)):
                yield hold
        finally:
            self._remove(self._mine)

    def _claim_beside_lock(self) -> bool:
        with contextlib.suppress(OSError):  # a full disk, on which runs are deleted to make room
            self._make(_LOCKED)
        with contextlib.suppress(OSError):
            others = self._others()
            for state, _token, name, _lives in others:
                if state == _LOCKED:
                    self._remove(name)  # the lock of its process is ours now, so it has ended
            return not any(lives and state == _CLAIMED for state, _token, _name, lives in others)
        return True

    def _claim_alone(self) -> bool:
        self._make(_WANTED)
        time.sleep(_SETTLE_S)
        # Of those that come together the first by number goes on.
        if self.are_there(_CLAIMED, _LOCKED) or self.are_there(_WANTED, before=self._token):
            return False
        claimed = self._name(_CLAIMED)
        self._folder.rename(self._mine, self._folder, claimed)
        self._mine = claimed
        return not self.are_there(_CLAIMED, _LOCKED)

    def are_there(self, *states: str, before: str = "g") -> bool:
        """Returns whether another process that lives has made a claim of these states."""
        return any(lives and state in states and token < before for state, token, _name, lives in self._others())

    def _others(self) -> list[tuple[str, str, str, bool]]:
        """State, number, name, and whether its process lives, of every claim but ours; those of the dead are removed
        where we made one ourselves."""
        found: list[tuple[str, str, str, bool]] = []
        for name in self._folder.names():
            if name == self._mine or not name.startswith(self._path.name):
                continue
            if (said := _CLAIM.fullmatch(name, len(self._path.name))) is None:
                continue
            state, machine, process, started, token = said.groups()
            with contextlib.suppress(FileNotFoundError):  # given back meanwhile
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
        self._now = self._folder.look(name).st_mtime  # by the clock of the file system, as all others are

    def _beat(self, hold: Hold) -> None:
        """Give a sign of life."""
        try:
            file = self._folder.open(self._mine, os.O_WRONLY | (os.O_CREAT if hold.by_system else 0))
        except FileNotFoundError:
            hold.lost = not hold.by_system
            return
        try:
            os.write(file, b"\n")  # for there are file systems that refuse to set a time
        except OSError:  # a full disk
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
    """Inside, `beat` is called again and again, beside the work."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(_BEAT_S):
            with contextlib.suppress(OSError):  # the next one may get through
                beat()

    thread = threading.Thread(target=go_on, daemon=True, name="sign of life")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)  # one that hangs in a file system ends with the process


def _machine(folder: Path) -> str:
    """Returns whose process numbers are meant, and where the folder lies for them: a copy of it is another's."""
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    facts = [host, os.path.realpath(folder)]
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))  # a container has process numbers of its own
    return hashlib.sha256("\n".join(facts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _lives(process: int, started: int) -> bool | None:
    """Returns whether a process of this machine lives; None where that cannot be seen."""
    if os.name == "nt":  # there such a question ends it
        return None
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    seen = _start_of(process)
    return None if not seen or not started else seen == started


def _start_of(process: int) -> int:
    """Returns when a process began, in ticks since the system did; -1 if it has ended, 0 where nobody says so."""
    try:
        said = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return -1 if said[0] in b"ZX" else int(said[19])
    except (OSError, ValueError, IndexError):
        return 0
