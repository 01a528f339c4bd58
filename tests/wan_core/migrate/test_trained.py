"""Jobs of three trainers train here as they were imported, on a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_run import ONE_LOOK, make_run
from wan_core.control import SignalControl
from wan_core.migrate import read_job
from wan_core.packages import version_of
from wan_core.run import read_run, read_status
from wan_core.run.train_job import run_job

FIXTURES = Path(__file__).parents[2] / "fixtures" / "jobs"


@pytest.mark.parametrize("name", ["musubi_command.sh", "ai_toolkit_wan21_1b.yaml", "diffusion_pipe_min_vram.toml"])
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
