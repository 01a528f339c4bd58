"""LoRA files in a folder that several runs share: each is current, and none of another job is lost."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from pathlib import Path

from ..checkpoint import read_header
from ..errors import CheckpointError
from ..files import atomic_write, digest_file, remove_file, replace_patiently, sync_file


def publish_file(source: Path, target: Path, job_id: str) -> None:
    """Copy the LoRA `source` of job `job_id` to `target`; nothing is written when the bytes are there already.

    A file of the same job is replaced. One of another job (its run was deleted, renamed, or is called like a step of
    this one) is moved to a name with its own job id first.
    """
    owner = job_id
    if target.is_file():
        if _same_bytes(source, target):
            return
        owner = _job_of(target)
    with atomic_write(target) as out, open(source, "rb") as file:
        shutil.copyfileobj(file, out, 4 << 20)
        if owner != job_id:
            out.flush()
            sync_file(out.fileno())  # on a full disk what is there stays under its name
            _keep_aside(target, owner)


def withdraw_file(target: Path, job_id: str) -> None:
    """Take the LoRA `target` of job `job_id` away; what is of another job keeps a name of its own, as in publishing."""
    if not target.is_file():
        return
    owner = _job_of(target)
    if owner == job_id:
        remove_file(target, target.parent)
    else:
        _keep_aside(target, owner)


def _same_bytes(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and digest_file(one) == digest_file(other)


def _job_of(path: Path) -> str:
    """Returns the job that a published file says it is of; empty for a file of somebody else."""
    try:
        return read_header(path).metadata.get("wan_trainer.job_id", "")
    except CheckpointError:
        return ""


def _keep_aside(target: Path, job_id: str) -> None:
    """Leave the bytes of `target` under a name of their own: renamed, unless they have been kept before."""
    mark = re.sub(r"[^A-Za-z0-9]", "", job_id)[:8] or "kept"  # it is what a file says, and becomes part of a name
    for number in itertools.count():
        other = target.with_name(f"{target.stem}_{mark}{f'_{number}' if number else ''}{target.suffix}")
        if not os.path.lexists(other):
            replace_patiently(target, other)
            return
        if other.is_file() and _same_bytes(target, other):
            return
