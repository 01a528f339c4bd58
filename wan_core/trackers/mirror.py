"""Saved steps, copied to a folder elsewhere: a bucket, a server, another disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError, DependencyError, WanTrainerError
from ..events import CheckpointSaved, Event, Finished
from ..packages import pip_line
from ..train import SaveStore
from .figures import About
from .settings import MirrorSettings

__all__ = ["Mirror"]

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
_STATE, _MANIFEST = "state.safetensors", "manifest.json"


class Gone(WanTrainerError):  # noqa: N818  what happened, as a sentence
    """A saved step was pruned before it was copied."""


class Mirror:
    """Copies each saved step once it is committed; the manifest goes last, so a folder that has one is whole.

    What could not be copied is tried again with the next saved step and at the end, in a later session too.
    """

    title = "The mirror"
    patience_s = 900.0

    def __init__(self, settings: MirrorSettings, directory: Path, about: About) -> None:
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
        self._directory, self._folder = directory, about.folder
        self._files: Any = None
        self._root = ""
        self._whole: set[str] = set()
        """saved steps that are known to be there"""

    def begin(self) -> None:
        """Makes the run's folder there."""
        from fsspec.core import url_to_fs

        self._files, root = url_to_fs(self._url)
        self._root = f"{root.rstrip('/')}/{self._folder}"
        self._files.makedirs(self._root, exist_ok=True)

    def take(self, event: Event) -> None:
        """Copies a saved step, then those that are not there yet; at the end of the run what it measured too.

        Raises Gone, and what the storage raises.
        """
        if isinstance(event, CheckpointSaved):
            self._copy_step(self._directory / event.folder)
        if isinstance(event, CheckpointSaved | Finished):
            for folder in self._behind():
                self._copy_step(folder)
        if isinstance(event, CheckpointSaved | Finished):
            for name in _OF_THE_RUN:
                self._put(self._directory / name, f"{self._root}/{name}")

    def end(self) -> None:
        """Nothing is held open."""

    def _behind(self) -> Iterator[Path]:
        """The saved steps of the run that are not there whole, oldest first."""
        for step in SaveStore(self._directory).steps():
            folder = self._directory / "saves" / f"step-{step:06d}"
            if folder.name in self._whole:
                continue
            if self._files.exists(f"{self._root}/{folder.name}/{_MANIFEST}"):
                self._whole.add(folder.name)
            elif (folder / _MANIFEST).is_file():
                yield folder

    def _copy_step(self, folder: Path) -> None:
        try:
            names = sorted(file.name for file in folder.iterdir() if file.is_file() and not file.is_symlink())
        except FileNotFoundError:
            names = []
        there = f"{self._root}/{folder.name}"
        wanted = [name for name in names if name != _MANIFEST and (self._with_state or name != _STATE)]
        if _MANIFEST not in names:
            raise Gone(f"{folder.name} was pruned before it was copied. Raise keep_last_saves.")
        self._files.makedirs(there, exist_ok=True)
        for name in (*wanted, _MANIFEST):
            self._put(folder / name, f"{there}/{name}")
        self._whole.add(folder.name)

    def _put(self, here: Path, there: str) -> None:
        if here.is_file():
            self._files.put_file(str(here), there)
