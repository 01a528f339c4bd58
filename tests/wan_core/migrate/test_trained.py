"""Jobs of three trainers train here as they were imported, on a tiny model."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.support.scripts import PAIRS
from tests.support.sessions import train_here
from tests.support.tiny_run import HIGH_FILE, LOW_FILE, ONE_LOOK, PAIR, make_roots, make_run
from wan_core.config import settings_of
from wan_core.control import SignalControl
from wan_core.events import StepDone
from wan_core.job import read_run, read_status
from wan_core.migrate import read_job
from wan_core.packages import version_of
from wan_core.session.train_job import run_job
from wan_core.train import SaveStore, TrainConfig

FIXTURES = Path(__file__).parents[2] / "fixtures" / "jobs"
DEMO = Path(__file__).parents[2] / "assets" / "demo"


@pytest.mark.parametrize(
    "name",
    [
        *("musubi_command.sh", "ai_toolkit_wan21_1b.yaml"),
        pytest.param("diffusion_pipe_min_vram.toml", marks=pytest.mark.soak),
    ],
)
def test_an_imported_job_trains(tmp_path: Path, name: str) -> None:
    job = read_job(FIXTURES / name, clips=3)
    if job.of("WanTrainSettings.optimizer") == "adamw8bit" and not version_of("torchao"):
        pytest.skip("torchao is not installed")
    short: dict[str, Any] = {"steps": 2, "lr_warmup_steps": 0, "save_every_n_steps": 2, **ONE_LOOK}
    memory: dict[str, Any] = {"blocks_to_swap": -1, "offload_activations": "auto", "eval_every_n_steps": 0}
    train = replace(job.train(), preview_every_n_steps=0, discrete_flow_shift=3.0, **short, **memory)
    run = make_run(tmp_path, train=train, lora=job.lora())
    finished = run_job(run.directory, run.roots, emit=lambda _event: None, control=SignalControl(signals=False))
    assert (finished.state, read_status(run.directory).step) == ("done", 2)
    assert read_run(run.directory).train.optimizer == job.of("WanTrainSettings.optimizer")
    assert read_run(run.directory).lora.rank == 32


@pytest.mark.lasts(1)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.soak
def test_a_pair_of_two_commands_trains_with_the_values_of_each(tmp_path: Path, name: str) -> None:
    text = PAIRS[name].replace("_steps 600", "_steps 3").replace("_steps 1400", "_steps 7")
    (tmp_path / name).write_text(text, encoding="utf-8")
    job = read_job(tmp_path / name)
    names = settings_of(TrainConfig).keys() - {"expert"}
    asked: dict[str, Any] = {name: getattr(job.train(), name) for name in names}
    asked |= {"save_every_n_steps": 10, "preview_every_n_steps": 0, "eval_items": 0}
    roots, _ = make_roots(tmp_path / "run")
    for file in (HIGH_FILE, LOW_FILE):
        expert = "high" if file == HIGH_FILE else "low"
        shutil.copyfile(DEMO / f"wan_demo_{expert}_noise.safetensors", tmp_path / "run" / "models" / file)
    plan, train = PAIR.of_expert("both", roots), TrainConfig(**asked, expert="both")
    run = make_run(tmp_path / "run", plan=plan, train=train, lora=job.lora())
    heard = train_here(run)
    steps = [(event.expert, event.lr) for event in heard if isinstance(event, StepDone)]
    assert steps == [("high", 3e-4)] * 3 + [("low", 1e-4)] * 7
    saved = SaveStore(run.directory).read(10)
    assert saved is not None
    assert saved.low_noise_lora_file is not None
    ranks = [_rank_and_alpha(file) for file in (saved.lora_file, saved.low_noise_lora_file)]
    assert ranks == [(16, 8.0), (32, 16.0)]


def _rank_and_alpha(file: Path) -> tuple[int, float]:
    tensors = load_file(file)
    down = next(tensor for name, tensor in tensors.items() if name.endswith("lora_A.weight") or "lora_down" in name)
    return down.shape[0], float(next(tensor for name, tensor in tensors.items() if name.endswith("alpha")))
