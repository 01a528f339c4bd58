"""Roots: named folders. Run files name a file as `diffusion_models:wan/x.safetensors`, independent of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .reading import FileError, read_json
from .writing import atomic_write_json


@dataclass(frozen=True)
class Roots:
    """Named folders, each with its absolute search paths."""

    folders: dict[str, tuple[str, ...]]
    """root name -> absolute folders, in search order"""

    @classmethod
    def read(cls, path: Path) -> Roots:
        """Read a roots file: a JSON object of lists of folders."""
        data = read_json(path)
        if not isinstance(data, dict) or not all(isinstance(v, list) for v in data.values()):
            raise ConfigError(f'{path.name} must look like {{"diffusion_models": ["/models/diffusion_models"], ...}}.')
        return cls({name: tuple(str(f) for f in folders) for name, folders in data.items()})

    def write(self, path: Path, below: Path | None = None) -> None:
        """Write a roots file atomically."""
        atomic_write_json(path, {name: list(folders) for name, folders in self.folders.items()}, below)

    def first(self, name: str) -> Path:
        """Returns the first folder of a root, into which new files are written."""
        folders = self.folders.get(name)
        if not folders:
            raise ConfigError(f'No folder is known for root "{name}". Add it to the file given with --roots.')
        return Path(folders[0])

    def resolve(self, reference: str) -> Path:
        """Returns the existing path of `root:relative`, confined to its root."""
        name, separator, relative = reference.partition(":")
        if not separator:
            raise ConfigError(
                f'{reference!r} is not of the form root:path, for example "diffusion_models:wan.safetensors".'
            )
        if not self.folders.get(name):
            raise ConfigError(f'Root "{name}" of {reference!r} is unknown. Add it to the file given with --roots.')
        # Links in a model folder are allowed, since users link other drives; only '..' and absolute paths are refused.
        if os.path.isabs(relative) or ".." in Path(relative).parts:
            raise FileError(f"{reference!r} leads outside its folder. Use a name inside it.")
        for folder in self.folders[name]:
            path = Path(folder) / relative
            if path.exists():
                return path
        raise FileError(
            "{reference} was not found in: {folders}. Put the file there, or choose another.",
            reference=f"{reference!r}",
            folders=", ".join(self.folders[name]),
        )
