"""The files that settings name: on disk beside them, or texts that came with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..dataset import DatasetConfig
from ..importers import SourceFile, open_source, read_settings_text


class Beside(Protocol):
    """Answers for files by the path that settings call them; that path is often one of another machine."""

    def text(self, named: str) -> tuple[str, str] | None:
        """Returns (name, text) of a file; None where it is not there."""
        ...

    def clips(self, named: str) -> int:
        """Returns the clips of an epoch of dataset settings, repeats included; 0 where they cannot be counted.

        Raises a WanTrainerError where the settings or their folders are not as they say.
        """
        ...


@dataclass(frozen=True)
class Folders:
    """Files on disk, by their path or by its last parts below one of the folders."""

    folders: tuple[Path, ...]

    def text(self, named: str) -> tuple[str, str] | None:
        path = self._found(named)
        return None if path is None else (path.name, read_settings_text(path))

    def clips(self, named: str) -> int:
        """Opens no media file."""
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
    """Files that somebody handed over, by their names; nothing is read from disk."""

    texts: Mapping[str, str]
    missing: list[str] = field(default_factory=list[str])
    """what was asked for and did not come along, as the settings call it"""

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


def _tails(named: str) -> Iterator[list[str]]:
    """The parts of a path, then without the first, and so on to its name."""
    parts = [part for part in named.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    for start in range(len(parts)):
        yield parts[start:]
