"""A run goes on with any number of processes: each step keeps its clips, noise and dropout, shared out otherwise."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ForkServer, Worker
from tests.support.tiny_run import PLAN, TinyRun, make_run, steady
from wan_core.cache import Batches, LatentCache
from wan_core.cli.settings import change_run
from wan_core.errors import ConfigError
from wan_core.files import atomic_write_json
from wan_core.job import choose_run, foresee, read_run
from wan_core.lora import LoraConfig
from wan_core.placement import PlacementConfig
from wan_core.train import Manifest, SaveStore

ONE_THREAD = "import torch; torch.set_num_threads(1)\n"
TWELVE = steady(steps=4, save_every_n_steps=2, gradient_accumulation_steps=12)


def on(ranks: int) -> PlacementConfig:
    return PlacementConfig(mode="copy per GPU", devices="cpu", copies=ranks) if ranks > 1 else PlacementConfig()


def moved(run: TinyRun, ranks: int, accumulation: int) -> TinyRun:
    """The same job as a user sets it up for so many GPUs."""
    train = replace(run.config.train, gradient_accumulation_steps=accumulation)
    config = replace(run.config, model=replace(PLAN, placement=on(ranks)), train=train, begun_as="")
    return replace(run, config=config)


def train(server: ForkServer, run: TinyRun, ranks: int, steps: int, first: str = "") -> list[dict[str, Any]]:
    """The steps that so many processes train, as torchrun starts them. `first`: code that each runs before."""
    words = ["train", str(run.directory), "--roots", str(run.roots_file), "--max-steps", str(steps)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    workers: list[Worker] = []
    for rank in range(ranks):
        own = {**place, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        out = run.directory.parent / f"{run.directory.name}-{ranks}-{rank}.jsonl"
        environment = own if ranks > 1 else None
        workers.append(server.start(words, out, first=ONE_THREAD + first, environment=environment))
    assert [worker.wait() in (0, 3) for worker in workers] == [True] * ranks, workers[0].log()[-3000:]
    return [event for event in workers[0].events() if event["event"] == "step"]


@pytest.mark.lasts(6)
@pytest.mark.parametrize(
    ("batches", "worlds"), [(4, (2, 1, 2)), pytest.param(12, (3, 1, 4, 2, 3), marks=pytest.mark.soak)]
)
def test_a_run_goes_on_with_any_number_of_processes_as_if_it_had_never_moved(
    server: ForkServer, tmp_path: Path, batches: int, worlds: tuple[int, ...]
) -> None:
    """With dropout in the adapters and in captions, so that every random draw of a step counts."""
    lora, steps, first = LoraConfig(rank=4, dropout=0.2), len(worlds), worlds[0]
    settings = replace(
        TWELVE, steps=steps, save_every_n_steps=1, caption_dropout=0.3, gradient_accumulation_steps=batches
    )
    stays = make_run(tmp_path / "stays", train=settings, lora=lora)
    shared = replace(settings, gradient_accumulation_steps=batches // first)
    moves = make_run(tmp_path / "moves", train=shared, lora=lora, plan=replace(PLAN, placement=on(first)))
    expected = train(server, stays, 1, steps)
    found = []
    for ranks in worlds:
        if ranks == 1:
            change_run(moves.directory, moves.roots, ["model.placement.copies=1"])
        found += train(server, moves, ranks, 1)
    assert [step["step"] for step in found] == [*range(1, steps + 1)]
    assert [step["loss"] for step in found] == pytest.approx([step["loss"] for step in expected], rel=1e-5)
    assert [step["clips"] for step in found] == [batches] * steps
    states = [SaveStore(run.directory).latest() for run in (stays, moves)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[1].job_id == moves.config.job_id != stays.config.job_id
    assert [(name, value.shape) for name, value in states[0].read_state().items()] == [
        (name, value.shape) for name, value in states[1].read_state().items()
    ]
    assert states[0].lora_file.stat().st_size == states[1].lora_file.stat().st_size
    assert read_run(moves.directory).train.gradient_accumulation_steps == batches // worlds[-1]


@pytest.mark.lasts(2)
def test_moved_and_moved_back_it_is_the_run_it_was_to_the_canvas_too(server: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=replace(TWELVE, gradient_accumulation_steps=2), plan=replace(PLAN, placement=on(2)))
    known, runs = run.config, run.directory.parent
    train(server, run, 2, 1)
    for ranks, accumulation in ((1, 4), (4, 1)):
        wanted = moved(run, ranks, accumulation).config
        found = choose_run(runs, wanted)
        assert (found.directory, found.action, found.job.job_id) == (run.directory, "resume", known.job_id)
        there = foresee(runs, wanted)
        assert there is not None
        assert there.action == "resume"
    assert choose_run(runs, moved(run, 1, 2).config).action == "start", "half the batches a step are another job"
    assert choose_run(runs, moved(run, 2, 2).config).job == known
    change_run(run.directory, run.roots, ["model.placement.copies=1"])
    away = read_run(run.directory)
    assert (away.train.gradient_accumulation_steps, away.begun_as, away.job_id) == (4, known.job_id, known.job_id)
    with pytest.raises(ConfigError, match=r"has saved steps, and learning_rate=1e-5 would make it another job"):
        change_run(run.directory, run.roots, ["learning_rate=1e-5"])
    change_run(run.directory, run.roots, ["model.placement.copies=2"])
    assert read_run(run.directory) == known


def test_batches_that_cannot_be_shared_evenly_are_refused_with_what_to_set(server: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=replace(TWELVE, steps=1, gradient_accumulation_steps=4))
    train(server, run, 1, 1)
    before = (run.directory / "run.json").read_bytes()
    with pytest.raises(ConfigError) as refused:
        change_run(run.directory, run.roots, [], placement=on(3))
    assert str(refused.value) == (
        "A step of tiny is 4 batches, which 3 processes cannot share evenly. Start 1 or 2 or 4 of them "
        "(--set model.placement.copies=N), or make a new run: new NAME --like RUN; with start_from_lora it begins "
        "with the LoRA of that step."
    )
    assert (run.directory / "run.json").read_bytes() == before


def test_all_gpus_of_another_machine_share_the_batches_of_the_first(tmp_path: Path, server: ForkServer) -> None:
    """run.json says all; how many there were is known from the saved step, also after the canvas wrote it again."""
    run = make_run(tmp_path, train=replace(TWELVE, steps=3, gradient_accumulation_steps=2))
    train(server, run, 1, 1)
    every = replace(run.config, model=replace(PLAN, placement=PlacementConfig(mode="copy per GPU", devices="all")))
    for path in sorted((run.directory / "saves").glob("*/manifest.json")):
        manifest = json.loads(path.read_text())
        manifest["job_id"] = every.job_id
        manifest["progress"] = json.dumps({"step": 1, "ranks": 4})
        manifest["manifest_sha256"] = Manifest.from_dict(manifest).checksum()
        path.write_text(json.dumps(manifest))
    atomic_write_json(run.directory / "run.json", every.to_dict())
    change_run(run.directory, run.roots, [])  # "all" is one process here
    assert read_run(run.directory).train.gradient_accumulation_steps == 8
    train(server, run, 1, 1)
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    assert (saved.job_id, saved.progress) == (every.job_id, {"step": 2, "batches": 8})
    atomic_write_json(run.directory / "run.json", every.to_dict())
    change_run(run.directory, run.roots, [])
    assert read_run(run.directory).train.gradient_accumulation_steps == 8


def test_every_clip_of_an_epoch_is_trained_once_wherever_the_run_moves(tmp_path: Path) -> None:
    run = make_run(tmp_path, clips=12)
    cache = LatentCache(run.roots.first("cache"))
    cache_set = cache.read_set(run.config.data.fingerprint)
    seen: list[str] = []
    for step, ranks in enumerate((2, 4, 1, 2, 4, 4)):
        accumulation = 4 // ranks
        for index in range(accumulation):
            for rank in range(ranks):
                batches = Batches(cache_set, cache, seed=0, batch_size=1, rank=rank, world=ranks)
                seen += [item.name for item in batches.items_at(step * accumulation + index)]
    assert sorted(seen[:12]) == sorted(seen[12:]) == sorted(item.name for item in cache_set.items)
