"""Tiny runs trained and rendered in this process. Nothing decodes clips: their latents stay where they were written."""

from __future__ import annotations

from typing import Any

from tests.support.tiny_run import TinyRun
from wan_core.control import Control, SignalControl
from wan_core.events import Event, Note
from wan_core.files import atomic_write_json
from wan_core.job import SampleJob
from wan_core.sampler import SampleConfig
from wan_core.session import sample_job
from wan_core.session.train_job import run_job
from wan_core.train import SaveStore


def train_here(run: TinyRun, control: Control | None = None, **options: Any) -> list[Event]:
    """The events of a session of `run`; `options` are those of `run_job`."""
    heard: list[Event] = []
    run_job(run.directory, run.roots, emit=heard.append, control=control or SignalControl(signals=False), **options)
    return heard


def warnings(heard: list[Event]) -> list[str]:
    return [event.text for event in heard if isinstance(event, Note) and event.level == "warning"]


def newest_files(run: TinyRun) -> dict[str, bytes]:
    """What the newest saved step of a run holds that counts: LoRAs and state."""
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    return {file.name: file.read_bytes() for file in saved.folder.glob("*.safetensors")}


def latents(run: TinyRun) -> dict[str, bytes]:
    """The previews of a run."""
    return {file.stem: file.read_bytes() for file in (run.directory / "samples").glob("*.latent")}


def rendered(run: TinyRun, folder: str) -> dict[str, bytes]:
    """Latents of clips that are sampled as the run's previews: of the base, and of its last step at two strengths."""
    job = run.directory / "samples" / folder / "job.json"
    job.parent.mkdir(parents=True)
    asked = SampleJob(strengths=(0.0, 1.0), preview=run.config.preview or SampleConfig())
    atomic_write_json(job, asked.to_dict())
    said: list[Event] = []
    sample_job(run.directory, job, run.roots, emit=said.append, control=SignalControl(signals=False))
    assert warnings(said) == [], "a clip was skipped"
    return {file.stem: file.read_bytes() for file in job.parent.glob("*.latent")}
