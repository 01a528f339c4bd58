"""Saved steps: atomic commits. "Latest" is the newest step that verifies."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from ..errors import CheckpointError
from ..files import (
    FileError,
    digest_file,
    fsync_folder,
    make_folder,
    new_partial,
    open_new,
    own_folder,
    read_json,
    remove_empty,
    remove_file,
    replace_patiently,
    sync_file,
)
from .saved_step import LORA, LOW_NOISE_LORA, MANIFEST, SAVED_FILES, STATE, SUSPECT, Manifest, SavedStep

_NAME = re.compile(r"^step-(\d{6,})$", re.ASCII)
_STAGED = re.compile(r"\.step-\d{6,}(\.[0-9a-f]{16})?\.partial", re.ASCII)
_ASIDE = re.compile(r"\.step-\d{6,}\.damaged\.\d+", re.ASCII)


class SaveStore:
    """The folder `saves/` of one run. Links in it are never followed for writing or removing."""

    def __init__(self, run_directory: Path) -> None:
        self._run, self.folder = run_directory, run_directory / "saves"

    def steps(self) -> list[int]:
        """Returns the steps that have a folder, newest last; not verified."""
        if not self.folder.is_dir():
            return []
        names = (_NAME.match(entry) for entry in os.listdir(self.folder))
        # A foreign folder step-0000007 is skipped: it would be listed as step 7, whose folder is step-000007.
        return sorted(step for m in names if m and _folder_name(step := int(m[1])) == m[0])

    def read(self, step: int) -> SavedStep | None:
        """Returns the saved step; None if it does not verify (missing, unreadable, wrong checksum)."""
        try:
            return self._verified(step)
        except (FileError, CheckpointError, OSError, ValueError, RecursionError):
            return None

    def _verified(self, step: int) -> SavedStep | None:
        folder = self.folder / _folder_name(step)
        manifest = Manifest.from_dict(read_json(folder / MANIFEST))
        if manifest.step != step or manifest.manifest_sha256 != manifest.checksum():
            return None
        low_noise = manifest.low_noise_lora_sha256
        intact = (
            digest_file(folder / LORA) == manifest.lora_sha256
            and low_noise in ("", digest_file(folder / LOW_NOISE_LORA) if low_noise else "")
            and digest_file(folder / STATE) == manifest.state_sha256
        )
        return SavedStep(step, folder, manifest.job_id, manifest.counters(), bool(low_noise)) if intact else None

    def refused(self, after: int) -> tuple[int, str] | None:
        """Returns the newest step past `after` that is unreadable for lack of permission, and the system's message.

        It may be intact: another program holds it open, or another account owns it.
        """
        for step in reversed(self.steps()):
            if step <= after or self.is_suspect(step):
                continue
            try:
                self._verified(step)
            except (FileError, OSError) as error:
                cause: BaseException | None = error
                while cause is not None and not isinstance(cause, PermissionError):
                    cause = cause.__cause__
                if cause is not None:
                    return step, cause.strerror or "Permission denied"
            except (CheckpointError, ValueError, RecursionError):
                continue
        return None

    def latest(self, job_id: str = "") -> SavedStep | None:
        """Returns the newest saved step that verifies and is not suspect, of job `job_id` ("" = any)."""
        saves = (self.read(step) for step in reversed(self.steps()) if not self.is_suspect(step))
        return next((saved for saved in saves if saved and job_id in ("", saved.job_id)), None)

    def stated(self) -> Manifest | None:
        """Returns the newest manifest with an intact checksum; the files that it names are not read."""
        for step in reversed(self.steps()):
            with contextlib.suppress(FileError, OSError, ValueError, RecursionError):
                manifest = Manifest.from_dict(read_json(self.folder / _folder_name(step) / MANIFEST))
                if manifest.manifest_sha256 == manifest.checksum() and manifest.counters():
                    return manifest
        return None

    def is_suspect(self, step: int) -> bool:
        """Returns whether `suspect` marked the step: no step after it was finite."""
        return os.path.lexists(self.folder / _folder_name(step) / SUSPECT)

    def suspect(self, step: int) -> list[int]:
        """Mark the saved steps from `step` on as suspect: kept, but never resumed automatically. Returns the steps."""
        found = [known for known in self.steps() if known >= step]
        for known in found:
            with contextlib.suppress(OSError):  # It is marked already, or a foreign link has that name.
                open_new(self.folder / _folder_name(known) / SUSPECT, self._run).close()
        return found

    def clean(self) -> None:
        """Remove the staged folders of killed saves. The caller holds the lock of the run."""
        for name in os.listdir(self.folder) if self.folder.is_dir() else ():
            if _STAGED.fullmatch(name):
                self._remove_staged(self.folder / name)

    def prune(self, last: int, keep: Collection[int]) -> list[int]:
        """Remove saved steps except `keep` and the newest `last` that are not suspect; returns the removed steps.

        The caller holds the lock of the run. A step that another program holds open (Windows) stays.
        """
        steps = self.steps()
        newest = [step for step in steps if not self.is_suspect(step)][-max(1, last) :]
        gone = []
        for step in (step for step in steps if newest and step < newest[0] and step not in keep):
            folder = self.folder / _folder_name(step)
            hidden = new_partial(folder)
            with contextlib.suppress(OSError):
                # Renamed first: a kill in between leaves no incomplete step, only a folder that `clean` removes.
                replace_patiently(folder, hidden, self._run)
                gone.append(step)
                self._remove_staged(hidden)
        return gone

    def set_aside(self) -> list[Path]:
        """Returns the folders of damaged steps that `commit` moved aside; never read, never deleted."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return [self.folder / name for name in sorted(names) if _ASIDE.fullmatch(name)]

    def commit(
        self,
        step: int,
        job_id: str,
        lora: bytes,
        state: dict[str, Tensor],
        progress: dict[str, Any],
        *,
        low_noise_lora: bytes = b"",
    ) -> SavedStep:
        """Write a saved step: staged, synced, renamed; the manifest is written last.

        An existing step of the same job and progress that verifies is kept: the same job makes the same bytes.
        """
        folder = own_folder(self.folder.parent, self.folder.name)
        known = self.read(step)
        if known is not None and (known.job_id, known.progress) == (job_id, progress):
            remove_file(known.folder / SUSPECT, self._run)
            return known
        final = folder / _folder_name(step)
        staged = new_partial(final)
        make_folder(staged, self._run)
        try:
            for name, value in state.items():
                # Converted to float32, because torch has no `isfinite` for float8.
                if value.is_floating_point() and not (value if value.itemsize > 1 else value.float()).isfinite().all():
                    raise CheckpointError(
                        f"The state {name} is not finite; it was not saved. Earlier saved steps are kept."
                    )
            manifest = Manifest(
                version=1,
                step=step,
                job_id=job_id,
                lora_sha256=_write(staged / LORA, lora, self._run),
                state_sha256=_write(staged / STATE, save(state), self._run),
                progress=json.dumps(progress),
                low_noise_lora_sha256=(
                    _write(staged / LOW_NOISE_LORA, low_noise_lora, self._run) if low_noise_lora else ""
                ),
            )
            manifest = replace(manifest, manifest_sha256=manifest.checksum())
            _write(staged / MANIFEST, json.dumps(manifest.to_dict(), indent=2).encode(), self._run)
            fsync_folder(staged)
            if os.path.lexists(final):
                # A damaged step is moved aside, never deleted: its remains may be all that the user has.
                aside = (self.folder / f".{final.name}.damaged.{number}" for number in itertools.count(1))
                replace_patiently(final, next(place for place in aside if not os.path.lexists(place)), self._run)
            replace_patiently(staged, final, self._run)  # the commit: from here on the saved step exists
            fsync_folder(folder)
            fsync_folder(folder.parent)  # the first save also creates `saves`
        except BaseException as error:
            self._remove_staged(staged)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = os.fspath(final)  # the error of a failed write has no file name
            raise
        return SavedStep(step, final, job_id, progress, bool(low_noise_lora))

    def _remove_staged(self, folder: Path) -> None:
        """Remove a staged save by its known files; foreign files and links stay."""
        for name in SAVED_FILES:
            remove_file(folder / name, self._run)
        remove_empty(folder, self._run)


def _folder_name(step: int) -> str:
    return f"step-{step:06d}"


def _write(path: Path, data: bytes, run: Path) -> str:
    """Write and sync a new file; returns its SHA-256."""
    with open_new(path, run) as file:
        file.write(data)
        file.flush()
        sync_file(file.fileno())
    return hashlib.sha256(data).hexdigest()
