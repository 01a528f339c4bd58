"""Control and mask videos beside clips: which file goes with which clip.

`clip.mp4` is accompanied by `control/clip.mp4` and `mask/clip.png` (folders `controls` and `masks` too), or by
`clip_control.mp4` and `clip_mask.png` in its own folder; the suffix may be that of any clip or still. A list may name
other files, which then count instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from .media_file import CLIP_SUFFIXES, COMPANION_FOLDERS, STILL_SUFFIXES, MediaFile

__all__ = ["COMPANION_KINDS", "with_companions"]

COMPANION_KINDS = ("control", "mask")

_Listing = Callable[[Path], dict[str, str]]


def with_companions(files: Sequence[MediaFile], wanted: Collection[str]) -> list[MediaFile]:
    """`files` with their `control` and `mask` filled in where those are `wanted` and there is such a file.

    Files that go with another one of the list are no longer items of their own. With nothing wanted, nothing changes.
    """
    if not wanted:
        return list(files)
    beside = lru_cache(maxsize=None)(_media_by_stem)
    found: list[MediaFile] = []
    for file in files:
        if not _goes_with_another(file.path, wanted, beside):
            missing = {kind: _companion(file.path, kind, beside) for kind in wanted if getattr(file, kind) is None}
            found.append(replace(file, **missing))
    named = {path for file in found for path in (file.control, file.mask) if path is not None}
    return [file for file in found if file.path not in named]


def _companion(path: Path, kind: str, beside: _Listing) -> Path | None:
    folder = path.parent
    places = [(folder / name, path.stem) for name, of in COMPANION_FOLDERS.items() if of == kind]
    for place, stem in (*places, (folder, f"{path.stem}_{kind}")):
        if stem in beside(place):
            return place / beside(place)[stem]
    return None


def _goes_with_another(path: Path, wanted: Collection[str], beside: _Listing) -> bool:
    """True for control/clip.mp4 and clip_control.mp4 where clip.* lies in its place."""
    folder = path.parent
    if COMPANION_FOLDERS.get(folder.name) in wanted and path.stem in beside(folder.parent):
        return True
    stem, _, kind = path.stem.rpartition("_")
    return kind in wanted and stem in beside(folder)


def _media_by_stem(folder: Path) -> dict[str, str]:
    """Name without suffix -> file name, of the clips and stills in a folder; of several, the first by name."""
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError:
        return {}
    kinds = CLIP_SUFFIXES | STILL_SUFFIXES
    return {Path(name).stem: name for name in names if Path(name).suffix.lower() in kinds}
