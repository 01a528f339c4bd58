"""The audit measures what each precision switch costs, on the user's own model and clips, against float32."""

from __future__ import annotations

from .job import REPORT_FILE, AuditConfig, audit_job, import_libraries, read_report
from .report import AuditReport

__all__ = [
    "REPORT_FILE",
    "AuditConfig",
    "AuditReport",
    "audit_job",
    "import_libraries",
    "read_report",
]
