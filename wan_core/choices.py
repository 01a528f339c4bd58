"""Choices about clips: which are excluded, which piece of a clip is trained, and where its crop is.

`wan_dataset.json` next to the clips holds them by file name, so that no clip is moved or changed:
`{"version": 1, "clips": {"a.mp4": {"excluded": true}, "b.mp4": {"start_s": 1.5, "length_s": 2, "crop": [0.5, 0]}}}`.
Keys that we do not know stay in the file.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from .errors import DatasetError
from .files import FileError, lies_under, open_regular

CHOICES_FILE = "wan_dataset.json"
CHOICES_BYTES = 16 << 20
"""largest file, more than the choices of 100,000 clips"""
_VERSION = 1
_LONGEST_S = 1e6
_FIX = "Correct it in a text editor, or delete it: then all clips are trained from their start and cropped at the "
"centre."


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice about one clip; the defaults are those of a clip without a choice."""

    excluded: bool = False
    start_s: float = 0.0
    """start of the piece, in seconds from the first frame"""
    length_s: float | None = None
    """length of the piece; None: to the end of the clip"""
    crop: tuple[float, float] | None = None
    """place of the crop, x and y: 0 is left or top, 1 is right or bottom; None: as the settings say"""

    @property
    def is_piece(self) -> bool:
        """Whether a part of the clip is chosen."""
        return self.start_s > 0 or self.length_s is not None

    def to_dict(self) -> dict[str, Any]:
        """Returns the choice as JSON data, without defaults."""
        own = {"excluded": self.excluded or None, "start_s": self.start_s or None, "length_s": self.length_s}
        crop = None if self.crop is None else list(self.crop)
        return {name: value for name, value in {**own, "crop": crop}.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Any, what: str) -> Choice:
        """Returns a choice from JSON data; DatasetError names `what` and the wrong value."""
        if not isinstance(data, dict):
            raise DatasetError(f"{what} is no object in braces. {_FIX}")
        known = cast("dict[str, Any]", data)
        excluded, crop = known.get("excluded", False), known.get("crop")
        if not isinstance(excluded, bool):
            raise DatasetError(f"excluded of {what} is {_short(excluded)}; it is true or false. {_FIX}")
        start_s = _number(known.get("start_s", 0.0), 0.0, _LONGEST_S)
        length_s = _number(known.get("length_s", 1.0), 0.0, _LONGEST_S)
        if start_s is None or not length_s:
            raise DatasetError(f"start_s or length_s of {what} is not a number of seconds. {_FIX}")
        places = [_number(place, 0.0, 1.0) for place in (cast("list[Any]", crop) if isinstance(crop, list) else [])]
        if crop is not None and (len(places) != 2 or None in places):
            raise DatasetError(f"crop of {what} is {_short(crop)}; it is two numbers from 0 to 1, x and y. {_FIX}")
        return cls(
            excluded=excluded,
            start_s=start_s,
            length_s=length_s if "length_s" in known else None,
            crop=cast("tuple[float, float]", tuple(places)) if crop is not None else None,
        )


PLAIN = Choice()
"""a clip without a choice"""


def read_choices(data: bytes | None, where: str) -> dict[str, Choice]:
    """Returns file name -> choice of the bytes of a choices file; None: there is no file. DatasetError names `where`.

    A name is there as it is written, and composed (NFC), because macOS decomposes é.
    """
    clips = _parsed(data, where)["clips"]
    found = {name: Choice.from_dict(value, f"{_short(name)} in {where}") for name, value in clips.items()}
    return {**{_form(name): choice for name, choice in found.items()}, **found}


def with_choice(data: bytes | None, where: str, name: str, choice: Choice) -> bytes | None:
    """Returns the bytes of a choices file with another choice about one clip; None if none is left to be kept."""
    parsed = _parsed(data, where)
    clips: dict[str, Any] = parsed["clips"]
    known = name if name in clips else next((key for key in clips if _form(key) == _form(name)), name)
    others = {key: value for key, value in clips.get(known, {}).items() if key not in _FIELDS}
    entry = {**choice.to_dict(), **others}
    clips.pop(known, None)
    if entry:
        clips[known] = entry
    if not clips and parsed.keys() == {"version", "clips"}:
        return None
    try:
        # One clip a line, which people and version control read best.
        lines = ",\n".join(f"    {_json(key)}: {_json(clips[key])}" for key in sorted(clips))
        above = "".join(f"  {_json(key)}: {_json(value)},\n" for key, value in parsed.items() if key != "clips")
    except RecursionError as error:
        raise DatasetError(f"{where} has too many brackets inside each other. {_FIX}") from error
    text = f'{{\n{above}  "clips": {{\n{lines}\n  }}\n}}\n'
    # A file name that is not UTF-8 has lone surrogates; `backslashreplace` writes their JSON escapes.
    return text.encode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Choices:
    """The choices of a scan; each folder's file is read once."""

    allowed: Sequence[Path] = ()
    """folders into which a link may lead, besides its own"""
    _folders: dict[Path, dict[str, Choice]] = field(default_factory=dict[Path, dict[str, Choice]])

    def of(self, path: Path) -> Choice:
        """Returns the choice about a media file; DatasetError if the file of choices cannot be read."""
        folder = path.parent
        if folder not in self._folders:
            self._folders[folder] = self._read(folder / CHOICES_FILE)
        return choice_of(self._folders[folder], path.name)

    def _read(self, file: Path) -> dict[str, Choice]:
        if not os.path.lexists(file):
            return {}
        where = f"{CHOICES_FILE} of folder {_short(file.parent.name)}"
        if file.is_symlink() and not lies_under(file, (file.parent, *self.allowed)):
            raise DatasetError(f"{where} is a link that leads outside the allowed folders. Put the file itself there.")
        try:
            with open_regular(os.path.realpath(file), follow_links=False) as opened:
                data = opened.read(CHOICES_BYTES + 1)
        except (FileError, OSError) as error:
            raise DatasetError(f"{where} cannot be read: {error}") from error
        return read_choices(data, where)


def choice_of(choices: Mapping[str, Choice], name: str) -> Choice:
    """Returns the choice about the file `name` of a folder with these choices."""
    return choices.get(name) or choices.get(_form(name), PLAIN)


_FIELDS = ("excluded", "start_s", "length_s", "crop")


def _parsed(data: bytes | None, where: str) -> dict[str, Any]:
    """Returns the JSON object of a choices file, with its version and the objects of its clips."""
    if data is None or not data.strip():
        return {"version": _VERSION, "clips": {}}
    if len(data) > CHOICES_BYTES:
        raise DatasetError(f"{where} is larger than {CHOICES_BYTES >> 20} MiB. {_FIX}")
    try:
        parsed: Any = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where} is not valid JSON ({error}). {_FIX}") from error
    known = cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
    version, clips = known.get("version"), known.get("clips")
    if type(version) is int and version > _VERSION:
        raise DatasetError(f"{where} is of version {version}, which this version does not know. Update the pack.")
    if version != _VERSION or not isinstance(clips, dict) or not all(isinstance(one, dict) for one in clips.values()):
        raise DatasetError(f'{where} is not {{"version": {_VERSION}, "clips": {{...}}}}. {_FIX}')
    return known


def _form(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _number(value: Any, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high and math.isfinite(value) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    return repr(value)[:120]
