"""The account of a section of another trainer's settings: keys that are imported, changed, or have no counterpart.

Keys that the importer does not know are listed too, so that none is ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, cast

from ...dataset.allowed import PlaceError, existing_place
from ...dataset.caption_names import in_one_form
from ...dataset.files import CLIP_SUFFIXES, STILL_SUFFIXES, MediaFile, Rejected, SourcePart, media_names
from ...errors import DatasetError
from ...words import filled
from ..source import SourceFile

T = TypeVar("T")

MOST_FRAMES = 1001
"""largest num_frames of DatasetConfig"""

_MOST_PARTS = 40
"""largest number of last parts of a path by which a path of another machine is searched"""
TYPE_WORDS: dict[type[Any], str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


class Ledger:
    """Reads the keys of a section, which overrides a general section."""

    def __init__(self, where: str, section: Mapping[str, Any], general: Mapping[str, Any] | None = None) -> None:
        """`where` begins every sentence: "musubi.toml, dataset 1"."""
        self.where = where
        self._section = section
        self._values: dict[str, Any] = {**(general or {}), **section}
        self._asked: set[str] = set()
        self._taken: list[str] = []
        self._changed: list[str] = []
        self._without: list[str] = []
        self._unknown: list[str] = []
        self._left_out: list[str] = []

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def names(self) -> list[str]:
        """Returns the keys that have a value."""
        return [key for key, value in self._values.items() if value is not None]

    def get(self, key: str, kind: type[T], default: T) -> T:
        """Returns the value of `key`, and records that the importer knows it; raises DatasetError for a value of
        another type."""
        self._asked.add(key)
        value: Any = self._values.get(key)
        if value is None:
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind not in (bool, object) and isinstance(value, bool)):
            raise DatasetError(f"{self.where}: {key} is {str(value)[:60]!r}; it must be {TYPE_WORDS[kind]}.")
        return cast("T", value)

    def texts(self, key: str) -> list[str]:
        """Returns the value of `key`, a text or a list of texts, as a list."""
        self._asked.add(key)
        value = self._values.get(key)
        every = cast("list[Any]", value) if isinstance(value, list) else [] if value in (None, "") else [value]
        if not all(isinstance(text, str) for text in every):
            raise DatasetError(f"{self.where}: {key} is {str(value)[:60]!r}; it must be text or a list of texts.")
        return cast("list[str]", every)

    def whole_numbers(self, key: str, default: Sequence[int]) -> list[int]:
        """Returns the value of `key`, a whole number or a list of them, as a list."""
        value: Any = self.get(key, object, list(default))
        every = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not every or not all(isinstance(one, int) and not isinstance(one, bool) for one in every):
            raise DatasetError(f"{self.where}: {key} is {value!r:.60}; it must be a whole number, or a list of them.")
        return cast("list[int]", every)

    def take(self, template: str, **values: object) -> None:
        """Records a setting with the same meaning here; `values` fill the template (`words.filled`)."""
        self._taken.append(filled(template, **values))

    def change(self, template: str, **values: object) -> None:
        """Records a setting with another value here, in a sentence with both values."""
        self._changed.append(filled(template, **values))

    def drop(self, key: str, why: str = "") -> None:
        """Records a key that has no counterpart, if the settings have it."""
        self._asked.add(key)
        if key in self:
            said = f"{key} {short(self._values[key])}"
            self._without.append(filled("{said} ({why})", said=said, why=why) if why else said)

    def leave_out(self, key: str) -> None:
        """Records a key that has no counterpart and changes no result; these keys are listed in one line."""
        self._asked.add(key)
        self._left_out.append(key[:40])

    def drop_all(self, reasons: Mapping[str, str]) -> None:
        """Drops several keys; `reasons`: reason -> keys, separated by spaces."""
        for why, keys in reasons.items():
            for key in keys.split():
                self.drop(key, why)

    def absorb(self, inner: Ledger, name: str) -> None:
        """Merges the account of a table inside of this section into this account."""
        inner._complete()
        for own, others in zip(self._lists(), inner._lists(), strict=True):
            own += [filled("{name}.{sentence}", name=name, sentence=sentence) for sentence in others]
        self._left_out += [f"{name}.{key}" for key in inner._left_out]

    def complete(self) -> tuple[list[str], ...]:
        """Returns the lists of imported, changed, dropped and unknown keys; each key is in one of them."""
        self._complete()
        taken, changed, without, unknown = self._lists()
        return taken, changed, [*without, *([", ".join(self._left_out)] if self._left_out else [])], unknown

    def counts(self) -> tuple[int, ...]:
        """Returns how many keys each list of `complete` names."""
        taken, changed, without, unknown = map(len, self._lists())
        return taken, changed, without + len(self._left_out), unknown

    def _complete(self) -> None:
        spoken = " ".join([*self._left_out, *(sentence for sentences in self._lists() for sentence in sentences)])
        for key, value in self._values.items():
            if value is None or (key in spoken and re.search(rf"\b{re.escape(key)}\b", spoken)):
                continue
            said = f"{key[:40]} {short(value)}"
            (self._taken if key in self._asked else self._unknown).append(said)

    def sentences(self) -> list[str]:
        """Returns the account, a line per list."""
        titles = ("imported", "changed", "no counterpart here", "unknown, so not used")
        found = zip(titles, self.complete(), strict=True)
        return [f"{self.where}: {title}: {'; '.join(parts)}" for title, parts in found if parts]

    def _lists(self) -> tuple[list[str], ...]:
        return self._taken, self._changed, self._without, self._unknown


def rounded_frames(count: int, ledger: Ledger, key: str) -> int:
    """Returns the largest 4n+1 up to `count`, and records a change."""
    if not 1 <= count <= 100_000:
        raise DatasetError(f"{ledger.where}: {key} is {count}. Set it between 1 and 1001.")
    frames = min((count - 1) // 4 * 4 + 1, MOST_FRAMES)
    if frames != count:
        ledger.change(f"{key} {count} -> {frames} frames (Wan needs 4n+1)")
    return frames


def _rounded_side(pixels: float, multiple: int) -> int:
    return max(1, min(round(pixels / multiple), 4096 // multiple)) * multiple


def short(value: Any) -> str:
    text = str(value).replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."


_MAY_MOVE = (".webp", ".apng")
_KINDS = {"clip": CLIP_SUFFIXES, "still": STILL_SUFFIXES}


def found_place(text: str, source: SourceFile, ledger: Ledger) -> Path:
    """Returns the folder or file of the path `text` in the settings.

    Settings often come from another machine. If a path does not exist here, its last parts are searched next to the
    settings, and the account mentions a find.
    """
    own = source.path.parent
    try:
        return existing_place(text, own, source.allowed)
    except PlaceError as error:
        why = str(error)
    parts = [part for part in re.split(r"[\\/]+", text) if part not in ("", ".", "..", "~")][-_MOST_PARTS:]
    for folder, start in product((own, *source.beside), range(len(parts))):
        with suppress(PlaceError):
            found = existing_place("/".join(parts[start:]), folder, source.allowed)
            where = "beside the settings" if folder == own else f"in {folder.name}"
            ledger.change(f'"{text}" -> "{found.relative_to(folder).as_posix()}" {where}')
            return found
    raise DatasetError(f"{ledger.where}: {text[:200]!r} {why}. Put it next to {source.path.name}, or correct the path.")


def area_of(width: float, height: float, source: SourceFile, ledger: Ledger, key: str) -> dict[str, int]:
    """Returns width and height for DatasetConfig, rounded to the size multiple, and records a change."""
    if not (1 <= width <= 100_000 and 1 <= height <= 100_000):
        raise DatasetError(f"{ledger.where}: {key} is {width:g}x{height:g}. Set both sides between 16 and 4096.")
    sides = [_rounded_side(side, source.size_multiple) for side in (width, height)]
    if sides == [width, height]:
        ledger.take(f"{key} {sides[0]}x{sides[1]}")
    else:
        ledger.change(
            f"{key} {width:g}x{height:g} -> {sides[0]}x{sides[1]} (sides are multiples of {source.size_multiple})"
        )
    return {"width": sides[0], "height": sides[1]}


def only_kind(files: Sequence[MediaFile], kind: str, ledger: Ledger) -> tuple[MediaFile, ...]:
    """Returns the clips or the stills among `files`; DatasetError if there are none."""
    kept = tuple(file for file in files if file.path.suffix.lower() in _KINDS[kind])
    if not kept and kind == "clip":  # opening the file shows whether it is an animation
        kept = tuple(file for file in files if file.path.suffix.lower() in _MAY_MOVE)
    if not kept:
        raise DatasetError(f"{ledger.where}: no {kind}s are there. Put {kind}s into the folder, or remove the dataset.")
    if len(kept) < len(files):
        ledger.change(
            f"{len(files) - len(kept)} files of the folder are no {kind}s and belong to no part of this dataset"
        )
    return kept


def with_beside(
    files: tuple[MediaFile, ...], places: Mapping[str, str], ledger: Ledger, source: SourceFile
) -> tuple[tuple[MediaFile, ...], tuple[Rejected, ...], dict[str, Path]]:
    """Returns `files` with control videos and masks of equal names, the rejected files, and the folders by role.

    `places`: "control" or "mask" -> folder, or "". Files without a control video are rejected; files without a mask are
    not.
    """
    rejected: list[Rejected] = []
    folders = {role: found_place(text, source, ledger) for role, text in places.items() if text}
    for role, folder in folders.items():
        by_stem = {in_one_form(Path(name).stem): folder / name for name in media_names(folder)}
        found = {file.path: by_stem.get(in_one_form(file.path.stem)) for file in files}
        without = [file for file in files if found[file.path] is None]
        ledger.take(f"{role} files of {folder.name}: {len(files) - len(without)} of {len(files)}")
        if role == "control":
            rejected += [
                Rejected(name=one.shown_name, reason=f"has no {role} file in {folder.name}") for one in without
            ]
            files = tuple(file for file in files if found[file.path] is not None)
        elif without:
            ledger.change(f"{len(without)} files without a {role} file are trained without one")
        files = tuple(replace(file, **{role: found[file.path]}) for file in files)
    return files, tuple(rejected), folders


def parts_of(
    ledger: Ledger,
    pieces: Sequence[tuple[str, Sequence[MediaFile], Mapping[str, Any]]],
    rejected: Sequence[Rejected],
    watched: Sequence[Path],
) -> list[SourcePart]:
    """Returns one dataset for each (name, files, settings) of a section. The first dataset has the account and the
    rejected files."""
    notes = ledger.sentences()
    return [
        SourcePart(
            name=f"{ledger.where}, {name}" if len(pieces) > 1 else ledger.where,
            files=tuple(files),
            rejected=tuple(rejected) if number == 0 else (),
            notes=notes if number == 0 else (),
            settings=settings,
            watched=tuple(watched),
        )
        for number, (name, files, settings) in enumerate(pieces)
        if files or number == 0
    ]
