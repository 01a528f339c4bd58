"""Copies saved steps and previews to a bucket, a server or another disk."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError, DependencyError, WanTrainerError
from ..events import CheckpointSaved, Event, Finished, SampleReady
from ..files import FileError, open_inside
from ..packages import pip_line
from .settings import MirrorSettings

_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "smb": "smbprotocol",
    "hf": "huggingface_hub",
}
_OF_THE_RUN = ("run.json", "metrics.jsonl")
_STEP = re.compile(r"step-\d{6,}")
_PIECE_BYTES = 8 << 20
_SAMPLES, _INDEX = "samples", "index.json"
_CLIPS = (".mp4", ".webm", ".png", ".webp")
_STATE, _MANIFEST = "state.safetensors", "manifest.json"


class Gone(WanTrainerError):  # noqa: N818  not an error of the program
    """A saved step was pruned before it was copied."""


class Mirror:
    """Copies saved steps, metrics and clips. The manifest is copied last, so a folder with a manifest is complete.

    What the mirror lacks is copied with the next saved step, at the end, and in later sessions. Links are not followed.
    """

    title = "The mirror"
    patience_s = 3600.0

    def __init__(self, settings: MirrorSettings, directory: Path) -> None:
        """Raises DependencyError without the library for the address, ConfigError for an invalid address."""
        import fsspec

        scheme = urlsplit(settings.url).scheme
        if "://" not in settings.url:
            raise ConfigError("mirror.url has no protocol. Write file:///folder or s3://bucket/folder.")
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
        self._url, self._with_state, self._directory = settings.url, settings.state, directory
        self._files: Any = None
        self._there = ""
        self.saved: set[str] = set()
        """folders of saved steps that the mirror has"""

        self._clips: set[tuple[str, int]] = set()
        """(path, size) of clips that the mirror has"""
        self.moved_at = 0.0

    def begin(self) -> None:
        """Opens the storage."""
        from fsspec.core import url_to_fs

        self._files, root = url_to_fs(self._url)
        self._there = f"{root.rstrip('/')}/{self._directory.name}"

    def take(self, event: Event) -> None:
        """Copies what the mirror lacks at a saved step, a preview and the end. Raises Gone, and the errors of the
        storage."""
        if isinstance(event, CheckpointSaved | SampleReady | Finished):
            self.copy()
        if isinstance(event, CheckpointSaved) and (name := event.folder.rpartition("/")[2]) not in self.saved:
            raise Gone(f"{name} was pruned before it was copied. Raise keep_last_saves.")

    def end(self) -> None:
        """Copies what failed before."""
        self.copy()

    def copy(self) -> None:
        """Copies missing saved steps and clips, and the run's settings and metrics."""
        self._files.makedirs(self._there, exist_ok=True)
        for folder in self._missing_steps():
            self._copy_step(folder, f"{self._there}/{folder.name}")
        for name in _OF_THE_RUN:
            self._put(self._directory / name, f"{self._there}/{name}")
        self._copy_clips(self._directory / _SAMPLES, f"{self._there}/{_SAMPLES}")

    def _missing_steps(self) -> Iterator[Path]:
        """Yields the saved steps of the run that are not complete at the mirror, oldest first."""
        for folder in sorted(_entries(self._directory / "saves"), key=lambda path: (len(path.name), path.name)):
            if folder.name in self.saved or not _STEP.fullmatch(folder.name) or not _is_folder(folder):
                continue
            manifest, there = folder / _MANIFEST, f"{self._there}/{folder.name}/{_MANIFEST}"
            with contextlib.suppress(OSError):  # pruned meanwhile
                # compared by content, because an earlier run of the same name may have copied another step
                if self._files.exists(there) and self._files.cat_file(there) == manifest.read_bytes():
                    self.saved.add(folder.name)
                elif manifest.is_file():
                    yield folder

    def _copy_step(self, folder: Path, there: str) -> None:
        names = [file.name for file in _entries(folder) if file.is_file() and not file.is_symlink()]
        wanted = [name for name in names if name != _MANIFEST and (self._with_state or name != _STATE)]
        self._files.makedirs(there, exist_ok=True)
        if self._files.exists(f"{there}/{_MANIFEST}"):  # a step of another run
            self._files.rm_file(f"{there}/{_MANIFEST}")
        if all(self._put(folder / name, f"{there}/{name}") for name in (*wanted, _MANIFEST)):
            self.saved.add(folder.name)

    def _copy_clips(self, folder: Path, there: str) -> None:
        """Copies the clips of a folder and its subfolders that are missing or differ in size, then the folder's
        index."""
        for clip, size in _clips_in(folder):
            place = f"{there}/{clip.relative_to(folder).as_posix()}"
            if (place, size) in self._clips:
                continue
            if not self._files.exists(place) or self._files.size(place) != size:
                self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
                if not self._put(clip, place):
                    continue
            self._clips.add((place, size))
        if (folder / _INDEX).is_file():
            self._files.makedirs(there, exist_ok=True)
            self._put(folder / _INDEX, f"{there}/{_INDEX}")

    def _put(self, here: Path, there: str) -> bool:
        """Copies a file; returns False if it was deleted meanwhile, or is no regular file of the run."""
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(open_inside(here, self._directory))
            except (FileError, OSError):
                return False
            with self._files.open(there, "wb") as copy:
                shutil.copyfileobj(file, copy, _PIECE_BYTES)
        self.moved_at = time.monotonic()
        return True


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
