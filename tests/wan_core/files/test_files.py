"""Files, safely: names, confinement, whole writes; saves that neither a crash nor a full disk can harm."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import wan_core.files.locks as locks
import wan_core.files.writing as files
import wan_core.metrics.jsonl as jsonl
import wan_core.session.saving as saving
import wan_core.train.saves as saves
from tests.support.dying import Dying, forked, steps_of
from tests.support.metrics_file import read_metrics
from tests.support.tiny_run import TinyRun, make_run
from wan_core.control import SignalControl
from wan_core.errors import CheckpointError, ConfigError
from wan_core.events import CheckpointSaved, Event, Note
from wan_core.export import publish_file
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
from wan_core.job import DataConfig, RunConfig, disk_sentence
from wan_core.job.choose import choose_run
from wan_core.job.config import read_status
from wan_core.load import ModelPlan
from wan_core.session.train_job import run_job
from wan_core.train import SaveStore, TrainConfig
from wan_core.train.saved_step import Manifest

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
        f"Folder {tmp_path / 'absent'} does not exist, so x cannot be written. Make it, or choose another."
    )
    (tmp_path / "absent").write_text("a file")
    with pytest.raises(FileError, match=r"absent is not a folder, so x cannot be written"):
        atomic_write_bytes(tmp_path / "absent" / name, b"data")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@posix
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_written_file_has_the_mode_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "lora.safetensors"
    with umask(mask):
        atomic_write_bytes(path, b"new")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        atomic_write_bytes(path, b"again")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_files_of_a_saved_step_have_the_mode_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    with umask(mask):
        saved = commit(SaveStore(tmp_path), 1)
    for file in saved.folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == mode, file.name


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


@pytest.mark.parametrize("held", [PermissionError(errno.EACCES, "held"), "a mapping"])
def test_a_save_and_a_file_kept_aside_wait_as_patiently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: OSError | str
) -> None:
    """A virus scanner holds a new folder for a moment; ComfyUI maps a LoRA it has loaded (error 1224 of Windows)."""
    if held == "a mapping":
        held = OSError(errno.EINVAL, "mapped")
        held.winerror = 1224  # type: ignore[attr-defined]
    real, refused = os.replace, set[str]()

    def busy(source: str, target: str, **folders: int) -> None:
        if target not in refused:
            refused.add(target)
            raise held  # type: ignore[misc]
        real(source, target, **folders)

    store = SaveStore(tmp_path / "run")
    commit(store, 1).lora_file.write_bytes(b"damaged")
    (tmp_path / "new").write_bytes(b"ours")
    (tmp_path / "lora.safetensors").write_bytes(b"somebody's")
    monkeypatch.setattr(files.os, "replace", busy)
    monkeypatch.setattr(files.time, "sleep", lambda _s: None)
    commit(store, 1)
    assert holds(store, 1)
    publish_file(tmp_path / "new", tmp_path / "lora.safetensors", "job")
    assert (tmp_path / "lora.safetensors").read_bytes() == b"ours"
    assert len(refused) == 4, "the damaged save, the new one, the LoRA kept aside, the LoRA"


SHARED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from wan_core.files import atomic_write_bytes
os.getpid = lambda: 1
for number in range(150):
    atomic_write_bytes(Path(sys.argv[2]) / "status.json", sys.argv[3].encode() * (1 + number % 7) * 1000)
"""


@pytest.mark.lasts(1)
def test_two_containers_that_share_a_folder_never_mix_their_files(tmp_path: Path) -> None:
    """In each of them the writer is process 1."""
    root = Path(__file__).parents[3]
    writers = [
        subprocess.Popen([sys.executable, "-c", SHARED, str(root), str(tmp_path), name], stderr=subprocess.PIPE)
        for name in "ab"
    ]
    mixed = looks = 0
    while any(writer.poll() is None for writer in writers):
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


@posix
def test_a_run_that_was_copied_by_hard_links_trains_and_the_copy_stays_as_it_was(tmp_path: Path) -> None:
    """`cp -al`, and programs that make one file of two with the same bytes."""
    run = make_run(tmp_path, train=replace(SETTINGS, steps=2))
    train(run)
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy, copy_function=os.link)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    files.atomic_write_json(run.directory / "run.json", replace(run.config, train=SETTINGS).to_dict())
    train(run)
    assert read_status(run.directory).step == 4
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert (run.directory / "metrics.jsonl").read_bytes().startswith(before[copy / "metrics.jsonl"])


@posix
@pytest.mark.parametrize(
    ("name", "kind"),
    [("metrics.jsonl", "link"), ("metrics.jsonl", "fifo"), ("saves", "link"),
     ("samples", "link"), ("saves", "dangling link"), (".lock", "fifo")],
)  # fmt: skip
def test_a_strangers_run_folder_writes_nothing_outside_and_hangs_nobody(tmp_path: Path, name: str, kind: str) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "metrics.jsonl").write_text("someone's")
    target = {"saves": outside, "samples": outside}.get(name, outside / "metrics.jsonl")
    (run.directory / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(run.directory / name)
    else:
        (run.directory / name).symlink_to(target if kind == "link" else tmp_path / "absent")
    with pytest.raises(FileError, match=rf"{re.escape(name)} is a link or no"):
        train(run)
    assert os.listdir(outside) == ["metrics.jsonl"]
    assert (outside / "metrics.jsonl").read_text() == "someone's"
    assert not (tmp_path / "absent").exists()


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


def test_a_save_reaches_the_disk_before_it_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, the folder that names them, then the rename, then `saves` and the run that hold the first one."""
    order: list[str] = []
    write, sync, replaced = saves._write, saves.fsync_folder, saves.replace_patiently

    def named(path: Path) -> str:
        return "staged" if path.name.endswith(".partial") else path.name

    def tell(what: str, path: Path) -> None:
        order.append(f"{what} {named(path)}")

    monkeypatch.setattr(saves, "_write", lambda path, *given: (tell("write", path), write(path, *given))[1])
    monkeypatch.setattr(saves, "fsync_folder", lambda path: (tell("sync", path), sync(path)))
    monkeypatch.setattr(
        saves, "replace_patiently", lambda source, target, run: (tell("rename to", target), replaced(source, target))
    )
    commit(SaveStore(tmp_path / "run"), 1)
    assert order == [
        "write lora.safetensors", "write state.safetensors", "write manifest.json", "sync staged",
        "rename to step-000001", "sync saves", "sync run",
    ]  # fmt: skip


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


# ---- saved steps --------------------------------------------------------------------------------


def state_of(step: int) -> dict[str, torch.Tensor]:
    return {"lora.a": torch.full((300,), float(step)), "optimizer.a.step": torch.tensor(float(step))}


def commit(store: SaveStore, step: int) -> saves.SavedStep:
    return store.commit(step, "job", b"lora of %d" % step * 50, state_of(step), {"step": step})


def holds(store: SaveStore, step: int) -> bool:
    saved = store.read(step)
    return (
        saved is not None
        and torch.equal(saved.read_state()["lora.a"], state_of(step)["lora.a"])
        and saved.lora_file.read_bytes() == b"lora of %d" % step * 50
    )


class DyingSave(Dying):
    """Also in the middle of a write."""

    def write(self, path: Path, data: bytes, _run: Path) -> str:
        """`saves._write`, with its steps counted and torn."""
        file = self.wrap(open)(path, "wb", buffering=0)
        half = len(data) // 2
        self.wrap(file.write)(data[:half])
        self.wrap(file.write)(data[half:])
        os.fsync(file.fileno())
        file.close()
        return hashlib.sha256(data).hexdigest()

    def install(self) -> None:
        """In the child only; nothing is put back."""
        saves._write = self.write
        for name in ("mkdir", "replace", "rename", "rmdir", "unlink", "fsync"):
            setattr(os, name, self.wrap(getattr(os, name)))


@posix
@pytest.mark.parametrize("moment", ["before", pytest.param("after", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "earlier",
    [  # an older step lies beside a damaged one and beside a killed save, too
        "nothing",
        "a damaged step",
        pytest.param("a killed save", marks=pytest.mark.soak),
        pytest.param("an older step", marks=pytest.mark.soak),
    ],
)
@pytest.mark.lasts(1)
def test_a_crash_at_any_io_call_of_a_save_leaves_the_old_state_or_the_new(
    tmp_path: Path, earlier: str, moment: str
) -> None:
    def prepare(folder: Path) -> SaveStore:
        store = SaveStore(folder)
        if earlier != "nothing":
            commit(store, 1)
        if earlier == "a damaged step":
            commit(store, 2).lora_file.write_bytes(b"damaged")
        if earlier == "a killed save":
            (store.folder / ".step-000002.partial").mkdir()
            (store.folder / ".step-000002.partial" / "lora.safetensors").write_bytes(b"half")
        return store

    counted = prepare(tmp_path / "count")
    total = steps_of(lambda: commit(counted, 2), DyingSave(-1, ""))
    print(f"{total} I/O calls, {earlier}, {moment}")  # noqa: T201
    assert total >= 15
    old = 0
    for number in range(1, total + 1):
        store = prepare(tmp_path / str(number))

        def save_and_die(store: SaveStore = store, number: int = number) -> None:
            DyingSave(number, moment).install()
            commit(store, 2)

        assert forked(save_and_die) == 137
        latest = store.latest()
        found = latest.step if latest is not None else 0
        assert found in ((0, 2) if earlier == "nothing" else (1, 2)), f"call {number}"
        assert found == 0 or holds(store, found), f"call {number}"
        assert earlier == "nothing" or holds(store, 1), f"call {number}"
        old += found != 2
        commit(store, 2)
        assert holds(store, 2), f"call {number}: the save could not be repeated"
    assert 0 < old < total + 1


@posix
def test_a_step_damaged_again_and_again_can_be_saved_again_and_again(tmp_path: Path) -> None:
    """The damaged ones are moved aside, never deleted, also under a process id that comes back (containers)."""
    store = SaveStore(tmp_path)
    for _ in range(3):
        commit(store, 1).lora_file.write_bytes(b"damaged")
    commit(store, 1)
    assert holds(store, 1)
    assert len([name for name in os.listdir(store.folder) if ".damaged" in name]) == 3
    assert [path.name for path in store.set_aside()] == [f".step-000001.damaged.{number}" for number in (1, 2, 3)]


def test_a_session_says_where_damaged_steps_lie_that_nobody_deletes(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    aside = run.directory / "saves" / ".step-000002.damaged.1"
    aside.mkdir(parents=True)
    (aside / "lora.safetensors").write_bytes(bytes(3 << 20))
    notes = [event.text for event in train(run) if isinstance(event, Note) and "damaged" in event.text]
    assert notes == [
        "1 damaged saved step of tiny (3.0 MiB) was moved aside in its folder saves (.step-000002.damaged.1). Nothing "
        "reads them; delete them if you need the room."
    ]
    assert (aside / "lora.safetensors").stat().st_size == 3 << 20


def test_a_state_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    store = SaveStore(tmp_path)
    commit(store, 1)
    with pytest.raises(CheckpointError, match=r"lora\.a is not finite"):
        store.commit(2, "job", b"", {"lora.a": torch.tensor([float("nan")])}, {})
    assert os.listdir(store.folder) == ["step-000001"]


def test_a_step_already_saved_is_kept_byte_for_byte(tmp_path: Path) -> None:
    store = SaveStore(tmp_path)
    first = commit(store, 1)
    before = {file.name: file.stat().st_mtime_ns for file in first.folder.iterdir()}
    store.commit(1, "job", b"other", state_of(9), {"step": 1})
    assert {file.name: file.stat().st_mtime_ns for file in first.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('\\"step\\": 2', '\\"step\\": 3'), ('\\"step\\": 2', '\\"step\\": -'), ('"version": 1', '"version": 2'),
        ('"job_id": "job"', '"job_id": "jab"'), ('"{', '"['), ('"step": 2', '"step": 3'), ('"step":', '"stap":'),
        ('"manifest_sha256"', '"manifest_sha257"'), ('"{\\"step', '"{\\"stap'),
    ],
)  # fmt: skip
def test_a_manifest_with_one_wrong_character_is_passed_over_for_the_save_before(
    tmp_path: Path, old: str, new: str
) -> None:
    store = SaveStore(tmp_path)
    for step in (1, 2):
        commit(store, step)
    manifest = store.folder / "step-000002" / "manifest.json"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new, 1))
    assert store.read(2) is None
    latest = store.latest("job")
    assert latest is not None
    assert latest.step == 1
    commit(store, 2)
    assert holds(store, 2)


@pytest.mark.parametrize(
    "progress", ['{"step": 3}', "{}", "[]", "2", "null", '{"step": "2"}', '{"step": true}', '{"step": 2.0}', "{"]
)
def test_a_manifest_whose_counters_are_not_those_of_its_folder_is_passed_over(tmp_path: Path, progress: str) -> None:
    store = SaveStore(tmp_path)
    commit(store, 1)
    manifest = commit(store, 2).folder / "manifest.json"
    _rewrite(manifest, progress=progress)
    assert store.read(2) is None
    assert store.latest() == store.read(1)
    _rewrite(manifest, progress='{"step": 2}')
    assert holds(store, 2)


def test_a_manifest_without_a_checksum_of_its_own_is_passed_over(tmp_path: Path) -> None:
    store = SaveStore(tmp_path)
    manifest = commit(store, 2).folder / "manifest.json"
    data = json.loads(manifest.read_text())
    for checksum in ({}, {"manifest_sha256": ""}):
        manifest.write_text(json.dumps({k: v for k, v in data.items() if k != "manifest_sha256"} | checksum))
        assert store.read(2) is None


def _rewrite(manifest: Path, **changes: str) -> None:
    """A manifest that says something else, with its checksum right."""
    known = Manifest.from_dict(json.loads(manifest.read_text()) | changes)
    manifest.write_text(json.dumps(replace(known, manifest_sha256=known.checksum()).to_dict()))


@posix
def test_marking_a_save_as_suspect_writes_through_no_link(tmp_path: Path) -> None:
    store = SaveStore(tmp_path / "run")
    outside = tmp_path / "outside.txt"
    for step, target in ((1, outside), (2, tmp_path / "keys")):
        (commit(store, step).folder / "suspect.txt").symlink_to(target)
    (tmp_path / "keys").write_text("mine")
    before = (tmp_path / "keys").stat().st_mtime_ns
    assert store.suspect(1) == [1, 2]
    assert not outside.exists()
    assert (tmp_path / "keys").stat().st_mtime_ns == before


@pytest.mark.parametrize("file", ["manifest.json", "lora.safetensors", "state.safetensors"])
def test_a_save_the_disk_cannot_read_never_hides_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    store = SaveStore(tmp_path)
    for step in (1, 2):
        commit(store, step)
    real = files.open_regular

    def broken(path: Path, **options: Any) -> Any:
        if path == store.folder / "step-000002" / file:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **options)

    monkeypatch.setattr("wan_core.files.reading.open_regular", broken)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_saves_of_another_job_are_refused_by_the_engine_and_the_next_queue_starts_a_new_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    train(run)
    for step in (2, 4):
        manifest = run.directory / "saves" / f"step-{step:06d}" / "manifest.json"
        _rewrite(manifest, job_id="0" * 32)
    with pytest.raises(
        CheckpointError, match=r"belongs to another job\. Queue Train Wan LoRA again: it will start a new"
    ):
        train(run)
    decision = choose_run(run.directory.parent, run.config)
    assert (decision.action, decision.directory.name) == ("start", "tiny_002")
    assert decision.note == "New run tiny_002: tiny holds saved steps of another job."


@posix
def test_what_killed_writes_left_in_a_run_goes_when_it_is_trained_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=replace(SETTINGS, steps=1))
    old, young = (f".status.json.{digit * 16}.partial" for digit in "0a")
    places = [run.directory, run.directory / "saves", run.directory / "samples"]
    for place in places:
        place.mkdir(exist_ok=True)
        for name in (old, young):
            (place / name).write_bytes(b"half")
        os.utime(place / old, (0, 0))
    train(run)
    assert [[(place / name).exists() for name in (old, young)] for place in places] == 3 * [[False, True]]


def test_what_killed_saves_left_goes_and_nothing_else(tmp_path: Path) -> None:
    store = SaveStore(tmp_path)
    commit(store, 1)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "lora.safetensors").write_bytes(b"someone's")
    (store.folder / ".step-000009.partial").symlink_to(tmp_path / "outside")
    for name in (".step-000002.partial", f".step-000002.{'ab' * 8}.partial", ".step-000003.partial"):
        (store.folder / name).mkdir()
        (store.folder / name / "state.safetensors").write_bytes(b"half")
    (store.folder / ".step-000003.partial" / "notes.txt").write_text("mine")
    store.clean()
    assert sorted(os.listdir(store.folder)) == [".step-000003.partial", ".step-000009.partial", "step-000001"]
    assert (tmp_path / "outside" / "lora.safetensors").read_bytes() == b"someone's"
    commit(store, 9)
    assert holds(store, 9)


# ---- a full disk --------------------------------------------------------------------------------

SETTINGS = TrainConfig(
    steps=4, save_every_n_steps=2, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0, save_dtype="fp32"
)


def train(run: TinyRun) -> list[Event]:
    events: list[Event] = []
    run_job(run.directory, run.roots, emit=events.append, control=SignalControl())
    return events


def final(run: TinyRun) -> bytes:
    return (run.directory / "saves" / "step-000004" / "state.safetensors").read_bytes()


class FullDisk:
    """`saves._write` of `times` calls fails as on a full disk, from the first save on, or with each of `numbers`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, *numbers: int) -> None:
        self.left = times
        real, numbers = saves._write, numbers or (errno.ENOSPC,)

        def write(path: Path, data: bytes, run: Path) -> str:
            if self.left:
                number = numbers[self.left % len(numbers)]
                self.left -= 1
                path.write_bytes(data[: len(data) // 3])  # torn, as a full disk leaves it
                raise OSError(number, os.strerror(number), str(path))
            return real(path, data, run)

        monkeypatch.setattr(saves, "_write", write)
        monkeypatch.setattr(saving, "_RETRY_SAVE_S", 0.001)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run on a disk with room."""
    run = make_run(tmp_path_factory.mktemp("straight"), train=SETTINGS)
    train(run)
    return run


@pytest.mark.lasts(1)
@pytest.mark.parametrize("times", [1, 3, 7, pytest.param(2, marks=pytest.mark.soak)])
def test_a_full_disk_pauses_the_run_which_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: TinyRun, times: int
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    FullDisk(monkeypatch, times)
    events = train(run)
    notes = [e.text for e in events if isinstance(e, Note) and e.level == "warning"]
    assert len(notes) == times
    assert notes[0].startswith("Step 2 cannot be saved (No space left on device: tiny has")
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [2, 4]
    assert final(run) == final(straight)
    assert sorted(os.listdir(run.directory / "saves")) == ["step-000002", "step-000004"]


def test_a_folder_that_takes_nothing_for_a_while_pauses_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice for each reason, one after another."""
    numbers = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS, errno.EDQUOT, errno.ENOENT)
    run = make_run(tmp_path, train=SETTINGS)
    FullDisk(monkeypatch, 2 * len(numbers), *numbers)
    events = train(run)
    notes = [e.text for e in events if isinstance(e, Note)]
    assert [sum(os.strerror(number) in text for text in notes) for number in numbers] == [2] * len(numbers)
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [2, 4]


def test_saves_moved_away_while_running_are_written_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)

    def emit(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.step == 2:
            (run.directory / "saves").rename(tmp_path / "elsewhere")

    run_job(run.directory, run.roots, emit=emit, control=SignalControl())
    assert SaveStore(run.directory).steps() == [4]
    assert read_status(run.directory).state == "done"


def test_a_disk_that_will_be_too_small_is_named_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(1000, 990, 10))
    events = train(run)
    texts = [e.text if isinstance(e, Note) else e.name for e in events]
    (warning,) = [text for text in texts if text.startswith("Only 0.0 GiB are free; two saved steps need about")]
    assert texts.index(warning) < texts.index("step")


@pytest.mark.parametrize("full_by", [errno.ENOSPC, errno.EDQUOT])  # of a quota the disk's free room says nothing
def test_a_disk_that_is_full_at_the_start_says_how_much_a_saved_step_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_by: int
) -> None:
    run = make_run(tmp_path, train=SETTINGS)

    def full(_directory: Path, _status: Any) -> None:
        raise OSError(full_by, os.strerror(full_by))

    monkeypatch.setattr(saving, "write_status", full)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(1000, 990, 10))
    # Rank 4, two blocks: eight linears of 128 x 128 and two of 128 x 256 each, 16 bytes for every value.
    takes = 16 * 4 * 2 * (8 * 256 + 2 * 384) / 2**20
    with pytest.raises(
        FileError,
        match=rf"no room for run tiny \({os.strerror(full_by)}\): .* 0\.0 MiB free, .* takes {takes:.1f} MiB\. Make",
    ):
        train(run)


def test_a_file_that_finds_no_room_is_named_with_its_folder_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write says it: without a name

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as refusal:
        atomic_write_bytes(tmp_path / "status.json", b"new")
    said = disk_sentence(refusal.value)
    drive = next(str(place) for place in tmp_path.resolve().parents if place.is_mount())
    assert re.fullmatch(
        rf"The drive {re.escape(drive)}, which holds folder {tmp_path.name}, is too full to write status\.json: "
        r"[\d.]+ .iB are free\. Make room on it\. .*",
        said,
    )
    for step, size in ((999_999, 1), (1_000_000, 3 << 20)):
        (tmp_path / "saves" / f"step-{step:06d}").mkdir(parents=True)
        (tmp_path / "saves" / f"step-{step:06d}" / "lora.safetensors").write_bytes(bytes(size))
    (tmp_path / "saves" / ".step-2000000.partial").mkdir()
    for name in ("status.json", "saves/.step-2000000.partial/lora.safetensors"):
        said = disk_sentence(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / name)))
        assert " has too little room: the next save needs about 3.0 MiB, and " in said
        assert " are free. Make room on it. What helps most, in this order: delete runs" in said
        assert said.endswith("off that drive. Saved steps are kept; press Run again to resume.")
        assert "status.json" not in said, "a small file that finds no room is no news beside the save"


def test_a_full_disk_says_what_the_rest_of_the_run_takes(tmp_path: Path) -> None:
    run = tmp_path / "smoke"
    (run / "saves" / "step-000060").mkdir(parents=True)
    (run / "saves" / "step-000060" / "lora.safetensors").write_bytes(bytes(3 << 20))
    full = OSError(errno.ENOSPC, "No space left on device", str(run / "status.json"))
    for train, said in (
        (TrainConfig(steps=155), "about 3.0 MiB, all 5 to come 15.0 MiB, and "),
        (TrainConfig(steps=155, keep_last_saves=2), "about 3.0 MiB, all 2 to come 6.0 MiB, and "),
        (TrainConfig(steps=80), "about 3.0 MiB, and "),
    ):
        config = RunConfig(
            run_name="smoke",
            model=ModelPlan(base_file="diffusion_models:wan.safetensors"),
            data=DataConfig(fingerprint="0" * 64),
            train=replace(train, save_every_n_steps=20),
        )
        files.atomic_write_json(run / "run.json", config.to_dict())
        assert said in disk_sentence(full)


def test_a_full_disk_names_the_folder_as_comfyui_calls_it_and_nothing_above(tmp_path: Path) -> None:
    run = tmp_path / "output" / "wan_trainer" / "my_run"
    run.mkdir(parents=True)
    said = disk_sentence(OSError(errno.ENOSPC, "No space left on device", str(run / "status.json")))
    assert ", which holds folder output/wan_trainer/my_run, is too full" in said
    assert tmp_path.name not in said


def test_a_full_disk_leaves_the_last_saved_step_and_no_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SaveStore(tmp_path)
    commit(store, 1)
    for times in (1, 2, 3):
        real = saves._write
        left = [times]

        def write(path: Path, data: bytes, run: Path, left: list[int] = left, real: Any = real) -> str:
            left[0] -= 1
            if left[0] == 0:
                path.write_bytes(data[:3])
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(path, data, run)

        with monkeypatch.context() as patch:
            patch.setattr(saves, "_write", write)
            with pytest.raises(OSError, match="No space"):
                commit(store, 2)
        assert os.listdir(store.folder) == ["step-000001"]
        assert holds(store, 1)


class StopAfter:
    """A control that asks for a stop once `ready` says so."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def stop_reason(self) -> str:
        return "stopped by the user" if self._ready() else ""

    def take(self, command: str) -> bool:
        return False

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, Any] | None:
        return None


def test_a_run_that_waits_for_room_can_be_stopped_and_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    run_job(run.directory, run.roots, emit=lambda _e: None, control=SignalControl(), max_steps=2)
    disk = FullDisk(monkeypatch, 1000)
    stop = StopAfter(lambda: disk.left < 998)
    finished = run_job(run.directory, run.roots, emit=lambda _e: None, control=stop)
    assert (finished.state, finished.step) == ("stopped", 2)
    reason = r"stopped by the user; step 4 could not be saved \(No space left on device: tiny has [\d.]+ .iB free, a"
    assert re.match(reason + r" saved step takes [\d.]+ MiB\)$", finished.result["reason"])
    latest = SaveStore(run.directory).latest()
    assert latest is not None
    assert latest.step == 2
    assert read_status(run.directory).state == "stopped"
    disk.left = 0
    train(run)
    assert read_status(run.directory).state == "done"


def test_an_error_of_the_disk_that_waiting_cannot_mend_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    FullDisk(monkeypatch, 1000, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        train(run)
    assert read_status(run.directory).state == "failed"


def test_a_status_file_that_cannot_be_written_while_the_disk_is_full_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    real, left = saving.write_status, [3]

    def full(directory: Path, status: Any) -> None:
        if status.step and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        real(directory, status)

    monkeypatch.setattr(saving, "write_status", full)
    monkeypatch.setattr(saving, "_RETRY_SAVE_S", 0.001)
    events = train(run)
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [2, 4]
    assert read_status(run.directory).state == "done"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, the disk that is always full")
def test_a_metrics_file_on_a_full_disk_costs_lines_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    (run.directory / "metrics.jsonl").touch()
    monkeypatch.setattr(jsonl, "open_append", lambda _path: open("/dev/full", "ab", buffering=0))  # noqa: SIM115  closed by the sink
    train(run)
    assert read_status(run.directory).state == "done"
    assert SaveStore(run.directory).steps() == [2, 4]


def test_a_torn_last_line_of_the_metrics_costs_that_line_only(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    run_job(run.directory, run.roots, emit=lambda _e: None, control=SignalControl(), max_steps=2)
    metrics = run.directory / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"event": "step", "step": 3, "lo\xff')
    assert [m["step"] for m in read_metrics(metrics) if m["event"] == "step"] == [1, 2]
    train(run)
    assert [m["step"] for m in read_metrics(metrics) if m["event"] == "step"] == [1, 2, 3, 4]
    assert len({m["loss"] for m in read_metrics(metrics) if m["event"] == "step"}) == 4
