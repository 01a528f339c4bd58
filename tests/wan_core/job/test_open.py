"""A run that is opened: what its jobs read of it, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.audits import measure_few
from tests.support.sessions import train_here
from tests.support.tiny_run import TinyRun, make_run
from wan_core.audit import AuditConfig, audit_job
from wan_core.checkpoint import container
from wan_core.control import SignalControl
from wan_core.files import atomic_write_json
from wan_core.job import SampleJob
from wan_core.job.open import open_run
from wan_core.plan import report_run
from wan_core.sampler import SampleConfig
from wan_core.session import sample_job
from wan_core.train import TrainConfig

ONE_STEP = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0)


def _audit(run: TinyRun) -> None:
    config = AuditConfig(clips=1, timesteps=1)
    with measure_few():
        audit_job(run.directory, run.roots, config, emit=lambda _: None, control=SignalControl())


def _sample(run: TinyRun) -> None:
    job = run.directory / "samples" / "asked" / "job.json"
    job.parent.mkdir(parents=True)
    preview = SampleConfig(num_frames=5, width=32, height=32, steps=1)
    atomic_write_json(job, SampleJob(baseline=False, preview=preview).to_dict())
    sample_job(run.directory, job, run.roots, emit=lambda _: None, control=SignalControl())


def _plan(run: TinyRun) -> None:
    report_run(run.directory, run.roots)


@pytest.mark.parametrize("job", [train_here, _audit, _sample, _plan])
def test_a_job_reads_the_header_of_its_base_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Callable[[TinyRun], object]
) -> None:
    run = make_run(tmp_path, train=ONE_STEP)
    if job is _sample:
        train_here(run)
    read: list[str] = []
    real = container.read_header

    def counted(path: Path) -> object:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(container, "read_header", counted)
    job(run)
    assert read == ["wan_tiny_t2v.safetensors"]


def test_a_run_is_opened_with_what_its_settings_leave_to_the_model(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=replace(ONE_STEP, discrete_flow_shift=0.0))
    opened = open_run(run.directory, run.roots)
    assert opened.config == run.config
    assert opened.variant == opened.file.variant, "a model of its own has no expert to narrow it to"
    assert opened.settings.discrete_flow_shift == opened.variant.training_shift > 0
    assert opened.variant.conditioning.name == opened.cache_set.conditioning == "none"
    assert opened.first_frame_share == 0.0
