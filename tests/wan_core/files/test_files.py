"""Files, safely: names, confinement, complete writes, locks."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import wan_core.files.locks as locks
import wan_core.files.writing as files
from tests.support.dying import forked, umask
from wan_core.errors import ConfigError
from wan_core.files import (
    FileError,
    Roots,
    atomic_write,
    atomic_write_bytes,
    confine,
    digest_file,
    is_locked,
    locked,
    open_regular,
    read_json,
    sampled_digest,
)

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX files, which Windows does not have")

pytestmark = pytest.mark.lasts(0.1)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (tmp_path / "outside.txt").write_text("secret")
    (root / "inner" / "in.txt").write_text("fine")
    return root


@pytest.mark.parametrize(
    "path", ["../outside.txt", "inner/../../outside.txt", "..", "/etc/passwd", "inner/../..", "../root2/x"]
)
def test_confine_refuses_to_leave_its_folder(place: Path, path: str) -> None:
    with pytest.raises(FileError, match="leads outside its folder"):
        confine(place, path, "folder")


@posix
@pytest.mark.parametrize("kind", ["file", "folder", "chain"])
def test_confine_follows_links_to_where_they_lead(place: Path, kind: str) -> None:
    link = place / "link"
    if kind == "chain":
        (place / "second").symlink_to(place.parent)
    link.symlink_to({"file": "../outside.txt", "folder": "..", "chain": "second"}[kind])
    with pytest.raises(FileError, match="leads outside its folder"):
        confine(place, "link" if kind == "file" else "link/outside.txt", "folder")


@posix
def test_confine_allows_links_that_stay_inside(place: Path) -> None:
    (place / "link").symlink_to("inner")
    assert confine(place, "link/in.txt", "folder") == (place / "inner" / "in.txt").resolve()
    assert confine(place, ".", "folder") == place.resolve()
    assert confine(place, "not/there/yet", "folder") == place.resolve() / "not" / "there" / "yet"


def test_a_sibling_whose_name_begins_like_the_root_is_outside(place: Path) -> None:
    (place.parent / "root2").mkdir()
    with pytest.raises(FileError):
        confine(place, str(place.parent / "root2"), "folder")


@posix
def test_open_regular_takes_files_only_and_never_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # socket paths may have about 100 characters
        server.bind("sock")
        os.chdir(here)
        for path in (tmp_path / "fifo", tmp_path, Path("/dev/null"), Path("/dev/zero")):
            with pytest.raises(FileError, match="is not a regular file"):
                open_regular(path)
        with pytest.raises(FileError, match="sock cannot be opened"):
            open_regular(tmp_path / "sock")
    with pytest.raises(
        FileError, match=r"absent cannot be opened: No such file or directory\. Put it there, or choose another\."
    ):
        open_regular(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"data"
    with pytest.raises(FileError):
        open_regular(tmp_path / "link", follow_links=False)


@pytest.mark.parametrize("name", ["x", "dir/x", "dir/deep/x"])
def test_a_file_for_a_missing_folder_names_the_folder_to_make(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError) as refusal:
        atomic_write_bytes(tmp_path / "absent" / name, b"data")
    assert str(refusal.value) == (
        f"Folder {tmp_path / 'absent'} does not exist, so x cannot be written. Create it, or choose another."
    )
    (tmp_path / "absent").write_text("a file")
    with pytest.raises(FileError, match=r"absent is not a folder, so x cannot be written"):
        atomic_write_bytes(tmp_path / "absent" / name, b"data")


@posix
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_written_file_has_the_mode_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "lora.safetensors"
    with umask(mask):
        atomic_write_bytes(path, b"new")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        atomic_write_bytes(path, b"again")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    atomic_write_bytes(path, b"old")

    def write_and_fail() -> None:
        with atomic_write(path) as file:
            file.write(b"half of the new")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_and_fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["status.json"]


def no_regular_file(path: Path, kind: str) -> tuple[Path, Path]:
    """Puts a link, a dangling link, a folder or a fifo at `path`; returns it and the file of somebody else beside."""
    other = path.with_name("other")
    other.write_bytes(b"someone's")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(other if kind == "link" else path.with_name("absent"))
    return path, other


@posix
@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "fifo"])
def test_atomic_write_replaces_regular_files_only(tmp_path: Path, kind: str) -> None:
    path, other = no_regular_file(tmp_path / "out", kind)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(FileError, match="out exists and is not a regular file"):
        atomic_write_bytes(path, b"new")
    assert sorted(os.listdir(tmp_path)) == before
    assert other.read_bytes() == b"someone's"


@pytest.mark.parametrize("times", [1, 3, 9])
def test_a_target_that_windows_holds_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    real, calls = os.replace, []

    def busy(source: str, target: str, **folders: int) -> None:
        calls.append(source)
        if len(calls) <= times:
            raise PermissionError(errno.EACCES, "The process cannot access the file")
        real(source, target, **folders)

    monkeypatch.setattr(files.os, "replace", busy)
    monkeypatch.setattr(files.time, "sleep", lambda _s: None)
    atomic_write_bytes(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_bytes() == b"new"
    assert len(calls) == times + 1


SHARED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from contextlib import suppress
from pathlib import Path
from wan_core.files import atomic_write_bytes
os.getpid = lambda: 1
for number in range(100):
    atomic_write_bytes(Path(sys.argv[2]) / "status.json", sys.argv[3].encode() * (1 + number % 7) * 1000)
"""


def test_two_containers_that_share_a_folder_never_mix_their_files(tmp_path: Path) -> None:
    """In each of them the writer is process 1."""
    root = Path(__file__).parents[3]
    writers = [
        subprocess.Popen([sys.executable, "-c", SHARED, str(root), str(tmp_path), name], stderr=subprocess.PIPE)
        for name in "ab"
    ]
    mixed = looks = 0
    while any(writer.poll() is None for writer in writers):
        time.sleep(0.0005)  # the disk of the writers may be slow
        with suppress(FileNotFoundError):
            data = (tmp_path / "status.json").read_bytes()
            looks += 1
            mixed += len(set(data)) != 1 or len(data) % 1000 != 0
    assert [(writer.wait(), writer.stderr.read()) for writer in writers] == [(0, b""), (0, b"")]  # type: ignore[union-attr]
    for writer in writers:
        writer.stderr.close()  # type: ignore[union-attr]
    assert (mixed, os.listdir(tmp_path)) == (0, ["status.json"])
    assert looks > 20


def test_two_writes_of_one_process_id_stage_under_names_of_their_own(tmp_path: Path) -> None:
    """As those of two containers may, in each of which the writer is process 1."""
    with atomic_write(tmp_path / "out") as first:
        with atomic_write(tmp_path / "out") as second:
            second.write(b"second")
        assert (tmp_path / "out").read_bytes() == b"second"
        first.write(b"first")
    assert (tmp_path / "out").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["out"]


@posix
def test_a_staged_name_that_was_planted_is_never_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"someone's")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _n: "0" * 16)
    (tmp_path / f".out.{'0' * 16}.partial").symlink_to(other)
    with pytest.raises(FileExistsError):
        atomic_write_bytes(tmp_path / "out", b"new")
    assert other.read_bytes() == b"someone's"


def test_leftovers_go_once_they_are_old_and_what_is_being_written_stays(tmp_path: Path) -> None:
    mine = [".status.json.77.partial", f".k.safetensors.{'0a' * 8}.partial"]
    others = ["notes.partial", ".hidden", ".x.partial", "run.json"]
    for name in (*mine, *others):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".folder.1.partial").mkdir()
    with atomic_write(tmp_path / "long") as file:
        os.utime(file.name, (0, 0))
        assert files.clean_partials(tmp_path, 60) == 2
        (tmp_path / mine[0]).write_bytes(b"young")
        assert files.clean_partials(tmp_path, 60) == 0
    assert sorted(os.listdir(tmp_path)) == sorted([*others, ".folder.1.partial", "long", mine[0]])


@posix
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_what_is_appended_to_is_a_file_of_its_own_and_nothing_waits(tmp_path: Path, kind: str) -> None:
    path, other = no_regular_file(tmp_path / "log.txt", kind)
    with pytest.raises(FileError, match=r"log\.txt is a link or no regular file"):
        files.open_append(path)
    with pytest.raises(FileError, match="is a link or no regular file"), locked(path, "busy"):
        pass
    assert other.read_bytes() == b"someone's"
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("names", [1, 3])
def test_what_is_appended_to_a_hard_link_reaches_none_of_its_other_names(tmp_path: Path, names: int) -> None:
    path, others = tmp_path / "log.txt", [tmp_path / f"other{number}" for number in range(names)]
    path.write_bytes(b"someone's\n")
    for other in others:
        os.link(path, other)
    for line in (b"first\n", b"second\n"):
        with files.open_append(path) as file:
            file.write(line)
    assert path.read_bytes() == b"someone's\nfirst\nsecond\n"
    assert [other.read_bytes() for other in others] == names * [b"someone's\n"]
    assert sorted(os.listdir(tmp_path)) == sorted(["log.txt", *(other.name for other in others)])


def test_a_hard_link_that_cannot_be_copied_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "log.txt", tmp_path / "other"
    path.write_bytes(b"someone's")
    os.link(path, other)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_given: object) -> None:
        raise full

    monkeypatch.setattr(files.shutil, "copyfileobj", fail)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        files.open_append(path)
    assert (path.read_bytes(), path.samefile(other)) == (b"someone's", True)
    assert sorted(os.listdir(tmp_path)) == ["log.txt", "other"]


def test_json_that_is_no_json_or_far_too_large_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"version": 1')
    with pytest.raises(FileError, match=r"run\.json is not valid JSON"):
        read_json(tmp_path / "run.json")
    with pytest.raises(FileError, match=r"run\.json is larger than"):
        read_json(tmp_path / "run.json", limit_bytes=4)


def test_a_sampled_digest_sees_size_beginning_and_every_window(tmp_path: Path) -> None:
    path = tmp_path / "base"
    data = bytearray(os.urandom(3 << 20))
    path.write_bytes(data)
    first = sampled_digest(path)
    assert sampled_digest(path) == first
    for place in (0, (1 << 20) - 1, len(data) // 2, len(data) - (len(data) // 64)):
        data[place] ^= 1
        path.write_bytes(data)
        assert sampled_digest(path) != first, place
        data[place] ^= 1
    path.write_bytes(data + b"x")
    assert sampled_digest(path) != first
    assert len(digest_file(path)) == 64


def test_on_windows_a_lock_is_one_byte_that_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def locking(descriptor: int, mode: int, count: int) -> None:
        asked.append((os.lseek(descriptor, 0, os.SEEK_CUR), mode, count))
        if len(asked) > 1:
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2, LK_LOCK=1))
    (tmp_path / ".lock").write_bytes(b"what an older version wrote")
    with open(tmp_path / ".lock", "ab") as one, open(tmp_path / ".lock", "ab") as other:
        monkeypatch.setattr(locks, "os", SimpleNamespace(name="nt"))
        assert locks._try_lock(one) is True
        assert locks._try_lock(other) is False
    assert asked == 2 * [(0, 2, 1)]


@posix
def test_a_lock_is_held_by_one_and_gone_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"

    def take_and_die() -> None:
        with locked(path, "busy"):
            os._exit(137)

    assert forked(take_and_die) == 137
    with locked(path, "busy"), pytest.raises(FileError, match="busy"), locked(path, "busy"):
        pass


def test_who_only_looks_at_a_lock_makes_no_file_and_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not is_locked(path)
    assert not path.exists()
    with locked(path, "busy"):
        assert is_locked(path)
    assert not is_locked(path)
    assert path.read_bytes() == b""
    with locked(path, "busy"):
        pass


def test_who_locks_waits_for_who_only_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that asks where a run stands, in the moment its worker starts, must not keep it from starting."""
    path = tmp_path / ".lock"
    looking = open(path, "ab")  # noqa: SIM115  closed while `locked` waits
    locks._try_lock(looking)
    monkeypatch.setattr(locks.time, "sleep", lambda _s: looking.close())
    with locked(path, "busy"):
        assert looking.closed
        assert is_locked(path)


@pytest.mark.parametrize("reference", ["models:../x", "models:a/../../x", "models:/etc/passwd"])
def test_a_reference_never_leaves_its_root(tmp_path: Path, reference: str) -> None:
    with pytest.raises(FileError, match="leads outside its folder"):
        Roots({"models": (str(tmp_path),)}).resolve(reference)


def test_a_reference_needs_a_known_root_and_an_existing_file(tmp_path: Path) -> None:
    roots = Roots({"models": (str(tmp_path),)})
    with pytest.raises(ConfigError, match="is not of the form root:path"):
        roots.resolve("x.safetensors")
    with pytest.raises(ConfigError, match='Root "loras" of'):
        roots.resolve("loras:x.safetensors")
    with pytest.raises(FileError, match="was not found in"):
        roots.resolve("models:x.safetensors")
