"""What each precision switch costs, measured on the user's own model and clips against float32."""

from .candidates import REFERENCE, Candidate, candidates
from .chart import draw_chart
from .job import REPORT_FILE, AuditConfig, audit_job, read_report
from .measure import Measurement, measure
from .report import AuditReport, AuditRow

__all__ = [
    "REFERENCE",
    "REPORT_FILE",
    "AuditConfig",
    "AuditReport",
    "AuditRow",
    "Candidate",
    "Measurement",
    "audit_job",
    "candidates",
    "draw_chart",
    "measure",
    "read_report",
]
