"""Settings of another trainer, written and read: what the job says."""

from __future__ import annotations

from pathlib import Path

from wan_core.migrate import read_job
from wan_core.migrate.foreign_job import ForeignJob

TRAIN = "accelerate launch --num_processes 1 src/musubi_tuner/wan_train_network.py"


def job_of(folder: Path, text: str, name: str = "a.sh") -> ForeignJob:
    """The job of a text, which lies in `folder` under that name."""
    (folder / name).write_text(text, encoding="utf-8")
    return read_job(folder / name)


def said(job: ForeignJob, title: str = "") -> str:
    """The account, or what stands under one of its titles."""
    account = job.account()
    return "\n".join(line for key, lines in account.items() if title in ("", key) for line in lines)


def model(job: ForeignJob) -> tuple[str, str]:
    """The files of Load Wan Model."""
    return job.of("LoadWanModel.diffusion_model"), job.values["LoadWanModel"].get("low_noise_model", "none")
