"""What the reader of another trainer's settings is handed, and the folders that those settings name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ....errors import DatasetError
from ..media_file import CLIP_SUFFIXES, STILL_SUFFIXES, MediaFile, Rejected, media_names
from ..part import SourceFile
from ..places import PlaceError, existing_place
from .ledger import Ledger, rounded_side

__all__ = ["Context", "area_of", "only_kind", "with_beside"]

_KINDS = {"clip": CLIP_SUFFIXES, "still": STILL_SUFFIXES}


@dataclass(frozen=True)
class Context:
    """Where the settings lie, and what the model that is trained wants."""

    source: SourceFile
    """relative folders count from its folder"""

    @property
    def path(self) -> Path:
        """Of the settings file."""
        return self.source.path

    @property
    def allowed(self) -> Sequence[Path]:
        """Every folder and file must lie below one of these."""
        return self.source.allowed

    def place(self, text: str, ledger: Ledger) -> Path:
        """The folder or file that the settings call `text`.

        Settings often come from another machine: a path that does not exist here is looked for by its last parts
        beside the settings, and the report says so.
        """
        try:
            return existing_place(text, self.path.parent, self.allowed)
        except PlaceError as error:
            found = self._beside(text)
            if found is None:
                raise DatasetError(
                    f"{ledger.where}: {text[:200]!r} {error}. Put it beside {self.path.name}, or correct the path."
                ) from error
        ledger.change(f'"{text}" -> "{found.relative_to(self.path.parent).as_posix()}" beside the settings')
        return found

    def _beside(self, text: str) -> Path | None:
        parts = [part for part in re.split(r"[\\/]+", text) if part not in ("", ".", "..", "~")]
        for start in range(len(parts)):
            try:
                return existing_place("/".join(parts[start:]), self.path.parent, self.allowed)
            except PlaceError:
                continue
        return None


def area_of(width: float, height: float, context: Context, ledger: Ledger, key: str) -> dict[str, int]:
    """width and height for DatasetConfig, rounded to what the model needs; a change is named."""
    if not (1 <= width <= 100_000 and 1 <= height <= 100_000):
        raise DatasetError(f"{ledger.where}: {key} is {width:g}x{height:g}. Set both sides between 16 and 4096.")
    sides = [rounded_side(side, context.source.size_multiple) for side in (width, height)]
    if sides == [width, height]:
        ledger.take(f"{key} {sides[0]}x{sides[1]}")
    else:
        ledger.change(
            f"{key} {width:g}x{height:g} -> {sides[0]}x{sides[1]} "
            f"(sides are multiples of {context.source.size_multiple})"
        )
    return {"width": sides[0], "height": sides[1]}


def only_kind(files: Sequence[MediaFile], kind: str, ledger: Ledger) -> tuple[MediaFile, ...]:
    """The clips or the stills among `files`; DatasetError when there are none."""
    kept = tuple(file for file in files if file.path.suffix.lower() in _KINDS[kind])
    if not kept:
        raise DatasetError(f"{ledger.where}: no {kind}s are there. Put {kind}s into the folder, or remove the dataset.")
    if len(kept) < len(files):
        ledger.change(
            f"{len(files) - len(kept)} files of the folder are no {kind}s and belong to no part of this dataset"
        )
    return kept


def with_beside(
    files: Sequence[MediaFile], folder: Path, role: str, *, required: bool, ledger: Ledger
) -> tuple[tuple[MediaFile, ...], tuple[Rejected, ...]]:
    """`files` with the control video or mask of the same name in `folder`; those that need one and have none, named."""
    by_stem = {Path(name).stem: folder / name for name in media_names(folder)}
    found = {file.path: by_stem.get(file.path.stem) for file in files}
    without = [file for file in files if found[file.path] is None]
    ledger.take(f"{role} files of {folder.name}: {len(files) - len(without)} of {len(files)}")
    if without and not required:
        ledger.change(f"{len(without)} files without a {role} file are trained without one")
    kept = [file for file in files if found[file.path] is not None or not required]
    rejected = [Rejected(name=file.shown_name, reason=f"has no {role} file in {folder.name}") for file in without]
    set_ = {"control": "control", "mask": "mask"}[role]
    return (
        tuple(replace(file, **{set_: found[file.path]}) for file in kept),
        tuple(rejected) if required else (),
    )
