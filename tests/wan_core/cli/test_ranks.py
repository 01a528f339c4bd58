"""Ranks of one machine: no store of torch that Windows lacks, one dead rank ends all, and the cause is told."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch

from tests.support.forked import ForkServer, Worker
from tests.support.tiny_run import TWO_RANKS, TinyRun, make_run
from wan_core.cli.ranks import _Ending, _exit_code, _Ranks  # pyright: ignore[reportPrivateUsage]
from wan_core.cli.torchrun import settle_ranks
from wan_core.errors import ConfigError, RankLost
from wan_core.job.config import RunStatus, read_status, write_status
from wan_core.train import Group, SaveStore, TrainConfig
from wan_core.train import group as group_module

# torch for Windows is built without libuv, and the store that torchrun makes asks for it.
NO_LIBUV = """
import sys
import torch.distributed, torch.distributed.rendezvous

class Store(torch.distributed.TCPStore):
    def __init__(self, *given, use_libuv=True, **named):
        if use_libuv:
            raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
        super().__init__(*given, use_libuv=False, **named)

for module in [m for m in sys.modules.values() if vars(m).get("TCPStore") is torch.distributed.TCPStore]:
    if module is not torch.distributed:
        module.TCPStore = Store
torch.distributed.TCPStore = Store
"""


@pytest.mark.lasts(2)
def test_two_ranks_train_without_libuv_and_the_death_of_one_ends_the_run_with_its_reason(
    server: ForkServer, tmp_path: Path
) -> None:
    settings = TrainConfig(steps=100_000, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    run = make_run(tmp_path, train=settings, plan=TWO_RANKS)
    words = ["train", str(run.directory), "--roots", str(run.roots_file), "--controlled"]
    controller = server.start(words, tmp_path / "out.jsonl", first=NO_LIBUV, stdin=True)
    controller.wait_for("saved", 1)
    crew = psutil.Process(controller.pid).children()
    max(crew, key=lambda rank: rank.pid).kill()  # started last, so rank 1
    assert controller.wait() == 1, controller.log()[-3000:]
    lines = controller.events()
    assert [line["event"] for line in lines].count("failed") == 1
    assert lines[-1]["event"] == "failed"
    assert lines[-1]["message"].startswith("Rank 1 of this run ended without an error message (exit code -9;")
    assert len(crew) == 2
    assert not [rank for rank in crew if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]
    status = read_status(run.directory)
    assert status.state == "failed"
    assert status.reason == lines[-1]["message"]
    assert SaveStore(run.directory).latest() is not None


def test_a_store_that_needs_libuv_would_be_refused_there(server: ForkServer, tmp_path: Path) -> None:
    """So the test above can fail."""
    script = tmp_path / "store.py"
    script.write_text(
        "import os, torch.distributed\n"
        "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0', RANK='0', WORLD_SIZE='1')\n"
        "next(torch.distributed.rendezvous('env://'))\n"
    )
    refused = server.start([], tmp_path / "out", first=NO_LIBUV, script=str(script))
    assert refused.wait() == 1
    assert "built without libuv support" in refused.log()


@pytest.mark.lasts(1)
def test_a_ctrl_c_that_reaches_every_rank_while_the_reader_goes_away_still_saves_the_last_step(
    server: ForkServer, tmp_path: Path
) -> None:
    """Terminals and service managers signal the whole group; a ComfyUI that ends takes both pipes with it."""
    settings = TrainConfig(steps=100_000, save_every_n_steps=100_000, preview_every_n_steps=0, eval_items=0)
    run = make_run(tmp_path, train=settings, plan=TWO_RANKS)
    ours, theirs = os.pipe()
    words = ["train", str(run.directory), "--roots", str(run.roots_file), "--controlled"]
    controller = server.start(words, tmp_path / "out.jsonl", stdin=True, stdout=theirs, own_group=True)
    os.close(theirs)
    with os.fdopen(ours) as reader:
        next(line for line in reader if json.loads(line)["event"] == "step")
        crew = psutil.Process(controller.pid).children()
    os.killpg(controller.pid, signal.SIGINT)
    controller.close_stdin()
    assert controller.wait() == 3, controller.log()[-3000:]
    assert len(crew) == 2
    assert not [rank for rank in crew if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]
    status, saved = read_status(run.directory), SaveStore(run.directory).latest()
    assert saved is not None
    assert (status.state, status.step) == ("stopped", saved.step)
    assert saved.step > 0


IMPATIENT = """
from datetime import timedelta
import json
import torch.distributed
import wan_core.cli.ranks as ranks
import wan_core.train.group as group

def hurried(make):
    def made(*given, timeout, **asked):
        return make(*given, timeout=timedelta(seconds=8) if timeout == timedelta(hours=2) else timeout, **asked)
    return made

torch.distributed.new_group = hurried(torch.distributed.new_group)
torch.distributed.init_process_group = hurried(torch.distributed.init_process_group)
ranks._LOST_S = group._GIVING_UP_S = 1.0
judge = ranks._exit_code

def noted(endings, directory, out):
    (directory / "endings.json").write_text(json.dumps([ending._asdict() for ending in endings]))
    return judge(endings, directory, out)

ranks._exit_code = noted
"""


@dataclass
class Hung:
    """A run of which rank 1 was suspended after its third save, once the other rank had waited long enough."""

    run: TinyRun
    worker: Worker
    """the controller, or the rank that waited where nobody of ours controls"""
    code: int

    @property
    def last(self) -> dict[str, Any]:
        return self.worker.events()[-1]


def hung(server: ForkServer, root: Path, *, torchrun: bool) -> Hung:
    """A run under our controller, or as torchrun starts it."""
    settings = TrainConfig(steps=100_000, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    run = make_run(root, train=settings, plan=TWO_RANKS)
    words = ["train", str(run.directory), "--roots", str(run.roots_file)]
    if not torchrun:
        controller = server.start(words, root / "out.jsonl", first=IMPATIENT)
        controller.wait_for("saved", 3)
        max(psutil.Process(controller.pid).children(), key=lambda rank: rank.pid).suspend()  # started last
        return Hung(run, controller, controller.wait())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = [
        server.start(
            words,
            root / f"out{rank}.jsonl",
            first=IMPATIENT,
            environment={"RANK": rank, "LOCAL_RANK": rank, **place},
        )
        for rank in "01"
    ]
    ranks[0].wait_for("saved", 3)
    psutil.Process(ranks[1].pid).suspend()
    found = Hung(run, ranks[0], ranks[0].wait())
    ranks[1].kill()
    return found


@pytest.mark.lasts(10)
def test_a_rank_that_hangs_is_named_and_ended_and_the_last_save_stands(server: ForkServer, tmp_path: Path) -> None:
    found = hung(server, tmp_path, torchrun=False)
    assert found.code == 1, found.worker.log()[-3000:]
    endings = json.loads((found.run.directory / "endings.json").read_text())
    assert sorted((ending["rank"], ending["silent"]) for ending in endings) == [(0, False), (1, True)]
    said = next(ending["failed"]["message"] for ending in endings if ending["rank"] == 0)
    assert "has not answered in time" in said
    assert found.last["message"].startswith("Rank 1 of this run stopped responding, ")
    status, saved = read_status(found.run.directory), SaveStore(found.run.directory).latest()
    assert (status.state, status.reason) == ("failed", found.last["message"])
    assert saved is not None
    assert saved.step >= 3


@pytest.mark.soak
@pytest.mark.lasts(10)
def test_a_rank_of_torchrun_that_hangs_is_named_by_the_one_that_waited(server: ForkServer, tmp_path: Path) -> None:
    """Nobody of ours watches the ranks there: they note in torchrun's store which meeting each came to."""
    found = hung(server, tmp_path, torchrun=True)
    assert found.code != 0
    assert found.last["message"].startswith("Rank 1 of this run has not answered in time, so this one ends too")
    assert read_status(found.run.directory).reason == found.last["message"]


@pytest.mark.parametrize(
    ("came", "gave_up", "missing"),
    [
        ({"1": "7", "2": "6"}, (), "Rank 2 of this run has"),
        ({"1": "6"}, (), "Rank 1 and rank 2 of this run have"),
        ({"1": "7", "2": "7"}, ("1",), "Rank 2 of this run has"),
        ({"1": "7", "2": "7"}, (), "Another rank of this run has"),
        ({"1": "7", "2": "7"}, ("1", "2"), "Another rank of this run has"),
    ],
)
def test_whom_a_rank_waited_for_is_read_from_the_roll(
    came: dict[str, str], gave_up: tuple[str, ...], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed_out(*_given: Any, **_named: Any) -> None:
        raise RuntimeError("Timed out waiting 1000ms for recv operation to complete")

    monkeypatch.setattr(group_module, "_GIVING_UP_S", 0.0)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", timed_out)
    roll = torch.distributed.HashStore()
    for rank, meeting in came.items():
        roll.set(rank, meeting)
    for rank in gave_up:
        roll.set(f"gave up {rank}", "")
    group = Group(0, 3, roll=roll)
    group._met = 6
    with pytest.raises(RankLost, match=f"^{missing} not answered in time"):
        group.share(None)


def test_machines_that_share_out_a_run_otherwise_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, plan=TWO_RANKS)

    def settle(other: Any) -> None:
        group = SimpleNamespace(local_rank=0, world=2, gather=lambda here: [here, here if here == "" else other])
        settle_ranks(run.directory, run.roots, [], cast(Any, group))

    settle((2, 1, 1))
    with pytest.raises(
        ConfigError, match=r"^Ranks 0 and 1 would divide .* context_parallel: 2, 1, 1 and 2, 2, 2\), because"
    ):
        settle((2, 2, 2))


@pytest.mark.skipif(sys.platform == "win32", reason="a timer by signal")
def test_a_signal_while_a_command_is_written_is_passed_on() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b" " * 4096)
    os.set_blocking(writing, True)
    crew = object.__new__(_Ranks)
    crew._stop_requested = False  # pyright: ignore[reportPrivateUsage]
    stdin = os.fdopen(writing, "wb")
    crew._processes = [cast(Any, SimpleNamespace(stdin=stdin))]  # pyright: ignore[reportPrivateUsage]
    received: list[bytes] = []

    def on_signal(*_: object) -> None:
        drain.start()
        crew.stop("signal SIGALRM")

    drain = threading.Thread(target=lambda: received.extend(iter(lambda: os.read(reading, 1 << 20), b"")))
    before = signal.signal(signal.SIGALRM, on_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        crew._command({"command": "decoded"})  # waits: the pipe is full  # pyright: ignore[reportPrivateUsage]
    finally:
        signal.signal(signal.SIGALRM, before)
    drain.join(10)
    os.close(reading)
    assert b"".join(received).strip() == b'{"command": "stop", "reason": "signal SIGALRM"}'


def test_a_long_reason_keeps_its_end_which_says_what_to_do(tmp_path: Path) -> None:
    write_status(tmp_path, RunStatus(state="running", step=7))
    long = event(f"The LoRA targets {'x' * 1300} match no layer. Set targets to one of these.", "ConfigError", 5)
    _exit_code([_Ending(0, 5, LOST), _Ending(1, 5, long)], tmp_path, io.BytesIO())
    reason = read_status(tmp_path).reason
    assert reason.startswith("The LoRA targets x")
    assert reason.endswith("Set targets to one of these.")
    assert len(reason) < 1100


def event(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"event": "failed", "message": message, "kind": kind, "exit_code": code}


LOST = event("Another rank of this run has ended", "RankLost", 5)
FULL = event("cuda:1 is out of memory", "OutOfMemory", 4)


@pytest.mark.parametrize(
    ("endings", "code", "said"),
    [
        ([_Ending(1, 3, {}), _Ending(0, 3, {})], 3, ""),
        ([_Ending(0, 0, {}), _Ending(1, 0, {})], 0, ""),
        ([_Ending(0, 5, LOST), _Ending(1, 4, FULL)], 4, "cuda:1 is out of memory"),
        ([_Ending(1, 4, FULL), _Ending(0, 5, LOST)], 4, "cuda:1 is out of memory"),
        ([_Ending(0, 4, FULL), _Ending(1, 5, LOST)], 4, "cuda:1 is out of memory"),
        (
            [_Ending(0, 5, LOST), _Ending(1, -11, {})],
            1,
            "Rank 1 of this run ended without an error message (exit code -11",
        ),
        (
            [_Ending(1, 3, {}), _Ending(0, -15, {})],
            1,
            "Rank 0 of this run ended without an error message (exit code -15",
        ),
        ([_Ending(0, 5, LOST), _Ending(1, -9, {}, True)], 1, "Rank 1 of this run stopped responding, and was ended"),
        (
            [_Ending(1, -11, {}), _Ending(2, -9, {}, True)],
            1,
            "Rank 1 of this run ended without an error message (exit code -11",
        ),
        ([_Ending(1, 4, FULL), _Ending(2, -9, {}, True)], 4, "cuda:1 is out of memory"),
    ],
)
def test_the_run_ends_as_the_rank_did_where_the_failure_began(
    endings: list[_Ending], code: int, said: str, tmp_path: Path
) -> None:
    write_status(tmp_path, RunStatus(state="running", step=7))
    out = io.BytesIO()
    assert _exit_code(endings, tmp_path, out) == code
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["exit_code"] for line in told] == ([code] if said else [])
    assert not said or told[0]["message"].startswith(said)
    began_elsewhere = bool(said) and not (endings[0].rank == 0 and endings[0].failed == FULL) and "Rank 0" not in said
    assert read_status(tmp_path).state == ("failed" if began_elsewhere else "running")
