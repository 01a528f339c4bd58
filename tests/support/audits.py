"""Running an audit in the test process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from wan_core.audit import AuditConfig, audit_job
from wan_core.audit.candidates import Candidate, candidates
from wan_core.control import SignalControl
from wan_core.events import Event
from wan_core.load import ModelPlan

from .tiny_run import TinyRun

BF16_PLAN = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", base_precision="bf16")


def audit(run: TinyRun, config: AuditConfig | None = None, control: SignalControl | None = None) -> list[Event]:
    events: list[Event] = []
    finished = audit_job(
        run.directory,
        run.roots,
        config or AuditConfig(timesteps=1),
        emit=events.append,
        control=control or SignalControl(),
    )
    return [*events, finished]


def audit_of(run: TinyRun, labels: Iterable[tuple[str, str]], config: AuditConfig | None = None) -> list[Event]:
    """An audit of the plan, the residual changed, and the rows of these kinds and parts: each row is a pass, and a
    test that reads two of them need not wait for twenty."""
    with measure_few(labels):
        return audit(run, config)


@contextmanager
def measure_few(labels: Iterable[tuple[str, str]] = ()) -> Iterator[None]:
    """Within, audits have no other rows than those."""
    wanted = {("plan", ""), ("change", "residual"), *labels}

    def few(*args: object, **options: bool) -> tuple[Candidate, ...]:
        rows = candidates(*args, **options)  # type: ignore[arg-type]
        return tuple(row for row in rows if (row.kind, row.part if row.kind != "plan" else "") in wanted)

    with patch("wan_core.audit.job.candidates", few):
        yield
