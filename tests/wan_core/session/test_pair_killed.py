"""A run of both experts, killed again and again: LoRAs, state and manifest are those of one that was not."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.support.forked import ForkServer, Worker
from tests.support.tiny_run import PAIR, TinyRun, make_pair_run
from wan_core.sampler import SampleConfig

pytestmark = pytest.mark.lasts(4)

STEPS = 8
SETTINGS = {"steps": STEPS, "save_every_n_steps": 1, "eval_items": 0, "caption_dropout": 0.3, "high_noise_share": 0.6}
ORDERS = {
    "after each other": {},
    "alternating": {"expert_order": "alternating", "expert_turn_steps": 2},
}


def files(run: TinyRun) -> dict[str, bytes]:
    folder = run.directory / "saves" / f"step-{STEPS:06d}"
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("order", "kills"),
    [
        ("alternating", 1),
        pytest.param("alternating", 20, marks=pytest.mark.soak),
        pytest.param("after each other", 20, marks=pytest.mark.soak),
    ],
)
def test_killed_at_random_points_and_resumed_equals_never_killed(
    server: ForkServer, tmp_path: Path, order: str, kills: int
) -> None:
    """Kills fall on any moment of a step, a save or a change of experts; rounds begin anew once a run is done."""
    chance = random.Random(kills)

    def start(run: TinyRun, out: str) -> Worker:
        words = ["train", str(run.directory), "--roots", str(run.roots_file)]
        return server.start(words, run.directory / out)

    straight = make_pair_run(tmp_path / "straight", **SETTINGS, **ORDERS[order])
    assert start(straight, "out.jsonl").wait() == 0
    killed = done = 0
    while killed < kills:
        run = make_pair_run(tmp_path / f"round-{done}", **SETTINGS, **ORDERS[order])
        for attempt in range(kills):
            worker = start(run, f"out-{attempt}.jsonl")
            worker.wait_for_a_step()  # so that every try comes further
            time.sleep(chance.uniform(0, 0.3))
            if worker.kill() == 0:
                break
            killed += 1
            if killed == kills:
                assert start(run, "last.jsonl").wait() == 0
                break
        done += 1
        assert files(run) == files(straight), f"round {done}, after {killed} kills"


@pytest.mark.soak
@pytest.mark.parametrize("kills", [3, 15])
def test_one_expert_that_previews_with_its_partner_is_killed_and_resumed(
    server: ForkServer, tmp_path: Path, kills: int
) -> None:
    """Kills fall on steps, saves, and the partner's way to the devices and back."""
    chance = random.Random(kills)
    settings = {**SETTINGS, "expert": "high", "preview_every_n_steps": 1}
    shown = SampleConfig(sampling="custom", steps=2, cfg=1.0, shift=5.0)

    def made(name: str) -> TinyRun:
        return make_pair_run(tmp_path / name, preview=shown, partner=PAIR.half("low_noise"), **settings)

    def start(run: TinyRun, out: str) -> Worker:
        return server.start(["train", str(run.directory), "--roots", str(run.roots_file)], run.directory / out)

    def clips(run: TinyRun) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (run.directory / "samples").glob("*.latent")}

    straight, run = made("straight"), made("killed")
    assert start(straight, "out.jsonl").wait() == 0
    assert len(clips(straight)) == STEPS + 1
    for attempt in range(kills):
        worker = start(run, f"out-{attempt}.jsonl")
        worker.wait_for_a_step()
        time.sleep(chance.uniform(0, 0.2))
        if worker.kill() == 0:
            break
    assert start(run, "last.jsonl").wait() == 0
    assert files(run) == files(straight)
    assert clips(run).items() <= clips(straight).items(), "a clip that a kill took is not made later"
    assert clips(run)[f"step-{STEPS:06d}_p0.latent"] == clips(straight)[f"step-{STEPS:06d}_p0.latent"]
