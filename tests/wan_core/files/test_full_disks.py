"""A disk that takes nothing while a run is begun, roots or settings are written, or a LoRA is published: one sentence,
what was there stays, and nothing is left that changes what the next queue does."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tests.support.failing import KINDS, failing
from tests.support.tiny_run import make_run
from wan_core.errors import WanTrainerError
from wan_core.export import publish_file
from wan_core.export.published import withdraw_file
from wan_core.files import Roots, atomic_write_json, is_partial
from wan_core.job import RunConfig, choose_run, disk_sentence, prepare_run, read_run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the calls that fail are those of POSIX")


def lora_of(job: str, value: float = 1.0) -> bytes:
    return save({"a": torch.full((64,), value)}, {"wan_trainer.job_id": job})


@dataclass
class Place:
    """A folder with what a run, a roots file and published LoRAs need."""

    folder: Path
    config: RunConfig

    @property
    def runs(self) -> Path:
        return self.folder / "output" / "wan_trainer"

    @property
    def loras(self) -> Path:
        return self.folder / "loras" / "wan_trainer"

    def begin(self) -> str:
        """As a queue does; returns the name of the run."""
        decision = choose_run(self.runs, self.config)
        prepare_run(decision, self.config)
        return decision.directory.name

    def left(self) -> list[str]:
        """What is there, half-written files too."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def prepared(folder: Path, config: RunConfig) -> Place:
    place = Place(folder, config)
    for one in (place.runs, place.loras, folder / "temp"):
        one.mkdir(parents=True)
    (folder / "new").write_bytes(lora_of("ours", 2.0))
    (place.loras / "cat.safetensors").write_bytes(lora_of("ours"))
    (place.loras / "dog.safetensors").write_bytes(lora_of("theirs"))
    Roots({"loras": ("old",)}).write(folder / "temp" / "roots.json")
    return place


def another_name_is_not_taken(place: Place) -> None:
    assert place.begin() == "tiny"
    assert read_run(place.runs / "tiny").job_id == place.config.job_id


def old_or_new_roots(place: Place) -> None:
    assert Roots.read(place.folder / "temp" / "roots.json").folders["loras"] in (("old",), ("new",))


def old_or_new_lora(place: Place) -> None:
    assert (place.loras / "cat.safetensors").read_bytes() in (lora_of("ours"), lora_of("ours", 2.0))


def theirs_is_somewhere(place: Place) -> None:
    found = [path.read_bytes() for path in place.loras.iterdir()]
    assert lora_of("theirs") in found
    if (place.loras / "dog.safetensors").exists():
        assert (place.loras / "dog.safetensors").read_bytes() in (lora_of("theirs"), lora_of("ours", 2.0))


def nothing_more(_place: Place) -> None:
    """Only that nothing half-written is left."""


WORKS: dict[str, tuple[Callable[[Place], object], Callable[[Place], None]]] = {
    "a run": (Place.begin, another_name_is_not_taken),
    "roots.json": (lambda p: Roots({"loras": ("new",)}).write(p.folder / "temp" / "roots.json"), old_or_new_roots),
    "workflow.json": (lambda p: atomic_write_json(p.runs / "workflow.json", {"nodes": []}), nothing_more),
    "an index": (lambda p: atomic_write_json(p.runs / "samples" / "index.json", [], p.runs), nothing_more),
    "its own LoRA": (
        lambda p: publish_file(p.folder / "new", p.loras / "cat.safetensors", "ours"),
        old_or_new_lora,
    ),
    "a LoRA over another's": (
        lambda p: publish_file(p.folder / "new", p.loras / "dog.safetensors", "ours"),
        theirs_is_somewhere,
    ),
    "a LoRA taken away": (lambda p: withdraw_file(p.loras / "dog.safetensors", "ours"), theirs_is_somewhere),
}
CAN_BE_REMOVED = (errno.ENOSPC, errno.EDQUOT)
"""a full disk still deletes"""


SOME, LONG = (errno.ENOSPC, errno.EROFS, errno.EIO), pytest.mark.soak


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of small trees are made."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.mark.lasts(2)
@pytest.mark.parametrize(
    ("lasts", "numbers"),
    [(True, SOME), pytest.param(True, tuple(KINDS), marks=LONG), pytest.param(False, tuple(KINDS), marks=LONG)],
    ids=["from then on", "from then on, more kinds", "once"],
)
@pytest.mark.parametrize("name", WORKS)
def test_a_disk_that_fails_at_any_call_is_one_sentence_and_changes_no_later_queue(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, lasts: bool, numbers: tuple[int, ...]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _s: None)  # a file that is held is tried again
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    config = make_run(folder / "model").config
    work, holds = WORKS[name]
    tried = 0
    for number in numbers:
        with failing(number) as counted:
            work(prepared(folder / f"{number}", config))
        for at in range(1, counted.calls + 1):
            place = prepared(folder / f"{number}-{at}", config)
            said = ""
            with failing(number, at, lasts):
                try:
                    work(place)
                except OSError as error:
                    said = disk_sentence(error)
                except WanTrainerError as error:
                    said = str(error)
            tried += 1
            assert not any(no in said for no in ("\n", str(folder), "Errno", ".partial")), f"{number}, {at}: {said}"
            if number in CAN_BE_REMOVED:
                assert said.count("too full to write") == bool(said), said
                assert not any(is_partial(Path(left).name) for left in place.left()), f"{number} at {at}"
                assert not said or not os.path.lexists(place.runs / "tiny"), f"{number} at {at}: a folder is left"
            holds(place)
    print(f"{name}: {tried} failures")  # noqa: T201
    assert tried >= 20


@pytest.mark.parametrize(
    ("number", "helps"),
    [
        (errno.EROFS, "Its drive is read-only: make it writable"),
        (errno.EACCES, "Give the account that runs this the right to write there."),
        (errno.EIO, "The drive itself failed"),
        (errno.EMFILE, "too many files open"),
    ],
)
def test_each_trouble_of_a_disk_says_what_helps(tmp_path: Path, number: int, helps: str) -> None:
    run = tmp_path / "output" / "wan_trainer" / "cat"
    run.mkdir(parents=True)
    said = disk_sentence(OSError(number, os.strerror(number), str(run / "run.json")))
    assert said.startswith(f"run.json in folder output/wan_trainer/cat cannot be used: {os.strerror(number)}. ")
    assert helps in said
