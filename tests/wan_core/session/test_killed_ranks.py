"""Any rank killed at any moment: the others end within a minute, and one command goes on as if nothing had been.

Results are in .cache/killed_ranks.txt.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.support.forked import ForkServer, Worker
from tests.support.tiny_run import PLAN, TINY, TinyRun, make_run, steady
from wan_core.lora import LoraConfig
from wan_core.placement import PlacementConfig
from wan_core.sampler import SampleConfig
from wan_core.train import SaveStore

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform == "win32", reason="ranks are forked and killed")]
SETTINGS = steady(
    steps=6,
    save_every_n_steps=2,
    preview_every_n_steps=2,
    keep_last_saves=1,
    eval_items=1,
    eval_timesteps=(500.0,),
    gradient_accumulation_steps=2,
)
_END_S = 60.0


class Point(NamedTuple):
    """A call at whose beginning a rank is killed."""

    call: str
    """module:name, or module:Class.name"""
    number: int
    """of the call in its process, from 1"""
    leader: bool = False
    """whether only rank 0 makes it; another rank is killed while rank 0 is there"""
    supervised: bool = False
    """whether ranks cannot know each other yet, so that torchrun's agent or our controller ends them"""
    exchange: str = ""
    """of ranks that train one clip together; "": each trains its own"""


POINTS = {
    "start-up": Point("wan_core.train:join_group", 1, supervised=True),
    "meeting": Point("torch.distributed:new_group", 1, supervised=True),
    "opening files": Point("wan_core.session.train_job:open_experts", 1),
    "load": Point("wan_core.session.expert:load_model", 1),
    "load, some tensors": Point("wan_core.session.session:Session.on_tensor", 20),
    "broadcast": Point("wan_core.train.group:Group.share", 1),
    "first step": Point("wan_core.train.trainer:Trainer._train_step", 1),
    "accumulation": Point("wan_core.train.objective:Objective.trained", 6),
    "before all-reduce": Point("wan_core.train.group:Group.average", 3),
    "in all-reduce": Point("torch.distributed:all_reduce", 3),
    "update": Point("wan_core.train.optimizer_state:AdapterOptimizer.step", 3),
    "after update": Point("wan_core.train.meters:StepReport.finish", 3),
    "save begins": Point("wan_core.session.saving:Saver.commit", 2, leader=True),
    "save, LoRA written": Point("wan_core.train.saves:_write", 5, leader=True),
    "save, without manifest": Point("wan_core.train.saves:_write", 6, leader=True),
    "save, committed": Point("wan_core.session.saving:Saver.look", 2, leader=True),
    "evaluation": Point("wan_core.train.evaluation:Evaluation._measure", 2, leader=True),
    "sample": Point("wan_core.train.preview:Previewer._render_one", 2, leader=True),
    "prune": Point("wan_core.train.saves:SaveStore.prune", 2, leader=True),
    "resume": Point("wan_core.train.trainer:Trainer.load_state", 1),
    "turn of a ring": Point("wan_core.parallel.ranks:RankExchange.turn", 9, exchange="ring"),
    "tokens become heads": Point("wan_core.parallel.ranks:RankExchange.swap", 9, exchange="all-to-all"),
    "evaluation in parts": Point("wan_core.train.evaluation:Evaluation._measure", 2, exchange="ring"),
    "end": Point("wan_core.session.train_job:_Worker._finish", 1),
    "leaving": Point("wan_core.train.group:Group.leave", 1),
}

PLANTED = """
import functools, importlib, os, pathlib, signal, time, torch
import wan_core.cli.ranks, wan_core.session.loading, wan_core.session.train_job
torch.set_num_threads(1)
folder, seen = pathlib.Path({folder!r}), [0]

def plant(where, wrap):
    module, _, name = where.partition(":")
    *owners, name = name.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    setattr(owner, name, wrap(getattr(owner, name)))

def killing(call):
    @functools.wraps(call)
    def planted(*given, **named):
        if os.environ.get("RANK") == {trigger!r} and not (folder / "killed").exists():
            seen[0] += 1
            if seen[0] == {number}:
                pid = int((folder / "pid{victim}").read_text())
                (folder / "killed").write_text(str(time.monotonic()))
                os.kill(pid, signal.SIGKILL)
        return call(*given, **named)
    return planted

def noting(call):
    @functools.wraps(call)
    def planted(*given, **named):
        (folder / ("pid" + os.environ.get("RANK", ""))).write_text(str(os.getpid()))
        return call(*given, **named)
    return planted

plant({call!r}, killing)
plant("wan_core.train:join_group", noting)
"""
"""code before the command: kills rank `victim` once rank `trigger` is at the call"""


def run_of(root: Path, ranks: int, exchange: str = "") -> TinyRun:
    """`exchange`: between ranks that train one clip together; "": each trains its own."""
    placement = PlacementConfig(mode="copy per GPU", devices="cpu", copies=ranks)
    if exchange:
        placement = replace(placement, context_parallel=ranks, context_exchange=exchange)
    plan, lora = replace(PLAN, placement=placement), LoraConfig(rank=4, dropout=0.0 if exchange else 0.1)
    preview, shape = SampleConfig(steps=2, width=32, height=32), replace(TINY, dim=128 * ranks, num_heads=ranks)
    return make_run(root, train=SETTINGS, plan=plan, lora=lora, preview=preview, shape=shape if exchange else TINY)


def started(server: ForkServer, run: TinyRun, ranks: int, *more: str, ours: bool, first: str = "") -> list[Worker]:
    """Ranks under our controller, or as torchrun starts them, without an agent that ends them."""
    words = ["train", str(run.directory), "--roots", str(run.roots_file), *more]
    out = run.directory.parent
    if ours:
        return [server.start(words, out / "out.jsonl", first=first)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)} for rank in range(ranks)]
    return [
        server.start(words, out / f"out{rank}.jsonl", first=first, environment={**place, **own[rank]})
        for rank in range(ranks)
    ]


def losses(run: TinyRun) -> dict[int, float]:
    """The loss of each step; of one that was trained again, the last."""
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}


def last_lora(run: TinyRun) -> dict[str, torch.Tensor]:
    saved = SaveStore(run.directory).latest(run.config.job_id)
    assert saved is not None
    assert saved.step == SETTINGS.steps
    return load_file(saved.lora_file)


def assert_as_unkilled(run: TinyRun, expected: dict[int, float], lora: dict[str, torch.Tensor]) -> None:
    assert losses(run) == pytest.approx(expected, rel=1e-6)
    assert [*losses(run)] == [*range(1, SETTINGS.steps + 1)]
    found = last_lora(run)
    assert found.keys() == lora.keys()
    assert all(torch.equal(value, lora[key]) for key, value in found.items())


@pytest.fixture(scope="module")
def unkilled(server: ForkServer, tmp_path_factory: pytest.TempPathFactory):
    """By ranks and exchange: the losses and the LoRA of a run that nobody killed."""

    @cache
    def trained(ranks: int, exchange: str = "") -> tuple[dict[int, float], dict[str, torch.Tensor]]:
        run = run_of(tmp_path_factory.mktemp("unkilled"), ranks, exchange)
        (controller,) = started(server, run, ranks, ours=True)
        assert controller.wait() == 0, controller.log()[-3000:]
        return losses(run), last_lora(run)

    return trained


@pytest.mark.lasts(6)
@pytest.mark.parametrize(
    ("ours", "ranks", "victim"), [(True, 2, 0), (True, 2, 1), (True, 4, 3), (False, 2, 0), (False, 2, 1), (False, 4, 2)]
)
@pytest.mark.parametrize("name", POINTS)
def test_a_rank_killed_ends_the_others_and_one_command_goes_on(
    server: ForkServer, unkilled, tmp_path: Path, name: str, ours: bool, ranks: int, victim: int
) -> None:
    point = POINTS[name]
    if point.supervised and not ours:
        pytest.skip("torchrun's agent ends ranks that have not met")
    run = run_of(tmp_path, ranks, point.exchange)
    if name == "resume":
        for worker in started(server, run, ranks, "--max-steps", "3", ours=ours):
            assert worker.wait() in (0, 3), worker.log()[-3000:]
    trigger = 0 if point.leader else victim
    first = PLANTED.format(
        folder=str(tmp_path), trigger=str(trigger), victim=victim, call=point.call, number=point.number
    )
    workers = started(server, run, ranks, ours=ours, first=first)
    codes = [worker.wait() for worker in workers]
    took = time.monotonic() - float((tmp_path / "killed").read_text())
    assert took < _END_S, workers[0].log()[-3000:]
    assert any(codes)
    if point.exchange and not ours:
        for rank, worker in enumerate(workers):
            said = worker.out.read_text() + worker.log()
            assert rank == victim or "Another rank of this run has ended, so this one ends too" in said
    pids = [int(file.read_text()) for file in tmp_path.glob("pid[0-9]")]
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    SaveStore(run.directory).latest(run.config.job_id)  # raises for a saved step that is damaged
    again = started(server, run, ranks, ours=ours)
    assert [worker.wait() for worker in again] == [0] * len(again), again[0].log()[-3000:]
    assert_as_unkilled(run, *unkilled(ranks, point.exchange))
    with (ROOT / ".cache" / "killed_ranks.txt").open("a") as table:
        table.write(f"{name} | {'ours' if ours else 'torchrun'} | {victim} of {ranks} | {took:.1f} s | same\n")


@pytest.mark.lasts(40)
@pytest.mark.parametrize(("machines", "victim"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_torchrun_starts_all_again_after_a_killed_rank_and_the_run_goes_on_from_its_last_save(
    unkilled, tmp_path: Path, machines: int, victim: int
) -> None:
    """On two machines each has an agent; they meet again by torchrun's rendezvous."""
    run, point = run_of(tmp_path, 2), Point("wan_core.train.trainer:Trainer._train_step", 4)
    script = tmp_path / "killed_once.py"
    words = ["train", str(run.directory), "--roots", str(run.roots_file)]
    first = PLANTED.format(
        folder=str(tmp_path), trigger=str(victim), victim=victim, call=point.call, number=point.number
    )
    script.write_text(f"{first}\nimport sys\nfrom wan_core.__main__ import main\nsys.exit(main({words!r}))\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "2", "--nproc-per-node"]
    starts = [[*torchrun, "2", str(script)]]
    if machines == 2:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free.getsockname()[1]}"]
        nodes = ["--nnodes", "2", "--rdzv-id", "fox", *meeting]
        starts = [[*torchrun, "1", *nodes, str(script)]] * 2
    agents = []
    for number, command in enumerate(starts):
        with (tmp_path / f"agent{number}.txt").open("wb") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            agents.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        codes = [agent.wait(timeout=120) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    said = "".join((tmp_path / f"agent{number}.txt").read_text() for number in range(machines))
    assert codes == [0] * machines, said[-3000:]
    assert (tmp_path / "killed").exists()
    assert "Resumes after saved step 2 of 6." in said
    assert_as_unkilled(run, *unkilled(2))
