"""Clips of a tiny run, as latents: nothing here decodes them."""

from __future__ import annotations

from tests.support.tiny_run import TinyRun
from wan_core.control import SignalControl
from wan_core.events import Event, Note
from wan_core.files import atomic_write_json
from wan_core.job import SampleJob
from wan_core.sampler import SampleConfig
from wan_core.session import sample_job


class Decoding(SignalControl):
    """Answers that nothing could decode a latent, so that it stays where it was written."""

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, object] | None:
        return None


def rendered(run: TinyRun, folder: str) -> dict[str, bytes]:
    """Latents of clips that are sampled as the run's previews: of the base, and of its last step at two strengths."""
    job = run.directory / "samples" / folder / "job.json"
    job.parent.mkdir(parents=True)
    asked = SampleJob(strengths=(0.0, 1.0), preview=run.config.preview or SampleConfig())
    atomic_write_json(job, asked.to_dict())
    said: list[Event] = []
    sample_job(run.directory, job, run.roots, emit=said.append, control=Decoding(signals=False))
    assert [event for event in said if isinstance(event, Note) and event.level == "warning"] == [], "a clip was skipped"
    return {file.stem: file.read_bytes() for file in job.parent.glob("*.latent")}
