"""Finds the caption file of a media file or of one of its shots by name, and unread files that look like one.

Names are compared in NFC (macOS stores NFD), suffixes case-insensitively. The stem is case-sensitive: A.mp4 and a.mp4
may be two clips. The caption file of a shot has the shot's start in its name: `long@12.48s.txt`.
"""

from __future__ import annotations

import contextlib
import os
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ..files import lies_under
from ..video import STILL_SUFFIXES, shown
from .files import CLIP_SUFFIXES

_ENDINGS = (".txt", ".caption", ".json", ".cap")
_FOLDERS = ("captions", "caption", "texts", "labels")
_LISTS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_LINES = ("prompt.txt", "prompts.txt", "captions.txt")
_OF_SHOT = re.compile(r"(.+)@([0-9]{1,6}(?:\.[0-9]{1,6})?)s")
_NEAR_S = 0.1
"""largest difference between the start of a shot and the time in a file name"""


def in_one_form(name: str) -> str:
    """Returns a name in NFC."""
    return unicodedata.normalize("NFC", name)


class CaptionNames:
    """Finds the caption files of one dataset. Lists each folder once."""

    def __init__(self, ending: str, allowed: Sequence[Path] = ()) -> None:
        """Messages mention folders below `allowed` only."""
        self._ending, self._allowed = ending, tuple(allowed)
        self._of_folder = lru_cache(maxsize=None)(_names_of)
        self._shots_in = lru_cache(maxsize=None)(self._shots_of_folder)

    def file_of(self, path: Path) -> Path:
        """Returns the caption file of a media file: the existing one, or the one to create."""
        exact = path.with_suffix(self._ending)
        alike = self._of_folder(path.parent).get(_compared(exact.name), [exact.name])
        return path.with_name(min(alike, key=lambda name: (name != exact.name, name)))

    def of_shot(self, path: Path, shot_s: float) -> Path:
        """Returns the caption file of the shot that starts at `shot_s`: the existing one, or the one to create."""
        near = [(abs(start_s - shot_s), name) for start_s, name in self._of_shots(path)]
        found = min((one for one in near if one[0] <= _NEAR_S), default=None)
        return path.with_name(found[1] if found else f"{path.stem}@{shot_s:.2f}s{self._ending}")

    def without_shot(self, path: Path, shots_s: Sequence[float]) -> list[str]:
        """Returns the names of caption files of shots of `path` that start at none of `shots_s`."""
        return [name for at_s, name in self._of_shots(path) if all(abs(at_s - one) > _NEAR_S for one in shots_s)]

    def _of_shots(self, path: Path) -> list[tuple[float, str]]:
        """Returns (start in seconds, name) of the caption files of shots of a media file."""
        return self._shots_in(path.parent).get(in_one_form(path.stem), [])

    def _shots_of_folder(self, folder: Path) -> dict[str, list[tuple[float, str]]]:
        names, found = self._of_folder(folder), dict[str, list[tuple[float, str]]]()
        for key in sorted(name for name in names if "@" in name and name.endswith(self._ending.lower())):
            stem = key[: -len(self._ending)]
            # long@2.00s.txt is the caption of long@2.00s.mp4 if there is one.
            is_of_clip = any(stem + ending in names for ending in (*CLIP_SUFFIXES, *STILL_SUFFIXES))
            if (match := _OF_SHOT.fullmatch(stem)) and not is_of_clip:
                found.setdefault(match[1], []).append((float(match[2]), names[key][0]))
        return found

    def unread(self, path: Path) -> str:
        """Returns a clause that names a file which looks like the missing caption of `path`; "" if there is none."""
        names, wanted = self._of_folder(path.parent), shown(path.with_suffix(self._ending))
        exact = _compared(path.stem + self._ending)
        others = [ending for ending in _ENDINGS if ending != self._ending]
        alike = [
            (path.name + self._ending, f"rename it to {wanted}"),
            *((path.stem + ending, f"set caption_extension to {ending}") for ending in others),
        ]
        for name, fix in alike:
            if found := names.get(_compared(name)):
                return f"{shown(found[0])} exists but is not read: {fix}"
        if found := next((name for name in names if name != exact and name.lower() == exact.lower()), None):
            return f"{shown(names[found][0])} differs in capital letters: rename it to {wanted}"
        near = (place / name for place in (path.parent, path.parent.parent) for name in _FOLDERS)
        for folder in (folder for folder in near if lies_under(folder, self._allowed)):
            for ending in (self._ending, *others):
                if found := self._of_folder(folder).get(_compared(path.stem + ending)):
                    return f"{folder.name}/{shown(found[0])} exists but is not read: move it next to {shown(path)}"
        if found := next((name for name in names if name.endswith(_LISTS)), None):
            return f"{shown(names[found][0])} exists: Wan Dataset From File reads lists"
        if found := next((name for name in names if name.lower() in _LINES), None):
            return f"{shown(names[found][0])} exists but is not read: put its lines into a list, each with its file"
        return ""


def _compared(name: str) -> str:
    stem, dot, ending = in_one_form(name).rpartition(".")
    return f"{stem}{dot}{ending.lower()}"


def _names_of(folder: Path) -> dict[str, list[str]]:
    """Returns normalised name -> file names, of a folder."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            found.setdefault(_compared(name), []).append(name)
    return found
