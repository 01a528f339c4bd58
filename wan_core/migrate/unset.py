"""Detects placeholders in values: they are named, never substituted."""

from __future__ import annotations

import re

from ..importers import Ledger
from .job import Job

_NOT_SET = re.compile(r"\$\{?[A-Za-z_]|^@[A-Za-z_]\w*@$|\$\(|%[A-Za-z_]\w*%|\{\{?[A-Za-z_ ][^{}]*\}")
"""placeholders of a shell, cmd or a template"""
_MAY_HOLD = frozenset(
    (
        *("validation_prompt", "validation_negative_prompt", "prompts", "samples", "neg"),
        *("trigger_word", "caption_prefix", "network_args"),
    )
)
"""texts in which these characters are literal"""


def is_unset(name: str, job: Job, ledger: Ledger) -> bool:
    """Returns whether a key's value is a placeholder, and records it."""
    value = ledger.get(name, object, None) if name in ledger else None
    if isinstance(value, str) and name not in _MAY_HOLD and stands_for_more(value):
        job.unset[name] = value
    if name not in job.unset:
        return False
    written = job.unset[name].replace("\n", " ")[:60]
    ledger.change(f"{name} {written} -> skipped: nothing in the file says what it stands for")
    job.hints.append(f"{name} is {written}, which nothing in the file sets: choose it in the nodes")
    return True


def stands_for_more(value: str) -> bool:
    """Returns whether a text ends in a placeholder."""
    return "\n" not in value and _NOT_SET.search(_last_part(value)) is not None


def _last_part(value: str) -> str:
    """Returns the last part of a path; a shell command in it stays in one piece."""
    return re.split(r"[/\\]", re.sub(r"\$\([^)\n]*\)?", "$(", value).rstrip("/\\"))[-1]
