"""Locks where a file system has none: one process of a machine at a time, and a dead one holds nobody up."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dying import forked
from tests.support.tiny_run import SHORT, make_run
from wan_core.control import SignalControl
from wan_core.events import Event, Note
from wan_core.files import FileError, atomic_write_bytes, clean_partials, fsync_folder, is_locked, locked
from wan_core.job.config import read_status
from wan_core.session.train_job import run_job
from wan_core.train import TrainConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads where a descriptor leads from /proc")

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


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Below the folder of runs alone: the folder of temporary files has locks."""
    import fcntl

    (here := Path(tempfile.mkdtemp(dir=tempfile.gettempdir()))).chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    real = fcntl.flock

    def flock(file: int, how: int) -> None:
        if not os.readlink(f"/proc/self/fd/{file}").startswith(f"{here}/"):
            raise OSError(number, os.strerror(number))
        real(file, how)

    monkeypatch.setattr("fcntl.flock", flock)


def beside(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path.parent) if name != path.name)


@pytest.mark.parametrize("number", REFUSED, ids=errno.errorcode.get)
def test_without_locks_one_has_it_and_nothing_of_it_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse(monkeypatch, number)
    assert not is_locked(path)
    with locked(path, "It is busy.") as has_locks:
        assert not has_locks
        assert is_locked(path)
        with pytest.raises(FileError, match=r"^It is busy\.$"), locked(path, "It is busy."):
            pass
    assert not is_locked(path)
    assert beside(path) == []


def test_with_locks_the_refusal_is_the_one_of_ever_and_nothing_stays(path: Path) -> None:
    with locked(path, "It is busy.") as has_locks:
        assert has_locks
        with pytest.raises(FileError, match=r"^It is busy\.$"), locked(path, "It is busy."):
            pass
    assert beside(path) == []


@pytest.mark.usefixtures("no_locks")
def test_a_process_that_was_killed_holds_nobody_up(path: Path) -> None:
    def take_and_die() -> None:
        with locked(path, "busy"):
            os._exit(137)

    assert forked(take_and_die) == 137
    assert not is_locked(path)
    with locked(path, "busy"):
        assert is_locked(path)


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


@pytest.mark.parametrize("rounds", [2, pytest.param(300, marks=pytest.mark.soak)])
def test_of_two_that_come_in_the_same_moment_one_has_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    refuse(monkeypatch, errno.ENOTSUP)
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


def test_a_run_without_locks_trains_and_says_what_to_avoid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.ENOTSUP)
    run = make_run(tmp_path, train=TrainConfig(**{**SHORT, "steps": 1}))  # type: ignore[arg-type]
    seen: list[Event] = []
    run_job(run.directory, run.roots, emit=seen.append, control=SignalControl(signals=False))
    said = [event.text for event in seen if isinstance(event, Note)]
    assert sum("has no file locks, so only this machine knows" in text for text in said) == 1
    assert read_status(run.directory).state == "done"
