"""A saved step is the old one or the new one, whatever happens while it is written; a damaged one is passed over."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import wan_core.files.writing as files
import wan_core.train.saves as saves
from tests.support.dying import Dying, forked, steps_of, umask
from tests.support.sessions import train_here
from tests.support.tiny_run import make_run, short
from wan_core.errors import CheckpointError
from wan_core.export import publish_file
from wan_core.job.choose import choose_run
from wan_core.train import SaveStore
from wan_core.train.saved_step import Manifest

pytestmark = pytest.mark.lasts(0.1)
posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX files, which Windows does not have")


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


@posix
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_files_of_a_saved_step_have_the_mode_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    with umask(mask):
        saved = commit(SaveStore(tmp_path), 1)
    for file in saved.folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == mode, file.name


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
        pytest.param("nothing", marks=pytest.mark.soak),
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


def test_saves_of_another_job_are_refused_by_the_engine_and_the_next_queue_starts_a_new_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=short(steps=4, eval_items=0))
    train_here(run)
    for step in (2, 4):
        manifest = run.directory / "saves" / f"step-{step:06d}" / "manifest.json"
        _rewrite(manifest, job_id="0" * 32)
    with pytest.raises(
        CheckpointError, match=r"belongs to another job\. Queue Train Wan LoRA again: it starts a new run"
    ):
        train_here(run)
    decision = choose_run(run.directory.parent, run.config)
    assert (decision.action, decision.directory.name) == ("start", "tiny_002")
    assert decision.note == "New run tiny_002: tiny has saved steps of a run with other settings."
