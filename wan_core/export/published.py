"""LoRA files in a folder shared by several runs: each is current, and no other job's file is lost."""

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
    """Copies the LoRA `source` of job `job_id` to `target`, unless the bytes are equal.

    A file of the same job is replaced. One of another job (a deleted or renamed run, or a name like a step of this one)
    is renamed with its own job id first.
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
            sync_file(out.fileno())  # synced before the rename, so that on a full disk the old file keeps its name
            _keep_aside(target, owner)


def withdraw_file(target: Path, job_id: str) -> None:
    """Removes the LoRA `target` of job `job_id`; another job's file is renamed as in publishing."""
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
    """Returns the job id in a file's metadata; "" for a foreign file."""
    try:
        return read_header(path).metadata.get("wan_trainer.job_id", "")
    except CheckpointError:
        return ""


def _keep_aside(target: Path, job_id: str) -> None:
    """Renames `target` after its job, unless an equal copy exists."""
    mark = re.sub(r"[^A-Za-z0-9]", "", job_id)[:8] or "kept"  # untrusted metadata, used in a file name
    for number in itertools.count():
        other = target.with_name(f"{target.stem}_{mark}{f'_{number}' if number else ''}{target.suffix}")
        if not os.path.lexists(other):
            replace_patiently(target, other)
            return
        if other.is_file() and _same_bytes(target, other):
            return
