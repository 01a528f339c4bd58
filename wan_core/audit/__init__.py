"""The precision audit: the error of each precision switch on the user's model and clips, against float32."""

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
