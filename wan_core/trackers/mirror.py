"""Copies saved steps and previews to a bucket, a server or another disk."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError, DependencyError, WanTrainerError
from ..events import CheckpointSaved, Event, Finished, SampleReady
from ..files import FileError, open_inside
from ..packages import pip_line
from .outbox import Outbox
from .settings import MirrorSettings

_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "smb": "smbprotocol",
    "hf": "huggingface_hub",
}
_OF_THE_RUN = ("run.json", "metrics.jsonl")
_STEP = re.compile(r"step-\d{6,}")
_PIECE_BYTES = 8 << 20
_SAMPLES, _INDEX = "samples", "index.json"
_CLIPS = (".mp4", ".webm", ".png", ".webp")
_STATE, _MANIFEST = "state.safetensors", "manifest.json"


_COPIED_AT = (CheckpointSaved, SampleReady, Finished)


class Gone(WanTrainerError):  # noqa: N818  not an error of the program
    """A saved step was pruned, or the run deleted, before it was copied."""


class Mirror:
    """Copies saved steps, metrics and clips. The manifest is copied last, so a folder with a manifest is complete.

    Failed copies are retried with the next saved step, at the end, and in later sessions of all runs in the same
    folder. The file is opened again for each piece, so that the run can be deleted meanwhile. Links are not followed.
    """

    title = "The mirror"
    patience_s = 900.0

    def __init__(self, settings: MirrorSettings, directory: Path) -> None:
        """Raises DependencyError without the library for the address, ConfigError for an invalid address."""
        import fsspec

        scheme = urlsplit(settings.url).scheme
        if "://" not in settings.url:
            raise ConfigError("mirror.url does not name its kind. Write file:///folder or s3://bucket/folder.")
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise DependencyError(
                f"mirror.url begins with {scheme}://, for which a package is missing. "
                f"Run: {pip_line(_PACKAGES.get(scheme, 'fsspec[full]'))}"
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"mirror.url begins with {scheme}://, which fsspec does not know. Install its package, or use file://."
            ) from error
        self._url, self._with_state = settings.url, settings.state
        self._directory = directory
        self._files: Any = None
        self._root = ""
        self._copied: set[tuple[str, str]] = set()
        """(run, folder) of saved steps that the mirror has"""

        self._clips: set[tuple[str, int]] = set()
        """(path, size) of clips that the mirror has"""
        self.outbox = Outbox(directory.parent, "mirror")
        self.moved_at = 0.0

    def keep(self, event: Event) -> None:
        """Adds an event that needs a copy to the outbox. Raises OSError or FileError."""
        if isinstance(event, _COPIED_AT):
            saved = event.folder.rpartition("/")[2] if isinstance(event, CheckpointSaved) else ""
            self.outbox.put({"run": self._directory.name, "saved": saved})

    def begin(self) -> None:
        """Opens the storage."""
        from fsspec.core import url_to_fs

        self._files, root = url_to_fs(self._url)
        self._root = root.rstrip("/")

    def take(self, event: Event) -> None:
        """Copies missing saved steps and previews, and the metrics. Raises Gone, and the errors of the storage."""
        if isinstance(event, _COPIED_AT):
            self._copy_waiting()

    def end(self) -> None:
        """Copies all waiting files; waits if another process is copying."""
        self.outbox.drain(self._copy_waiting)

    def _copy_waiting(self) -> bool:
        """Copies all waiting files; returns False if another process is copying."""
        with self.outbox.alone() as alone:
            if not alone:
                return False
            waiting: dict[Path | None, dict[Path, str]] = {self._directory: {}}
            for file in self.outbox.waiting():
                if (message := self.outbox.read(file)) is not None:
                    waiting.setdefault(self.outbox.run_of(message), {})[file] = str(message.get("saved"))
            for directory, files in waiting.items():
                pruned = self._copy_run(directory, {*files.values()}) if directory is not None and files else []
                # Only messages listed before the copy: one written during it may be for a later step.
                for file in files:
                    self.outbox.remove(file)
                for name in pruned:
                    raise Gone(f"{name} was pruned before it was copied. Raise keep_last_saves.")
        return True

    def _copy_run(self, directory: Path, saved: set[str]) -> list[str]:
        """Copies a run; returns the steps of `saved` that were deleted before they were copied."""
        there = f"{self._root}/{directory.name}"
        self._files.makedirs(there, exist_ok=True)
        for folder in self._missing_steps(directory):
            self._copy_step(folder, f"{there}/{folder.name}")
        for name in _OF_THE_RUN:
            self._put(directory / name, directory, f"{there}/{name}")
        self._copy_clips(directory / _SAMPLES, directory, f"{there}/{_SAMPLES}")
        missing = (
            name for name in sorted(saved) if _STEP.fullmatch(name) and (directory.name, name) not in self._copied
        )
        return [name for name in missing if not self._files.exists(f"{there}/{name}/{_MANIFEST}")]

    def _missing_steps(self, directory: Path) -> Iterator[Path]:
        """Yields the saved steps of a run that are not complete at the mirror, oldest first."""
        saves = directory / "saves"
        names = sorted(os.listdir(saves), key=lambda name: (len(name), name)) if _is_folder(saves) else []
        for name in names:
            folder = saves / name
            if (directory.name, name) in self._copied or not _STEP.fullmatch(name) or not _is_folder(folder):
                continue
            if not (folder / _MANIFEST).is_file():
                continue
            if self._is_complete(folder / _MANIFEST, directory, f"{self._root}/{directory.name}/{name}/{_MANIFEST}"):
                self._copied.add((directory.name, name))
            else:
                yield folder

    def _is_complete(self, manifest: Path, run: Path, there: str) -> bool:
        """Returns whether the mirror has this saved step completely."""
        if not self._files.exists(there):
            return False
        try:  # compared by content, because an earlier run of the same name may have copied another step
            return self._files.cat_file(there) == _piece(manifest, run, 0)[0]
        except (FileError, OSError):
            return False

    def _copy_step(self, folder: Path, there: str) -> None:
        try:
            names = sorted(file.name for file in folder.iterdir() if file.is_file() and not file.is_symlink())
        except FileNotFoundError:
            names = []
        wanted = [name for name in names if name != _MANIFEST and (self._with_state or name != _STATE)]
        if _MANIFEST not in names:
            return  # pruned meanwhile
        self._files.makedirs(there, exist_ok=True)
        if self._files.exists(f"{there}/{_MANIFEST}"):  # a step of another run
            self._files.rm_file(f"{there}/{_MANIFEST}")
        if all(self._put(folder / name, folder.parent.parent, f"{there}/{name}") for name in (*wanted, _MANIFEST)):
            self._copied.add((folder.parent.parent.name, folder.name))

    def _copy_clips(self, folder: Path, run: Path, there: str) -> None:
        """Copies the clips of a folder and its subfolders that are missing or differ in size, then the folder's
        index."""
        for clip, size in _clips_in(folder):
            place = f"{there}/{clip.relative_to(folder).as_posix()}"
            if (place, size) in self._clips:
                continue
            if not self._files.exists(place) or self._files.size(place) != size:
                self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
                if not self._put(clip, run, place):
                    continue
            self._clips.add((place, size))
        if (folder / _INDEX).is_file():
            self._files.makedirs(there, exist_ok=True)
            self._put(folder / _INDEX, run, f"{there}/{_INDEX}")

    def _put(self, here: Path, run: Path, there: str) -> bool:
        """Copies a file; returns False if it was deleted or shortened meanwhile, in which case the copy is
        incomplete."""
        try:
            piece, size = _piece(here, run, 0)
        except (FileError, OSError):
            return False
        place = 0
        with self._files.open(there, "wb") as file:
            while piece:
                file.write(piece)
                self.moved_at = time.monotonic()
                place += len(piece)
                try:
                    piece = _piece(here, run, place)[0] if place < size else b""
                except (FileError, OSError):
                    return False
        return place >= size


def _piece(file: Path, run: Path, place: int) -> tuple[bytes, int]:
    """Returns (bytes from `place` on, size of the file).

    Raises FileError or OSError unless it is a regular file below `run` without links in its path.
    """
    with open_inside(file, run) as opened:
        opened.seek(place)
        return opened.read(_PIECE_BYTES), os.fstat(opened.fileno()).st_size


def _clips_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields (path, size) of the clips and pictures in a folder, then in its subfolders; follows no links."""
    entries = _entries(folder)
    for entry in [*entries, *(inner for one in entries if _is_folder(one) for inner in _entries(one))]:
        if entry.suffix in _CLIPS and entry.is_file() and not entry.is_symlink():
            with contextlib.suppress(OSError):  # deleted meanwhile
                yield entry, entry.stat().st_size


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [folder / name for name in sorted(os.listdir(folder)) if name[0] != "."] if _is_folder(folder) else []
    return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
