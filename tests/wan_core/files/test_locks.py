"""Locks where a file system has none: one process at a time all the same, and a dead one holds nobody up."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import wan_core.files.locks as locks
from tests.support.dying import forked
from tests.support.tiny_run import SHORT, make_run
from wan_core.control import SignalControl
from wan_core.events import Event, Note
from wan_core.files import FileError, LockLost, atomic_write_bytes, clean_partials, fsync_folder, is_locked, locked
from wan_core.job.config import read_status
from wan_core.session.train_job import run_job
from wan_core.train import TrainConfig

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the calls that are refused are those of POSIX")

REFUSED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EBADF, errno.EACCES)
"""by FUSE, NFS without a lock daemon, old kernels, and an AppArmor profile"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder / ".lock"


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system without locks, of this machine alone."""
    refuse(monkeypatch, errno.ENOTSUP)


def refuse(monkeypatch: pytest.MonkeyPatch, number: int, settle_s: float = 0.0) -> None:
    def flock(_file: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(locks, "_SETTLE_S", settle_s)


def claim(path: Path, state: str = "claimed", machine: str = "0" * 16, process: int = 1, age_s: float = 0.0) -> Path:
    """What a process of another machine has laid down."""
    made = path.with_name(f"{path.name}.{state}-{machine}-{process}-77-{'a' * 16}")
    made.write_bytes(b"\n")
    os.utime(made, (time.time() - age_s,) * 2)
    return made


def beside(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path.parent) if name != path.name)


@pytest.mark.parametrize("number", REFUSED, ids=errno.errorcode.get)
def test_without_locks_one_has_it_and_nothing_of_it_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse(monkeypatch, number)
    assert not is_locked(path)
    with locked(path, "It is busy.") as hold:
        assert not hold.by_system
        assert is_locked(path)
        refusal = r"It is busy\. This file system has no file locks: if that process ended .* wait 5 minutes\."
        with pytest.raises(FileError, match=refusal), locked(path, "It is busy."):
            pass
        assert len(beside(path)) == 1
    assert not is_locked(path)
    assert beside(path) == []


def test_with_locks_the_refusal_is_the_one_of_ever_and_nothing_stays(path: Path) -> None:
    with locked(path, "It is busy.") as hold:
        assert hold.by_system
        with pytest.raises(FileError, match=r"^It is busy\.$"), locked(path, "It is busy."):
            pass
    assert beside(path) == []


@pytest.mark.usefixtures("no_locks")
def test_a_process_that_was_killed_holds_nobody_up(path: Path) -> None:
    def take_and_die() -> None:
        with locked(path, "busy"):
            os._exit(137)

    assert forked(take_and_die) == 137
    assert len(beside(path)) == 1
    assert not is_locked(path)
    with locked(path, "busy"):
        assert len(beside(path)) == 1, "what the dead one left is gone"


@pytest.mark.usefixtures("no_locks")
def test_a_dead_process_that_nobody_has_waited_for_holds_nobody_up(path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with locked(path, "busy"):
            os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with locked(path, "busy"):
        pass
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("no_locks")
def test_a_process_with_the_number_of_a_dead_one_does_not_count(path: Path) -> None:
    left = claim(path, machine=locks._machine(path.parent), process=os.getpid())  # which began at another tick
    assert not is_locked(path)
    with locked(path, "busy"):
        assert not left.exists()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("state", ["claimed", "locked"])
@pytest.mark.parametrize(("age_s", "lives"), [(0, True), (280, True), (320, False), (-280, True), (-320, False)])
def test_what_another_machine_claims_counts_for_five_minutes(path: Path, state: str, age_s: float, lives: bool) -> None:
    path.touch()
    left = claim(path, state, age_s=age_s)
    assert is_locked(path) == lives
    if lives:
        with pytest.raises(FileError, match="busy"), locked(path, "busy"):
            pass
    else:
        with locked(path, "busy"):
            pass
    assert left.exists() == lives


@pytest.mark.usefixtures("no_locks")
def test_a_copy_of_a_folder_in_use_is_in_use_for_minutes_alone(path: Path, tmp_path: Path) -> None:
    with locked(path, "busy"):
        (copy := tmp_path / "copy").mkdir()
        for name in os.listdir(path.parent):
            (copy / name).write_bytes(b"")
            os.utime(copy / name, (time.time() - 320,) * 2)
        assert is_locked(path)
        assert not is_locked(copy / ".lock")


def test_a_machine_with_locks_and_one_without_see_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(first_refuses: bool) -> None:
        with monkeypatch.context() as patch:
            if first_refuses:
                refuse(patch, errno.ENOLCK)
            holder = locked(path, "busy")
            assert holder.__enter__().by_system != first_refuses
        with monkeypatch.context() as patch:
            if not first_refuses:
                refuse(patch, errno.ENOLCK)
            assert is_locked(path)
            said = "It runs where this folder" if first_refuses else "This file system"
            with pytest.raises(FileError, match=f"^busy {said} has no file locks: .* wait 5 minutes"):
                locked(path, "busy").__enter__()
        holder.__exit__(None, None, None)
        assert not is_locked(path)

    both(first_refuses=True)
    both(first_refuses=False)
    assert beside(path) == []


def test_a_lock_counts_as_ever_whatever_a_killed_holder_left_beside_it(path: Path) -> None:
    """Its claim looks alive, as that of a container that was started anew does; the lock itself says better."""
    path.touch()
    left = claim(path, "locked")
    assert not is_locked(path)
    with locked(path, "busy"):
        assert not left.exists()


def test_a_file_of_the_users_with_such_a_name_stays(path: Path) -> None:
    for name in (".lock.txt", ".lock.claimed-x", ".lock.claimed-0000000000000000-0-1-0000000000000000"):
        (path.parent / name).touch()
    with locked(path, "busy"):
        pass
    assert len(beside(path)) == 3


def test_a_claim_lives_while_its_process_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOTSUP)
    monkeypatch.setattr(locks, "_BEAT_S", 0.01)
    with locked(path, "busy") as hold:
        (name,) = beside(path)
        os.utime(path.with_name(name), (0, 0))
        wait_until(lambda: path.with_name(name).stat().st_mtime > 0)
        hold.check()
        path.with_name(name).unlink()  # as another machine does, for which it was silent too long
        wait_until(lambda: hold.lost)
        with pytest.raises(LockLost, match=r"run was taken over by another process, as .* for 5 minutes\. Look"):
            hold.check()
        assert beside(path) == [], "it does not claim again"
    assert not any(thread.name == "renew claim" for thread in threading.enumerate())


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("rounds", [5, pytest.param(300, marks=pytest.mark.soak)])
def test_of_two_that_come_in_the_same_moment_one_has_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    refuse(monkeypatch, errno.ENOTSUP, settle_s=0.02)
    for number in range(rounds):
        assert sorted(asked_at_once(path)) == sorted(b"+-"), number
    assert beside(path) == []


def asked_at_once(path: Path) -> bytes:
    """What two processes say that try to have it in the same moment, and hold what they have until both have said."""
    (go, going), (end, ending), (said, saying) = os.pipe(), os.pipe(), os.pipe()

    def come() -> None:
        os.close(going)
        os.close(ending)
        os.read(go, 1)  # until the other end is closed
        try:
            with locked(path, "busy"):
                os.write(saying, b"+")
                os.read(end, 1)
        except FileError:
            os.write(saying, b"-")

    both = [begun(come), begun(come)]
    os.close(going)
    answers = os.read(said, 1) + os.read(said, 1)
    for file in (ending, go, end, said, saying):
        os.close(file)
    assert [os.waitpid(pid, 0)[1] for pid in both] == [0, 0]
    return answers


def begun(work: Callable[[], None]) -> int:
    """The id of a process that does it."""
    if (pid := os.fork()) == 0:
        code = 99
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def test_who_looks_asks_for_no_lock_that_nfs_refuses_a_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS makes a lock of the file's bytes of it: one that shuts others out needs a file open for writing."""
    import fcntl

    real = fcntl.flock

    def flock(file: int, how: int) -> None:
        if how & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(file, how)

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(path, "busy"):
        assert is_locked(path)
    assert not is_locked(path)


def test_without_locks_what_a_killed_write_left_goes_by_its_age(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOLCK)
    left = [path.with_name(f".state.{number:016x}.partial") for number in range(2)]
    for number, file in enumerate(left):
        file.touch()
        os.utime(file, (time.time() - 3000 - 1000 * number,) * 2)
    assert clean_partials(path.parent) == 1
    assert [file.exists() for file in left] == [True, False]


# ---- fsync ------------------------------------------------------------------------------------------------------


def refuse_sync(monkeypatch: pytest.MonkeyPatch, number: int, *, folders: bool) -> None:
    real = os.fsync

    def fsync(file: int) -> None:
        if (os.fstat(file).st_mode & 0o170000 == 0o040000) == folders:
            raise OSError(number, os.strerror(number))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.EROFS, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_that_cannot_be_synced_is_borne(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    refuse_sync(monkeypatch, number, folders=True)
    atomic_write_bytes(tmp_path / "a", b"whole")
    fsync_folder(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"whole"


@pytest.mark.parametrize("folders", [True, False], ids=["folder", "file"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_sync_that_fails_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, folders: bool) -> None:
    refuse_sync(monkeypatch, number, folders=folders)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        atomic_write_bytes(tmp_path / "a", b"whole")


# ---- a run ------------------------------------------------------------------------------------------------------


def test_a_run_that_another_process_took_over_stops_and_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, errno.ENOTSUP)
    monkeypatch.setattr(locks, "_BEAT_S", 0.001)
    run = make_run(tmp_path, train=TrainConfig(**{**SHORT, "steps": 400, "save_every_n_steps": 400}))  # type: ignore[arg-type]
    seen: list[Event] = []

    def emit(event: Event) -> None:
        seen.append(event)
        if event.name == "step":
            for file in run.directory.glob(".lock.claimed-*"):
                file.unlink()

    with pytest.raises(LockLost, match="tiny was taken over"):
        run_job(run.directory, run.roots, emit=emit, control=SignalControl(signals=False))
    said = [event.text for event in seen if isinstance(event, Note)]
    assert sum("has no file locks" in text for text in said) == 1
    assert read_status(run.directory).state == "running", "as the other process says"
    assert not list((run.directory / "saves").glob("*"))
