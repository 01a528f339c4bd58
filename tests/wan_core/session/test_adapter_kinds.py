"""Runs of each kind of adapter: they train, and one that is killed and resumed ends as one that was not."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.adapters import KINDS
from tests.support.forked import ForkServer, Worker
from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, TinyRun, make_pair_run, make_run
from wan_core.errors import ConfigError
from wan_core.events import StepDone
from wan_core.job.config import DataConfig, RunConfig
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.plan import report_run
from wan_core.train import TrainConfig

pytestmark = pytest.mark.lasts(1)

STEPS = 6
HARD = {"gradient_accumulation_steps": 2, "ema_decay": 0.9, "caption_dropout": 0.3, "eval_items": 0}
"""with dropout of every kind, and both experts"""
BUCKETS = ((2, 4, 4), (1, 4, 6), (3, 2, 4))
"""a clip of each size: (latent frames, latent height, latent width)"""

OF_TWO = ("LoRA", "rsLoRA", "DoRA", "norms and biases", "OLoRA")
"""kinds whose parts other kinds have too: CI trains DoRA with norms and biases, PiSSA, both LoKr, LoHa and OFT"""


def hard(kind: str) -> LoraConfig:
    config = replace(KINDS[kind], rank_dropout=0.2, module_dropout=0.2, dropout=0.0 if kind == "OFT" else 0.2)
    return replace(config, max_norm=2.0) if config.init == "default" else config


def files(run: TinyRun) -> dict[str, bytes]:
    folder = run.directory / "saves" / f"step-{STEPS:06d}"
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def start(server: ForkServer, run: TinyRun, out: str = "out.jsonl") -> Worker:
    return server.start(["train", str(run.directory), "--roots", str(run.roots_file)], run.directory / out)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.soak) if k in OF_TWO else k for k in KINDS])
def test_each_kind_trains_and_its_parts_all_move(tmp_path: Path, kind: str) -> None:
    train = TrainConfig(
        steps=3, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0, learning_rate=1e-2, memory="manual"
    )
    run = make_run(tmp_path, shape=replace(TINY, num_layers=1), train=train, lora=KINDS[kind], clips=1)
    events = train_here(run)
    assert all(event.loss > 0 for event in events if isinstance(event, StepDone))
    written = (run.directory / "saves" / "step-000003" / "lora.safetensors").stat().st_size
    assert report_run(run.directory, run.roots)["disk"]["lora_bytes"] == pytest.approx(written, rel=0.01)
    first, last = (
        {
            name: value
            for name, value in load_file(run.directory / "saves" / f"step-00000{step}" / "state.safetensors").items()
            if name.startswith("lora.") and ".start_" not in name
        }
        for step in (1, 3)
    )
    assert first
    for name, value in last.items():
        assert torch.isfinite(value).all(), name
        assert not torch.equal(value, first[name]), name


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_killed_in_either_expert_and_resumed_equals_never_killed(server: ForkServer, tmp_path: Path, kind: str) -> None:
    straight, killed = (
        make_pair_run(tmp_path / name, steps=STEPS, save_every_n_steps=1, lora=hard(kind), buckets=BUCKETS, **HARD)
        for name in ("straight", "killed")
    )
    assert start(server, straight).wait() == 0
    for attempt, step in enumerate((2, 5)):
        worker = start(server, killed, f"out-{attempt}.jsonl")
        worker.wait_for("step", step)
        assert worker.kill() == -signal.SIGKILL
    assert start(server, killed, "last.jsonl").wait() == 0
    assert files(killed) == files(straight)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_fifty_random_moments_equals_never_killed(server: ForkServer, tmp_path: Path, kind: str) -> None:
    chance, kills = random.Random(0), 0
    settings = {"steps": STEPS, "save_every_n_steps": 1, "expert_order": "alternating", "expert_turn_steps": 1, **HARD}
    straight = make_pair_run(tmp_path / "straight", lora=hard(kind), buckets=BUCKETS, **settings)
    assert start(server, straight).wait() == 0
    while kills < 50:
        run = make_pair_run(tmp_path / f"after-{kills}", lora=hard(kind), buckets=BUCKETS, **settings)
        for attempt in range(50):
            worker = start(server, run, f"out-{attempt}.jsonl")
            worker.wait_for_a_step()  # so that every try comes further
            time.sleep(chance.uniform(0, 0.3))
            if worker.kill() == 0:
                break
            kills += 1
        assert files(run) == files(straight), f"after {kills} kills"


@pytest.mark.parametrize(
    ("kind", "train", "sentence"),
    [
        ("LoKr", {"loraplus_lr_ratio": 16.0}, r"^loraplus_lr_ratio is 16, and a LoKr has no second matrix of a pair\."),
        ("DoRA", {"optimizer": "muon"}, r"^optimizer muon trains only matrices; the row lengths of a DoRA, norms and"),
        ("norms and biases", {"optimizer": "muon"}, r"set adapter to LoRA and also_train to nothing\.$"),
    ],
)
def test_what_a_kind_cannot_be_trained_with_is_refused(kind: str, train: dict[str, object], sentence: str) -> None:
    settings = TrainConfig(**train)  # type: ignore[arg-type]
    job = {"run_name": "x", "model": ModelPlan(base_file="diffusion_models:x"), "data": DataConfig(fingerprint="0")}
    with pytest.raises(ConfigError, match=sentence):
        RunConfig(**job, lora=KINDS[kind], train=settings)  # type: ignore[arg-type]
    RunConfig(**job, lora=LoraConfig(), train=settings)  # type: ignore[arg-type]


def test_a_setting_of_adapters_is_part_of_a_job_only_where_it_is_used() -> None:
    """So jobs of before are what they were."""
    job = {"run_name": "x", "model": ModelPlan(base_file="diffusion_models:x"), "data": DataConfig(fingerprint="0")}
    usual, other = (RunConfig(**job, lora=lora) for lora in (LoraConfig(), LoraConfig(kind="DoRA")))  # type: ignore[arg-type]
    assert set(usual.identity()["lora"]) == {"rank", "alpha", "dropout", "targets"}
    assert other.identity()["lora"] == usual.identity()["lora"] | {"kind": "DoRA"}
    assert usual.job_id != other.job_id


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k == "DoRA" else pytest.mark.soak) for k in KINDS])
def test_over_weights_that_rest_in_host_memory_it_learns_the_same(tmp_path: Path, kind: str) -> None:
    """The export too reads them there: that of a DoRA needs the lengths of the base's rows."""
    settings = {"steps": 2, "save_every_n_steps": 2, "preview_every_n_steps": 0, "eval_items": 0}
    away = {"memory": "manual", "offload_activations": "on", "blocks_to_swap": 2}
    found = []
    for name, more in (("here", {}), ("away", away)):
        train = TrainConfig(**settings, **more)  # type: ignore[arg-type]
        run = make_run(tmp_path / name, train=train, lora=KINDS[kind], clips=1)
        train_here(run)
        found.append(load_file(run.directory / "saves" / "step-000002" / "lora.safetensors"))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
