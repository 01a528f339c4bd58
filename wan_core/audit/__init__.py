"""The precision audit: measures the error of each precision switch against float32, on the user's model and clips."""

from __future__ import annotations

from .job import REPORT_FILE, AuditConfig, audit_job, import_libraries, read_report
from .report import AuditReport
