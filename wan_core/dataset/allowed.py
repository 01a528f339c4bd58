"""Allowed dataset folders: below `input/`, or below a root in a file on the server (rules S2, S3, S16).

A reference is `root:relative`, so graphs and run files contain no path of a machine. Paths from a list are checked
before a file is opened.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ..errors import ConfigError, DatasetError
from ..files import FileError, lies_under, read_json

_ROOTS_FILE = "user/wan_trainer/roots.json"

_ABSOLUTE = re.compile(r"^([A-Za-z]:[\\/]|[\\/])")


def read_roots(path: Path) -> list[Path]:
    """Returns the folders of the roots file (a JSON list); empty if the file does not exist."""
    if not path.is_file():
        return []
    data: Any = read_json(path)
    entries = cast("list[Any]", data) if isinstance(data, list) else [data]
    folders = [entry for entry in entries if isinstance(entry, str) and _can_be_path(entry) and os.path.isabs(entry)]
    if len(folders) < len(entries):
        raise ConfigError(f'{path.name} must be a list of full paths, such as ["/data/clips"].')
    return list(dict.fromkeys(Path(folder) for folder in folders))


def allowed_folder(reference: str, *, input_root: Path, extra_roots: list[Path]) -> Path:
    """Returns the real path of a dataset folder; DatasetError if it is not allowed. Links are resolved first.

    `reference`: a folder below `input/` ("clips" or "input:clips"), "<root name>:<folder>", or a full path.
    """
    real, text = _allowed(
        reference, "No dataset folder is chosen. Put clips into a folder below input/.", input_root, extra_roots
    )
    if not os.path.exists(real):
        raise DatasetError("Folder {text} does not exist. Choose one that does.", text=text)
    if not os.path.isdir(real):
        raise DatasetError("{text} is a file. Choose the folder that contains it.", text=text)
    return real


def allowed_file(reference: str, *, input_root: Path, extra_roots: list[Path]) -> Path:
    """Returns the real path of a file or folder for `open_source`; rules and `reference` as in `allowed_folder`."""
    none = "No file is chosen. Put a list (.jsonl, .csv ...) below input/, or type its path."
    real, text = _allowed(reference, none, input_root, extra_roots, is_file=True)
    if not os.path.exists(real):  # pathlib raises for names longer than the file system allows
        raise DatasetError("File {text} does not exist. Choose one that does.", text=text)
    return real


def _allowed(
    reference: str, none: str, input_root: Path, extra_roots: list[Path], *, is_file: bool = False
) -> tuple[Path, str]:
    """Returns the real path, which need not exist, and `reference` for messages; `none`: refusal of an empty one."""
    text = reference.strip().strip("\"'").strip()
    if not text or not _can_be_path(text):
        raise DatasetError(none)
    wanted = _spelled_out(text, input_root, extra_roots)
    real = Path(os.path.realpath(wanted))
    if not lies_under(real, (input_root, *extra_roots)):
        root = str(wanted.parent if is_file else wanted)
        raise DatasetError(
            "{text} is outside the allowed folders. Move it below input/, or write {json} to "
            "user/wan_trainer/roots.json on the server.",
            text=_short(text),
            json=json.dumps([root[:300]], ensure_ascii=False),
        )
    return real, _short(text)


def list_folders(input_root: Path, extra_roots: list[Path]) -> list[str]:
    """Returns menu entries: the folders directly below `input/`, then each root and its folders."""
    found = _subfolders(input_root)
    for root_name, root in named_roots(extra_roots).items():
        if root.is_dir():
            found += [f"{root_name}:", *(f"{root_name}:{name}" for name in _subfolders(root))]
    return found


def named_roots(extra_roots: list[Path]) -> dict[str, Path]:
    """Returns root name -> folder. A root has its folder's name; duplicates become "clips-2", "clips-3"."""
    named: dict[str, Path] = {}
    for root in extra_roots:
        plain = root.name.replace(":", "_") or "root"
        names = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        named[next(name for name in names if name not in named and name != "input")] = root
    return named


def _can_be_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _spelled_out(text: str, input_root: Path, extra_roots: list[Path]) -> Path:
    if _ABSOLUTE.match(text):
        return Path(text)
    name, separator, relative = text.partition(":")
    if not separator or name == "input":
        return _below(input_root, relative if separator else text)
    if root := named_roots(extra_roots).get(name):
        return _below(root, relative)
    raise DatasetError(
        f"Root {_short(name)} of folder {_short(text)} is unknown. Write its full path to {_ROOTS_FILE} on the server."
    )


def _below(root: Path, relative: str) -> Path:
    """Returns the path below `root`; converts backslashes of a graph saved on Windows if needed."""
    wanted = root / relative.lstrip("/\\")
    return wanted if os.path.exists(wanted) else root / relative.replace("\\", "/").lstrip("/")


def _subfolders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except (OSError, FileError):
        return []


def _short(text: str) -> str:
    return repr(text[:200])


OUTSIDE = "is outside the allowed folders; move it below input/, or add its folder to user/wan_trainer/roots.json"

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


class PlaceError(ValueError):
    """A refused path; the message is a clause without its subject, the path."""


def _spelled_place(text: str, folder: Path) -> Path:
    """Returns `text` as a path relative to `folder`; raises PlaceError for invalid text. Opens nothing."""
    if not text or not _can_be_path(text) or len(text) > 4096:
        raise PlaceError("is not a path")
    if _URL.match(text):
        raise PlaceError("is a web address; only files on this machine are read")
    path = folder / text
    if "\\" in text and os.sep == "/" and not os.path.lexists(path):
        path = folder / text.replace("\\", "/")
    return path if path.name.isascii() else _in_its_form(path)


def _in_its_form(path: Path) -> Path:
    """Returns `path` with its file name in the Unicode form that the disk has: macOS decomposes é, most lists do
    not."""
    forms = (path.with_name(unicodedata.normalize(form, path.name)) for form in ("NFC", "NFD"))
    return path if os.path.lexists(path) else next((other for other in forms if os.path.lexists(other)), path)


def existing_place(text: str, folder: Path, allowed: Sequence[Path]) -> Path:
    """Returns the existing file or folder; PlaceError says what is wrong. Links are resolved first."""
    return Places(folder, allowed).existing(text)[0]


class Places:
    """Computes `existing_place` for many files, and checks each parent folder once."""

    def __init__(self, folder: Path, allowed: Sequence[Path]) -> None:
        self._folder, self._allowed = folder, tuple(allowed)
        self._is_inside = lru_cache(maxsize=None)(lambda parent: lies_under(parent, self._allowed))

    def existing(self, text: str) -> tuple[Path, bool]:
        """Returns (path, is a folder). Raises PlaceError like `existing_place`."""
        path = _spelled_place(text, self._folder)
        name = path.name
        if name not in ("", "..") and self._is_inside(str(path.parent)):
            try:
                mode = os.lstat(path).st_mode
            except OSError as error:
                raise PlaceError("does not exist") from error
            if not stat.S_ISLNK(mode):
                return path, stat.S_ISDIR(mode)
        # Before `exists`, because the answer must not reveal which files exist outside of the allowed folders.
        if not lies_under(path, self._allowed):
            raise PlaceError(OUTSIDE)
        if not os.path.exists(path):
            raise PlaceError("does not exist")
        return path, path.is_dir()


def leads_outside(path: Path, allowed: Sequence[Path]) -> bool:
    """Returns whether `path` is a link to a target outside of its own folder and of `allowed`."""
    return os.path.islink(path) and not lies_under(path, (path.parent, *allowed))
