"""Files that settings name: on disk next to the settings, or texts that are uploaded with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..dataset import DatasetConfig
from ..importers import SourceFile, open_source, read_settings_text


@dataclass(frozen=True)
class Folders:
    """Files on disk: below one of the folders, by the last parts of their path, which is often of another machine."""

    folders: tuple[Path, ...]

    def text(self, named: str) -> tuple[str, str] | None:
        """Returns (name, text) of a file; None for a missing one."""
        path = self._found(named)
        return None if path is None else (path.name, read_settings_text(path))

    def clips(self, named: str) -> int:
        """Returns the clips per epoch of dataset settings, repeats included; 0 for an unknown number.

        WanTrainerError for invalid settings or folders.
        """
        path = self._found(named)
        if path is None:
            return 0
        places = [folder.resolve() for folder in (path.parent, *self.folders)]
        parts = open_source(SourceFile(path=path.resolve(), allowed=places, beside=places[1:], unpacked=None))
        return sum(len(part.files) * int(part.settings.get("num_repeats", DatasetConfig.num_repeats)) for part in parts)

    def _found(self, named: str) -> Path | None:
        for folder in self.folders:
            for tail in _tails(named):
                path = folder.joinpath(*tail)
                if path.is_file():
                    return path
        return None


@dataclass(frozen=True)
class Texts:
    """Uploaded texts by name; nothing is read from disk."""

    texts: Mapping[str, str]
    missing: list[str] = field(default_factory=list[str])
    """paths of requested files that were not uploaded"""

    def text(self, named: str) -> tuple[str, str] | None:
        for tail in _tails(named):
            name = "/".join(tail)
            if name in self.texts:
                return tail[-1], self.texts[name]
        if named not in self.missing:
            self.missing.append(named)
        return None

    def clips(self, named: str) -> int:
        return 0


NamedFiles = Folders | Texts


def _tails(named: str) -> Iterator[list[str]]:
    """Yields the parts of a path, then all but the first part, and so on, down to the file name."""
    parts = [part for part in named.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    for start in range(len(parts)):
        yield parts[start:]
