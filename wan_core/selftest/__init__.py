"""The self-test: trains a tiny model on this machine and reports in a few lines what works."""

from __future__ import annotations

from .findings import FAILED, Finding, as_text, check_machine
