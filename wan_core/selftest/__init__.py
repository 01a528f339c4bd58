"""The self-test: a tiny model is trained on this very machine, and what works here is told in a few lines."""

from __future__ import annotations

from .findings import FAILED, Finding, as_text, check_machine

__all__ = ["FAILED", "Finding", "as_text", "check_machine"]
