"""Saved steps and previews, copied to a folder elsewhere: a bucket, a server, another disk."""

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
_LOOK_AGAIN_S = 0.5
_SAMPLES, _INDEX = "samples", "index.json"
_CLIPS = (".mp4", ".webm", ".png", ".webp")
_STATE, _MANIFEST = "state.safetensors", "manifest.json"


_COPIED_AT = (CheckpointSaved, SampleReady, Finished)


class Gone(WanTrainerError):  # noqa: N818  what happened, as a sentence
    """A saved step was pruned, or the run deleted, before it was copied."""


class Mirror:
    """Copies each saved step once it is committed; the manifest goes last, so a folder that has one is whole. Then what
    was measured, and the previews and clips of Validate Video, each once.

    What could not be copied is tried again with the next saved step and at the end, in a later session too, also of
    another run beside it. Of what is read nothing stays open and no link is followed: a run can be deleted meanwhile.
    """

    title = "The mirror"
    patience_s = 900.0

    def __init__(self, settings: MirrorSettings, directory: Path) -> None:
        """Raises DependencyError where the library for such an address is missing, ConfigError for no address."""
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
        self._whole: set[tuple[str, str]] = set()
        """saved steps that are known to be there, by run and folder"""
        self._clips: set[tuple[str, int]] = set()
        """clips that are known to be there, by their place and size"""
        self.outbox = Outbox(directory.parent, "mirror")
        self.moved_at = 0.0

    def keep(self, event: Event) -> None:
        """Notes in the outbox that there is something to copy. Raises OSError or FileError where that cannot be."""
        if isinstance(event, _COPIED_AT):
            saved = event.folder.rpartition("/")[2] if isinstance(event, CheckpointSaved) else ""
            self.outbox.put({"run": self._directory.name, "saved": saved})

    def begin(self) -> None:
        """Finds the storage."""
        from fsspec.core import url_to_fs

        self._files, root = url_to_fs(self._url)
        self._root = root.rstrip("/")

    def take(self, event: Event) -> None:
        """Copies the saved steps and previews that are not there yet, and what the run measured so far.

        Raises Gone, and what the storage raises.
        """
        if isinstance(event, _COPIED_AT):
            self._copy_waiting()

    def end(self) -> None:
        """Copies what waits; where another process does so, waits for it."""
        while not self._copy_waiting() and self.outbox.waiting():
            time.sleep(_LOOK_AGAIN_S)

    def _copy_waiting(self) -> bool:
        """Returns False where another process copies."""
        with self.outbox.alone() as alone:
            if not alone:
                return False
            waiting: dict[Path | None, dict[Path, str]] = {self._directory: {}}
            for file in self.outbox.waiting():
                if (message := self.outbox.read(file)) is not None:
                    waiting.setdefault(self.outbox.run_of(message), {})[file] = str(message.get("saved"))
            for directory, files in waiting.items():
                pruned = self._copy_run(directory, {*files.values()}) if directory is not None and files else []
                for file in files:  # noted later than this is copied later
                    self.outbox.remove(file)
                for name in pruned:
                    raise Gone(f"{name} was pruned before it was copied. Raise keep_last_saves.")
        return True

    def _copy_run(self, directory: Path, saved: set[str]) -> list[str]:
        """Returns those of `saved` that can no longer be copied."""
        there = f"{self._root}/{directory.name}"
        self._files.makedirs(there, exist_ok=True)
        for folder in self._behind(directory):
            self._copy_step(folder, f"{there}/{folder.name}")
        for name in _OF_THE_RUN:
            self._put(directory / name, directory, f"{there}/{name}")
        self._copy_clips(directory / _SAMPLES, directory, f"{there}/{_SAMPLES}")
        missing = (
            name for name in sorted(saved) if _STEP.fullmatch(name) and (directory.name, name) not in self._whole
        )
        return [name for name in missing if not self._files.exists(f"{there}/{name}/{_MANIFEST}")]

    def _behind(self, directory: Path) -> Iterator[Path]:
        """The saved steps of a run that are not there whole, oldest first."""
        saves = directory / "saves"
        names = sorted(os.listdir(saves), key=lambda name: (len(name), name)) if _is_folder(saves) else []
        for name in names:
            folder = saves / name
            if (directory.name, name) in self._whole or not _STEP.fullmatch(name) or not _is_folder(folder):
                continue
            if not (folder / _MANIFEST).is_file():
                continue
            if self._is_there(folder / _MANIFEST, directory, f"{self._root}/{directory.name}/{name}/{_MANIFEST}"):
                self._whole.add((directory.name, name))
            else:
                yield folder

    def _is_there(self, manifest: Path, run: Path, there: str) -> bool:
        """Returns whether a step is there whole, and is this one: a run of the name may have been there before."""
        if not self._files.exists(there):
            return False
        try:
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
        if self._files.exists(f"{there}/{_MANIFEST}"):  # of another run
            self._files.rm_file(f"{there}/{_MANIFEST}")
        if all(self._put(folder / name, folder.parent.parent, f"{there}/{name}") for name in (*wanted, _MANIFEST)):
            self._whole.add((folder.parent.parent.name, folder.name))

    def _copy_clips(self, folder: Path, run: Path, there: str) -> None:
        """Copies the clips of a folder and of those in it that are not there in their whole size, then its index."""
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
        """Returns False, and copies nothing or not all, where the file is gone or another one than it was."""
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
    """Returns some bytes from `place` on, and the size of the file, which is closed again. Raises FileError or OSError
    for what is no regular file of that name, and where a link is on the way to it.
    """
    with open_inside(file, run) as opened:
        opened.seek(place)
        return opened.read(_PIECE_BYTES), os.fstat(opened.fileno()).st_size


def _clips_in(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields the clips and pictures of a folder of samples, then those of the folders in it, with their sizes; none of
    links, or of what is deleted meanwhile.
    """
    entries = _entries(folder)
    for entry in [*entries, *(inner for one in entries if _is_folder(one) for inner in _entries(one))]:
        if entry.suffix in _CLIPS and _is_file(entry):
            with contextlib.suppress(OSError):
                yield entry, entry.stat().st_size


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [folder / name for name in sorted(os.listdir(folder)) if name[0] != "."] if _is_folder(folder) else []
    return []


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
