"""A run that torchrun starts, on one machine or several, whatever run.json says: the LoRA of our own launcher."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.cards import gpu, put_in
from tests.support.forked import ForkServer, Worker
from tests.support.tiny_run import TWO_RANKS, TinyRun, make_run
from wan_core.cli.torchrun import ranks_here
from wan_core.errors import PlacementError
from wan_core.placement import PlacementConfig
from wan_core.train import Group, TrainConfig

ROOT = Path(__file__).parents[3]
SETTINGS = TrainConfig(steps=4, save_every_n_steps=2, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0)


def words(run: TinyRun, *more: str) -> list[str]:
    return ["train", str(run.directory), "--roots", str(run.roots_file), *more]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def started(server: ForkServer, run: TinyRun, *more: str, machines: int = 1) -> list[Worker]:
    """Two ranks as torchrun starts them: on one machine, or one on each of two."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    return [
        server.start(
            words(run, *more),
            run.directory.parent / f"out{rank}.jsonl",
            environment={
                **place,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank if machines == 1 else 0),
                "LOCAL_WORLD_SIZE": str(2 // machines),
            },
        )
        for rank in (0, 1)
    ]


def lora(run: TinyRun, step: int = SETTINGS.steps) -> dict[str, torch.Tensor]:
    return load_file(run.directory / "saves" / f"step-{step:06d}" / "lora.safetensors")


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


@pytest.mark.lasts(4)
@pytest.mark.parametrize("machines", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_run_of_one_device_becomes_one_of_as_many_copies_as_torchrun_starts(
    server: ForkServer, tmp_path: Path, machines: int
) -> None:
    """And `--set` counts there too. On two machines it is the same run; both write the folder they have."""
    expected = make_run(tmp_path / "ours", train=SETTINGS, plan=TWO_RANKS)
    own = server.start(words(expected, "--set", "learning_rate=2e-3"), tmp_path / "ours.jsonl")
    run = make_run(tmp_path / "torchrun", train=SETTINGS)
    assert run.config.model.placement.mode == "one device"
    ranks = started(server, run, "--set", "learning_rate=2e-3", machines=machines)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].log()[-3000:]
    told = json.loads((run.directory / "run.json").read_text())
    assert told["train"]["learning_rate"] == 2e-3
    assert (told["model"]["placement"]["mode"], told["model"]["placement"]["copies"]) == ("copy per GPU", 2)
    assert own.wait() == 0
    assert_same(lora(run), lora(expected))


def test_without_torchrun_a_machine_starts_no_more_ranks_than_it_has_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert ranks_here(PlacementConfig(mode="copy per GPU", devices="all")) == 2
    assert ranks_here(PlacementConfig(mode="split blocks", devices="all")) == 1
    assert ranks_here(PlacementConfig(mode="split tokens", devices="all")) == 1
    with pytest.raises(PlacementError, match=r"trained by 4 processes, and this machine has 2 GPUs for it\. Start it"):
        ranks_here(PlacementConfig(mode="copy per GPU", devices="all", copies=4))


class Heard:
    """torch's collective calls as two ranks would hear them; `other` is what the second says of its card."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
        self.made: list[str] = []
        monkeypatch.setattr(socket, "gethostname", lambda: "one")
        put_in(monkeypatch, gpu("one", (8, 6), uuid="a"))
        monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
        monkeypatch.setattr(
            torch.distributed, "new_group", lambda **asked: self.made.append(asked["backend"]) or "nccl"
        )

        def gather(found: list[Any], mine: Any, **_more: Any) -> None:
            found[:] = [mine, other]

        monkeypatch.setattr(torch.distributed, "all_gather_object", gather)


@pytest.mark.parametrize(
    ("device", "other", "over"),
    [
        ("cuda", "one b", "nccl"),
        ("cuda", "two a", "nccl"),
        ("cuda", "one a", None),  # both on one GPU, which NCCL refuses
        ("cuda", "", None),  # the other rank has none
        ("cpu", "one b", None),
    ],
)
def test_gradients_go_over_nccl_where_every_rank_has_a_gpu_of_its_own(
    device: str, other: str, over: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, group = Heard(monkeypatch, other), Group(0, 2)
    for _ in range(2):
        assert group._nccl_between(torch.device(device)) == over
    assert heard.made == ([over] if over else [])


def test_nccl_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAN_TRAINER_NCCL", "0")
    heard = Heard(monkeypatch, "one b")
    assert Group(0, 2)._nccl_between(torch.device("cuda")) is None
    assert heard.made == []


AVERAGED = """
import os, torch
from wan_core.train import join_group
group = join_group()
device = torch.device("cuda", group.local_rank)
values = [torch.full((3, 4), float(group.rank), device=device), torch.arange(5.0, device=device) * (1 + group.rank)]
group.average(values)
assert group._over_nccl is not None
assert torch.equal(values[0].cpu(), torch.full((3, 4), 0.5)), values
assert torch.equal(values[1].cpu(), torch.arange(5.0) * 1.5), values
group.leave()
"""


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


def endings(commands: Iterable[list[str]]) -> list[tuple[int, str]]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        for one in commands
    ]
    return [(process.wait(), said) for process in processes for said in [process.communicate()[1]]]


@pytest.mark.multi_gpu
def test_two_gpus_average_over_nccl(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    (tmp_path / "averaged.py").write_text(AVERAGED)
    ((code, said),) = endings([torchrun("--nproc-per-node", "2", str(tmp_path / "averaged.py"))])
    assert code == 0, said[-3000:]


@pytest.mark.soak
@pytest.mark.slow
def test_torchrun_itself_trains_it_on_one_machine_and_as_two_groups_that_meet(tmp_path: Path) -> None:
    """As docs/use/headless.md says it, the two machines being one."""
    runs = [make_run(tmp_path / name, train=SETTINGS) for name in ("one", "two")]
    module = ["-m", "wan_core"]
    assert endings([torchrun("--nproc-per-node", "2", *module, *words(runs[0]))])[0][0] == 0
    meeting = ["--rdzv-backend", "c10d", "--rdzv-id", "fox", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    both = endings(
        torchrun("--nnodes", "2", "--node-rank", str(n), "--nproc-per-node", "1", *meeting, *module, *words(runs[1]))
        for n in (0, 1)
    )
    assert [code for code, _ in both] == [0, 0], both
    assert_same(lora(runs[0]), lora(runs[1]))
