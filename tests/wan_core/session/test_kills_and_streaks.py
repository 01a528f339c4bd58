"""Workers killed at any moment, through steps that are not finite and disks that are full: nothing lost, nothing
different, nothing stuck."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.forked import ForkServer, Worker
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.job.config import read_status
from wan_core.train import SaveStore, TrainConfig

pytestmark = [
    pytest.mark.lasts(6),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL, which Windows does not have"),
]
STEPS = 14
SETTINGS = TrainConfig(
    steps=STEPS, save_every_n_steps=2, preview_every_n_steps=0, learning_rate=1e-3, **ONE_LOOK, save_dtype="fp32",
    lr_scheduler="cosine", caption_dropout=0.3, eval_every_n_steps=5,
)  # fmt: skip


def start(server: ForkServer, run: TinyRun, full_for: int) -> Worker:
    out = run.directory / "out.jsonl"
    out.unlink(missing_ok=True)
    first = f"from tests.support.troubles import install; install({full_for})"
    return server.start(["train", str(run.directory), "--roots", str(run.roots_file)], out, first=first)


def final_files(run: TinyRun) -> tuple[bytes, bytes]:
    folder = run.directory / "saves" / f"step-{STEPS:06d}"
    return (folder / "lora.safetensors").read_bytes(), (folder / "state.safetensors").read_bytes()


@pytest.mark.soak  # kills, streaks and full disks one by one: test_resume.py, test_faults.py and test_files.py
@pytest.mark.parametrize("kills", [1, 100])
def test_kills_streaks_and_full_disks_lose_change_and_stop_nothing(
    server: ForkServer, tmp_path: Path, kills: int
) -> None:
    chance = random.Random(kills)
    straight = make_run(tmp_path / "straight", train=SETTINGS)
    began = time.monotonic()
    worker = start(server, straight, 0)
    assert worker.wait() == 0, worker.events()[-1]
    longest = time.monotonic() - began
    assert max(e["in_a_row"] for e in worker.events() if e["event"] == "skipped") >= 2, "there are streaks"
    hit = rounds = sessions = 0
    while hit < kills:
        rounds += 1
        run = make_run(tmp_path / str(rounds), train=SETTINGS)
        code = announced = 0
        for attempt in range(40):
            sessions += 1
            worker = start(server, run, chance.choice((0, 0, 2, 9)))
            patience = chance.uniform(0.1, 1.0) * longest
            time.sleep(patience if attempt < 30 else 5 * longest)
            code = worker.kill()
            assert code in (0, -signal.SIGKILL), f"round {rounds}: {worker.events()[-1:]}"
            announced = max([announced, *(e["step"] for e in worker.events() if e["event"] == "saved")])
            latest = SaveStore(run.directory).latest(run.config.job_id)
            assert (latest.step if latest else 0) >= announced, f"round {rounds}: an announced save is gone"
            if code == 0:
                break
            hit += 1
        assert code == 0, f"round {rounds}: it does not get on"
        assert final_files(run) == final_files(straight), f"round {rounds}"
        assert read_status(run.directory).state == "done"
        assert [name for name in os.listdir(run.directory / "saves") if name.startswith(".")] == []
    print(f"{hit} kills in {sessions} sessions of {rounds} runs")  # noqa: T201
