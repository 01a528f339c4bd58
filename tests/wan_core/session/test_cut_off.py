"""Two machines as network namespaces, one cut off while both train."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_run import TinyRun, make_run
from wan_core.train import TrainConfig

ROOT = Path(__file__).parents[3]
NAMES = ("wt-cut-a", "wt-cut-b")
SETTINGS = TrainConfig(steps=100_000, save_every_n_steps=20, preview_every_n_steps=0, eval_items=0)
pytestmark = [pytest.mark.soak, pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip of iproute2")]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[None]:
    """Two namespaces with a wire between them."""
    try:
        for name in NAMES:
            ip("netns", "add", name)
    except subprocess.CalledProcessError as refused:
        pytest.skip(f"no network namespaces: {refused.stderr.decode()}")
    try:
        ip("link", "add", "wt-a", "type", "veth", "peer", "name", "wt-b")
        for number, (name, link) in enumerate(zip(NAMES, ("wt-a", "wt-b"), strict=True), 1):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"10.93.0.{number}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in NAMES:
            ip("netns", "del", name)


def ranks(run: TinyRun, *more: str) -> list[subprocess.Popen[bytes]]:
    place = {"MASTER_ADDR": "10.93.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    started = []
    for rank, name in enumerate(NAMES):
        link = ("wt-a", "wt-b")[rank]
        own = {"RANK": str(rank), "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": link, "OMP_NUM_THREADS": "1"}
        words = ["wan_core/launch.py", "train", str(run.directory), "--roots", str(run.roots_file), *more]
        with (run.directory.parent / f"rank{rank}.txt").open("wb") as log:
            started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, *words],
                    cwd=ROOT,
                    env=os.environ | place | own,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )
            )
    return started


@pytest.mark.lasts(90)
def test_a_machine_that_is_cut_off_ends_the_other_within_a_minute_and_one_command_resumes(
    machines: None, tmp_path: Path
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    started = ranks(run)
    deadline = time.monotonic() + 120
    while not list(run.directory.glob("saves/step-*/manifest.json")):
        assert time.monotonic() < deadline, (run.directory.parent / "rank0.txt").read_text()[-3000:]
        assert all(process.poll() is None for process in started)
        time.sleep(0.2)
    ip("-n", NAMES[1], "link", "set", "wt-b", "down")
    cut = time.monotonic()
    codes = [process.wait(timeout=90) for process in started]
    took = time.monotonic() - cut
    logs = [(run.directory.parent / f"rank{rank}.txt").read_text() for rank in (0, 1)]
    assert took < 60, (took, codes, logs[0][-800:], logs[1][-800:])
    assert all(codes)
    assert "No sign of rank 1 for 40 s" in logs[0]
    saved = max(int(folder.name[5:]) for folder in run.directory.glob("saves/step-*"))
    ip("-n", NAMES[1], "link", "set", "wt-b", "up")
    assert [process.wait(timeout=120) for process in ranks(run, "--max-steps", "20")] == [0, 0]
    steps = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert max(step["step"] for step in steps if step.get("event") == "step") == saved + 20
