"""Reads and writes caption files and files of choices. Writing a caption keeps the byte order mark, the last line
break, and the other keys of a JSON object."""

from __future__ import annotations

import codecs
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..choices import CHOICES_BYTES, CHOICES_FILE, Choice, choice_of, read_choices, with_choice
from ..errors import DatasetError
from ..files import FileError, atomic_write_bytes, is_held, open_inside, remove_file
from ..video import shown
from .allowed import OUTSIDE
from .captions import CAPTION_KEYS, MAX_CAPTION_BYTES, bytes_in, caption_in, caption_key, decoded, one_line

CAPTION_SUFFIXES = (".txt", ".caption", ".json")
"""suffixes of caption files that may be written"""


def with_caption(path: Path, data: bytes | None, caption: str) -> bytes:
    """Returns the bytes `data` of the caption file `path` with another caption.

    Content that is not UTF-8 or JSON is replaced. Raises DatasetError if the result would not read as `caption`.
    """
    caption, is_json = one_line(caption), path.suffix.lower() == ".json"
    old = data or b""
    try:
        text = decoded(old)
        if is_json and text.strip():
            json.loads(text)
    except (ValueError, RecursionError):
        old = b""
    try:
        made = _json_with(old, caption) if is_json else _around(old, caption.encode())
        # Uses the parser of scans, so that a scan reads exactly this text.
        reads_back = caption_in(path, made) == caption
    except (DatasetError, ValueError):
        made, reads_back = b"", False
    if len(made) > MAX_CAPTION_BYTES:
        raise DatasetError("The caption is longer than 64 KiB. A caption is one paragraph.")
    if not reads_back:
        raise DatasetError(
            f"{shown(path)} cannot store this caption: it has a character that text files cannot store, or the file "
            "has numbers that JSON cannot. Write it again, or edit the file itself."
        )
    return made


def _around(old: bytes, made: bytes) -> bytes:
    """Returns `made`, with the byte order mark and the last line break of `old`."""
    mark = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
    end = next((end for end in (b"\r\n", b"\n") if old.endswith(end)), b"")
    return mark + made + end


def _json_with(old: bytes, caption: str) -> bytes:
    text = old.decode("utf-8-sig")
    known: Any = json.loads(text) if text.strip() else {}
    data = {**known, caption_key(known) or CAPTION_KEYS[0]: caption} if isinstance(known, dict) else caption
    spread = 2 if "\n" in text.strip() else None
    made = json.dumps(data, ensure_ascii=False, indent=spread, allow_nan=False)
    # Other keys may have lone surrogates, which UTF-8 cannot encode; `backslashreplace` writes their JSON escapes.
    return _around(old, made.encode("utf-8", "backslashreplace"))


class CaptionFolders:
    """The allowed folders; resolves each folder of a request once."""

    def __init__(self, allowed: Sequence[Path]) -> None:
        self._allowed = tuple(Path(os.path.realpath(folder)) for folder in allowed)
        self._known: dict[Path, tuple[Path, Path] | None] = {}
        self._choices: dict[Path, dict[str, Choice] | DatasetError] = {}

    def choice_of(self, path: Path) -> Choice:
        """Returns the choice about a media file; each folder's file is read once. DatasetError if it is unreadable."""
        folder = path.parent
        if folder not in self._choices:
            try:
                self._choices[folder] = read_choices(_bytes_of_choices(path, self), _where(path))
            except DatasetError as error:
                self._choices[folder] = error
        known = self._choices[folder]
        if isinstance(known, DatasetError):
            raise known
        return choice_of(known, path.name)

    def of(self, path: Path) -> tuple[Path, Path]:
        """Returns (path with its folder resolved, allowed folder that contains it); DatasetError if outside."""
        folder = path.parent
        if folder not in self._known:
            real = Path(os.path.realpath(folder))
            within = self.around(real)
            self._known[folder] = None if within is None else (real, within)
        known = self._known[folder]
        if known is None:
            raise DatasetError(f"{shown(path)} {OUTSIDE}.")
        return known[0] / path.name, known[1]

    def around(self, real: Path) -> Path | None:
        """Returns the allowed folder that contains a resolved path; None if there is none."""
        return next((place for place in self._allowed if real == place or place in real.parents), None)


def put_choice(path: Path, before: Choice, choice: Choice, places: CaptionFolders) -> None:
    """Write the choice about a media file; DatasetError if the choice on disk is no longer `before`."""
    with _CHOOSING:
        data = _bytes_of_choices(path, places)
        if choice_of(read_choices(data, _where(path)), path.name) != before:
            raise DatasetError(
                "{name} was changed elsewhere in the meantime, so your change is not saved. The node now shows the "
                "current state: repeat your change there.",
                name=shown(path),
            )
        made = with_choice(data, _where(path), path.name, choice)
        if made is not None or data is not None:
            put_caption_file(path.with_name(CHOICES_FILE), made, places)


_CHOOSING = threading.Lock()
"""held from reading to writing: clips of one folder may be in several scans of this server"""


def _bytes_of_choices(path: Path, places: CaptionFolders) -> bytes | None:
    # One byte more than allowed, which `read_choices` refuses.
    return current_bytes(path.with_name(CHOICES_FILE), places, lambda _path, file: file.read(CHOICES_BYTES + 1))


def _where(path: Path) -> str:
    return f"{CHOICES_FILE} of folder {shown(path.parent)!r}"


def current_bytes(
    path: Path, places: CaptionFolders, read: Callable[[Path, BinaryIO], bytes] = bytes_in
) -> bytes | None:
    """Returns the bytes of a caption file, or of another file by `read`; None if it does not exist."""
    if path.is_symlink():
        raise DatasetError(f"{shown(path)} is a link. Edit the file it leads to.")
    real, within = places.of(path)
    try:
        with open_inside(real, within) as file:
            return read(path, file)
    except FileNotFoundError:
        return None
    except FileError as error:
        raise DatasetError(str(error)) from error
    except OSError as error:
        raise DatasetError(f"{shown(path)} cannot be read: {error.strerror}. Check the file.") from error


def put_caption_file(path: Path, data: bytes | None, places: CaptionFolders) -> None:
    """Write `data` atomically; None removes the file."""
    real, within = places.of(path)
    try:
        if data is not None:
            atomic_write_bytes(real, data, within, make=False)
        elif not remove_file(real, within):
            raise DatasetError(
                f"{shown(path)} cannot be removed. Make its folder writable, or close it in the program that holds it."
            )
    except FileError as error:
        raise DatasetError(str(error)) from error
    except OSError as error:
        if is_held(error, real):
            raise DatasetError(
                f"{shown(path)} is held open by another program, such as an editor or one that syncs folders. Close it "
                "there, then try again."
            ) from error
        raise DatasetError(
            f"{shown(path)} cannot be written: {error.strerror}. Free disk space, or make its folder writable."
        ) from error
