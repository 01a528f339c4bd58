"""Running an audit in the test process."""

from __future__ import annotations

from wan_core.audit import AuditConfig, audit_job
from wan_core.control import SignalControl
from wan_core.events import Event
from wan_core.load import ModelPlan

from .tiny_run import TinyRun

__all__ = ["BF16_PLAN", "audit"]

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
