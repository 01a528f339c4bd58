"""Where links are followed: above a folder of ours, as its owner made them, and never below it, as a stranger may."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from wan_core.cache import LatentCache, trim
from wan_core.cache.known_entries import KnownEntries
from wan_core.cache.pictures import write_picture
from wan_core.cache.upkeep import clean_leftovers
from wan_core.errors import WanTrainerError
from wan_core.export import publish_file
from wan_core.export.published import withdraw_file
from wan_core.files import (
    FileError,
    atomic_write_bytes,
    atomic_write_json,
    clean_partials,
    freed_by,
    inside,
    locked,
    make_folder,
    open_inside,
    open_new,
    own_folder,
    remove_empty,
    remove_file,
    replace_patiently,
)
from wan_core.importers.extracted import ExtractedFiles
from wan_core.job.choose import choose_run
from wan_core.job.config import RunStatus, read_status, write_status
from wan_core.train import SaveStore
from wan_core.video import VideoProcess

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links on Windows need rights that a test account lacks")

KEY = "ab" + "0" * 62
OLD = ".x.0123456789abcdef.partial"


@pytest.fixture(params=["by descriptor", "by path"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Folders are held open; or, as on Windows, their real paths are compared."""
    if request.param == "by path":
        monkeypatch.setattr(inside, "_BY_DESCRIPTOR", False)
    return request.param


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody's folder, with files under each name of ours."""
    folder = tmp_path / "outside"
    for name in ("ab", "step-000001", "step-000001.damaged"):
        (folder / name).mkdir(parents=True)
    for name in (f"ab/{KEY}.safetensors", "x", "index.json", OLD, f"ab/{OLD}", "step-000001/lora.safetensors",
                 f"latent-{KEY}", f"{KEY}.json", ".removed", ".lock"):  # fmt: skip
        (folder / name).write_bytes(b"somebody's")
        os.utime(folder / name, (1, 1))
    return folder


def all_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, with its time; folders too."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in [folder, *sorted(folder.rglob("*"))]
    }


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def save(run: Path) -> None:
    SaveStore(run).commit(1, "job", b"lora", {"a": torch.ones(2)}, {"step": 1})


def add_to(unpacked: Path) -> None:
    ExtractedFiles(unpacked, []).add("a.mp4", [b"frames"], ".mp4")


def picture(root: Path) -> None:
    for number in range(16):  # one of them in the folder of the link
        write_picture(root, torch.full((2, 2, 3), number / 16))


def write_clip(root: Path) -> None:
    with VideoProcess() as video:
        video.write(root / "clips" / "x.mp4", np.zeros((2, 16, 16, 3), np.uint8), 16, below=root)


def evict(root: Path) -> None:
    cache = LatentCache(root)
    if not (root / "latents").exists():
        cache.write_latent(KEY, torch.zeros(16, 1, 2, 2))
    for file in root.glob("latents/*/*"):
        os.utime(file, (1, 1))
    trim(cache, 0)


WRITERS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a file": (lambda root: atomic_write_bytes(root / "samples" / "x", b"new", root), ("samples",)),
    "a file, deep": (lambda root: atomic_write_json(root / "a" / "ab" / "x", {}, root), ("a", "a/ab")),
    "a new file": (lambda root: open_new(root / "samples" / "new", root).close(), ("samples",)),
    "a new folder": (lambda root: make_folder(root / "samples" / "new", root), ("samples",)),
    "an own folder": (lambda root: own_folder(root, "samples"), ("samples",)),
    "a lock": (lambda root: locked(root / "a" / ".lock", "busy", root).__enter__(), ("a", "a/.lock")),
    "removing": (lambda root: remove_file(root / "samples" / "x", root), ("samples",)),
    "removing a folder": (lambda root: remove_empty(root / "samples" / "step-000001.damaged", root), ("samples",)),
    "renaming": (lambda root: replace_patiently(root / "s" / "x", root / "s" / "index.json", root), ("s",)),
    "leftovers": (lambda root: clean_partials(root / "samples", 0, root), ("samples",)),
    "reading": (lambda root: open_inside(root / "samples" / "x", root), ("samples", "samples/x")),
    "a size": (lambda root: freed_by(root / "samples" / "x", root), ("samples", "samples/x")),
    "a save": (save, ("saves",)),
    "a suspect": (lambda root: SaveStore(root).suspect(1), ("saves", "saves/step-000001")),
    "pruning": (lambda root: SaveStore(root).prune(1, ()), ("saves", "saves/step-000001")),
    "cleaning": (lambda root: SaveStore(root).clean(), ("saves", "saves/.step-000001.partial")),
    "an entry": (lambda root: LatentCache(root).write_latent(KEY, torch.zeros(16, 1, 2, 2)), ("latents", "latents/ab")),
    "a doubt": (lambda root: KnownEntries(root).doubt(f"latent-{KEY}"), ("doubts", f"doubts/latent-{KEY}")),
    "a settled doubt": (lambda root: KnownEntries(root).note_sound(f"latent-{KEY}", None), ("doubts",)),
    "a picture": (picture, ("pictures", *(f"pictures/{n:02x}" for n in range(256)))),
    "a clip": (write_clip, ("clips",)),
    "a member": (add_to, ("_cache/unpacked", "_cache/unpacked/incoming", "_cache/unpacked/3c")),
    "evicting": (evict, (".removed", ".lock", "latents", "latents/ab")),
    "leftovers of a cache": (lambda root: clean_leftovers(LatentCache(root), 0), ("latents", "latents/ab", "sets")),
}


@pytest.mark.lasts(2)
@pytest.mark.parametrize("name", WRITERS)
def test_a_link_below_a_folder_of_ours_is_never_written_or_deleted_through(
    name: str, how: str, tmp_path: Path, outside: Path
) -> None:
    work, places = WRITERS[name]
    before = all_of(outside)
    linked = 0
    for number, place in enumerate(places if name != "a picture" else [*places[:1], "all shelves"]):
        root = tmp_path / f"root{number}"
        for one in places[1:] if place == "all shelves" else (place,):
            same = outside / Path(one).name
            link(root / one, same if "/" in one and same.exists() else outside)
            linked += 1
        with suppress(WanTrainerError, OSError):
            work(root / "_cache" / "unpacked" if name == "a member" else root)
        assert all_of(outside) == before, f"{name}: {place}, {how}"
    assert linked == len(places)


def test_what_is_refused_says_which_folder_is_a_link(how: str, tmp_path: Path, outside: Path) -> None:
    link(tmp_path / "run" / "samples" / "validate", outside)
    with pytest.raises(FileError) as refusal:
        atomic_write_bytes(tmp_path / "run" / "samples" / "validate" / "x", b"", tmp_path / "run")
    assert str(refusal.value) == (
        "run/samples/validate is a link or a file. Move it away, because files would be saved outside of run."
    )
    with pytest.raises(FileError, match="leads outside its folder"):
        atomic_write_bytes(tmp_path / "run" / ".." / "x", b"", tmp_path / "run")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[[Path], Path]:
    """Puts a folder on another drive, with a link in its place, as people do whose disk is full."""
    count = iter(range(9))

    def moved(place: Path) -> Path:
        real = tmp_path / "other drive" / str(next(count))
        real.mkdir(parents=True)
        link(place, real)
        return real

    return moved


@pytest.mark.parametrize("linked", ["output", "output/wan_trainer", "output/wan_trainer/cat"])
def test_a_run_on_another_drive_is_written_through_the_link_to_it(
    linked: str, how: str, tmp_path: Path, elsewhere: Callable[[Path], Path]
) -> None:
    real = elsewhere(tmp_path / linked)
    run = tmp_path / "output" / "wan_trainer" / "cat"
    run.mkdir(parents=True, exist_ok=True)
    save(run)
    write_status(run, RunStatus(state="done", step=1, steps=1))
    atomic_write_json(run / "samples" / "index.json", [], run)
    with locked(run / ".lock", "busy"):
        store = SaveStore(run)
        assert [store.read(step) is not None for step in store.steps()] == [True]
        assert store.suspect(1) == [1]
    inner = Path("output/wan_trainer/cat").relative_to(linked)
    found = {str(path.relative_to(real / inner)) for path in (real / inner).rglob("*") if path.is_file()}
    assert found == {
        *(".lock", "status.json", "samples/index.json"),
        *(f"saves/step-000001/{name}.safetensors" for name in ("lora", "state")),
        *(f"saves/step-000001/{name}" for name in ("manifest.json", "suspect.txt")),
    }
    assert read_status(run).state == "done"
    assert remove_file(run / "samples" / "index.json", run)
    assert not (real / inner / "samples" / "index.json").exists()


def test_a_cache_on_another_drive_is_written_and_trimmed_there(
    how: str, tmp_path: Path, elsewhere: Callable[[Path], Path]
) -> None:
    real = elsewhere(tmp_path / "output" / "wan_trainer" / "_cache")
    root = tmp_path / "output" / "wan_trainer" / "_cache"
    LatentCache(root).write_latent(KEY, torch.zeros(16, 1, 2, 2))
    assert (real / "latents" / "ab" / f"{KEY}.safetensors").is_file()
    evict(root)
    assert not (real / "latents" / "ab" / f"{KEY}.safetensors").exists()
    assert (real / ".removed").is_file()


def test_loras_on_another_drive_are_published_there_and_a_link_among_them_stays(
    tmp_path: Path, elsewhere: Callable[[Path], Path]
) -> None:
    real = elsewhere(tmp_path / "loras" / "wan_trainer")
    (tmp_path / "new").write_bytes(b"ours")
    target = tmp_path / "loras" / "wan_trainer" / "cat.safetensors"
    publish_file(tmp_path / "new", target, "job")
    assert (real / "cat.safetensors").read_bytes() == b"ours"
    (tmp_path / "somebody's").write_bytes(b"a LoRA of theirs")
    target.unlink()
    link(target, tmp_path / "somebody's")
    with pytest.raises(FileError, match="is not a regular file"):
        publish_file(tmp_path / "new", target, "job")
    withdraw_file(target, "")
    assert (tmp_path / "somebody's").read_bytes() == b"a LoRA of theirs"


def test_a_link_to_an_empty_folder_is_no_free_name_of_a_run(tmp_path: Path, outside: Path) -> None:
    from tests.support.tiny_run import make_run

    run = make_run(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    runs = tmp_path / "runs"
    link(runs / "tiny", tmp_path / "empty")
    assert choose_run(runs, run.config).directory.name == "tiny_002"
    (runs / "tiny").unlink()
    (runs / "tiny").mkdir()
    (runs / "tiny" / OLD).write_bytes(b"half of a run.json")
    assert choose_run(runs, run.config).directory.name == "tiny", "nothing was begun there"


@pytest.mark.lasts(2)
@pytest.mark.parametrize("swaps", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_folder_exchanged_for_a_link_while_it_is_written_leads_nowhere(
    swaps: int, tmp_path: Path, outside: Path
) -> None:
    """Of two folders, one is the link of the other's name by turns; what is written lies in the folder or nowhere."""
    run, before = tmp_path / "run", all_of(outside)
    real, hidden, planted = run / "samples", run / "hidden", run / "planted"
    real.mkdir(parents=True)
    planted.symlink_to(outside)
    done, written, refused = threading.Event(), 0, 0

    def swap() -> None:
        for turn in range(20 * swaps):
            if turn >= swaps and written:  # on some runs no write comes between the first swaps
                break
            os.rename(real, hidden)
            os.rename(planted, real)
            os.rename(real, planted)
            os.rename(hidden, real)
        done.set()

    thread = threading.Thread(target=swap)
    thread.start()
    while not done.is_set():
        try:
            with suppress(FileNotFoundError):
                open_new(real / "new", run).close()
                remove_file(real / "new", run)
            remove_file(real / "x", run)
            clean_partials(real, 0, run)
            with suppress(FileNotFoundError):
                atomic_write_bytes(real / "index.json", b"ours", run, make=False)
                written += 1
        except (OSError, FileError):
            refused += 1
    thread.join()
    print(f"{swaps} swaps: {written} written, {refused} refused")  # noqa: T201
    assert written > 0
    assert all_of(outside) == before
