"""Base and cache on a disk of each machine: copied once, checked, and done without where they cannot be."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.forked import ForkServer
from tests.support.tiny_run import TWO_RANKS, TinyRun, make_run, steady
from tests.wan_core.session.test_killed_ranks import losses
from wan_core.cache import LatentCache
from wan_core.control import SignalControl
from wan_core.events import Event, Note
from wan_core.files import Roots
from wan_core.job.open import open_run
from wan_core.sampler import PreviewPrompt, SampleConfig
from wan_core.session import local_copies
from wan_core.session.session import Session


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return make_run(tmp_path)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAN_TRAINER_LOCAL", str(tmp_path / "local"))
    return tmp_path / "local"


def copied(run: TinyRun, **session: Any) -> tuple[Roots, list[str]]:
    """The roots that the run reads, and what it says."""
    said: list[Event] = []
    made = Session(
        directory=run.directory,
        config=run.config,
        roots=run.roots,
        emit=said.append,
        control=SignalControl(signals=False),
        **session,
    )
    return local_copies.local_roots(made), [event.text for event in said if isinstance(event, Note)]


def files_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mtime_ns) for file in found}


def test_a_run_reads_its_copies_which_are_made_once_and_anew_where_one_is_damaged(run: TinyRun, local: Path) -> None:
    roots, said = copied(run)
    assert said == [f"Base and cache are read from their copies in {local}."]
    made, opened = files_in(local), open_run(run.directory, roots)
    assert opened.file.header.path.is_relative_to(local)
    assert opened.cache.root == local / "cache"
    opened.check(with_start=True)
    shared = files_in(run.directory.parent / "_cache")
    assert {name: data for name, (data, _) in files_in(local / "cache").items()} == {
        name: data for name, (data, _) in shared.items() if not name.endswith("s.json")
    }
    assert copied(run)[0] == roots
    assert files_in(local) == made
    base = opened.file.header.path
    for damage in (base.read_bytes()[:-1], base.read_bytes()[:-1] + b"\x55"):
        base.write_bytes(damage)
        copied(run)
        assert base.read_bytes() == run.roots.resolve(run.config.model.base_file).read_bytes()


def test_what_previews_read_is_copied_too(run: TinyRun, local: Path) -> None:
    shared = LatentCache(run.roots.first("cache"))
    clips = shared.read_set(run.config.data.fingerprint)
    text, negative = "5" * 64, "6" * 64
    for key in (text, negative):
        shared.write_text(key, shared.read_text(clips.empty_text_key))
    prompts = (
        PreviewPrompt(negative_prompt="blurry", negative_key=negative, first_frame_key=clips.items[0].latent_key),
    )
    asked = SampleConfig(prompts=("of its own",), prompt_keys=(text,), prompt_settings=prompts)
    run = replace(run, config=replace(run.config, preview=asked))
    cache = LatentCache(copied(run)[0].first("cache"))
    assert cache.root == local / "cache"
    assert all(cache.is_sound("text", key) for key in (text, negative))


def full(monkeypatch: pytest.MonkeyPatch, _run: TinyRun) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))


def fills_up(monkeypatch: pytest.MonkeyPatch, _run: TinyRun) -> None:
    def copy(_source: Any, target: Any, _size: int) -> None:
        target.write(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", copy)


def damaged(_monkeypatch: pytest.MonkeyPatch, run: TinyRun) -> None:
    entry = next((run.directory.parent / "_cache" / "latents").rglob("*.safetensors"))
    entry.write_bytes(entry.read_bytes()[:-1] + b"\x55")


def test_a_prompt_that_a_set_lacks_is_not_copied(run: TinyRun, local: Path) -> None:
    cache = LatentCache(run.roots.first("cache"))
    clips = cache.read_set(run.config.data.fingerprint)
    data = replace(run.config.data, fingerprint=cache.write_set(replace(clips, negative_text_key="")))
    assert copied(replace(run, config=replace(run.config, data=data)))[1] == [
        f"Base and cache are read from their copies in {local}."
    ]


@pytest.mark.parametrize(
    ("break_it", "why"),
    [(full, "Free disk space."), (fills_up, "No space left on device"), (damaged, "of the cache is damaged")],
)
def test_without_a_copy_everything_is_read_where_it_lies_and_the_run_says_why(
    run: TinyRun, local: Path, monkeypatch: pytest.MonkeyPatch, break_it: Callable[..., None], why: str
) -> None:
    break_it(monkeypatch, run)
    roots, said = copied(run)
    assert roots == run.roots
    assert len(said) == 1
    assert said[0].startswith("Rank 0 could not copy base and cache to its disk, and reads them where they lie: ")
    assert why in said[0]
    assert not list(local.rglob("*.partial"))


def test_the_first_process_of_each_machine_copies_and_each_machine_reads_its_own(run: TinyRun, local: Path) -> None:
    """Four ranks on two machines, of which the second has a full disk."""

    def group(rank: int) -> Any:
        found = [({"cache": (str(local / "cache"),)}, ""), ({}, ""), ({}, "full"), ({}, "")]
        return SimpleNamespace(rank=rank, local_rank=rank % 2, gather=lambda _: found, leads=rank == 0)

    for rank in range(4):
        roots, said = copied(run, group=group(rank))
        assert (roots.first("cache") == local / "cache") is (rank < 2)
        assert [text.partition(" ")[0] for text in said] == (["Rank", "Base"] if rank < 2 else ["Rank"])


@pytest.mark.soak
@pytest.mark.lasts(5)
def test_two_ranks_train_from_the_copies_what_they_train_without(server: ForkServer, tmp_path: Path) -> None:
    found: list[dict[int, float]] = []
    for name, environment in {"shared": {}, "copied": {"WAN_TRAINER_LOCAL": str(tmp_path / "local")}}.items():
        run = make_run(tmp_path / name, train=steady(steps=2), plan=TWO_RANKS)
        words = ["train", str(run.directory), "--roots", str(run.roots_file)]
        worker = server.start(words, tmp_path / f"{name}.jsonl", environment=environment)
        assert worker.wait() == 0, worker.log()[-2000:]
        notes = [event["text"] for event in worker.events() if event["event"] == "note"]
        assert any("are read from their copies" in note for note in notes) is bool(environment)
        found.append(losses(run))
    assert found[0] == found[1]
    assert len(found[0]) == 2
    assert torch.isfinite(torch.tensor(list(found[0].values()))).all()
