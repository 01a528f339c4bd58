"""Source files of datasets: a list, a WebDataset tar, a Hugging Face dataset, or another trainer's settings."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..choices import CHOICES_FILE
from ..dataset.config import ROLES
from ..dataset.control_files import COMPANION_KINDS, companion_paths, with_companions
from ..dataset.files import CLIP_SUFFIXES, STILL_SUFFIXES, SourcePart, fingerprint_of_folder
from ..errors import DatasetError, WanTrainerError
from ..files import file_mark, read_json
from .cells import holds_media
from .hf_dataset import is_hf_dataset, read_hf_dataset, tables_of
from .listing import read_listing
from .rows import JSON_HERE_BYTES, TABLE_SUFFIXES, TEXT_SUFFIXES
from .source import SourceFile
from .trainers.detect import SETTINGS_SUFFIXES, is_backend_list, read_settings
from .webdataset import read_webdataset

_SOURCE_SUFFIXES = TEXT_SUFFIXES | TABLE_SUFFIXES | SETTINGS_SUFFIXES | {".tar"}
_PACKED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_MAX_LISTED = 500
_MENU_DEPTH = 2
_MEDIA = tuple(CLIP_SUFFIXES | STILL_SUFFIXES)


def is_source(path: Path) -> bool:
    """Returns whether `open_source` reads a path; False for a plain folder of clips."""
    if path.is_dir():
        return is_hf_dataset(path)
    return path.suffix.lower() in _SOURCE_SUFFIXES


def open_source(source: SourceFile) -> list[SourcePart]:
    """Returns the datasets of a source: several for another trainer's settings, else one. Opens no media file."""
    path, suffix = source.path, source.path.suffix.lower()
    if path.is_dir():
        if not is_hf_dataset(path):
            raise DatasetError(
                f"Folder {path.name!r} is not a Hugging Face dataset. For a folder of clips, use Wan Video Dataset."
            )
        return [read_hf_dataset(source)]
    if suffix == ".tar":
        return [read_webdataset(source)]
    if suffix in TEXT_SUFFIXES | TABLE_SUFFIXES or (suffix == ".json" and _is_plain_list(path)):
        return [read_listing(source)]
    if suffix in SETTINGS_SUFFIXES:
        return read_settings(source)
    if path.name.lower().endswith(_PACKED_TARS):
        raise DatasetError(
            f"{path.name} is a packed tar; only plain .tar files are read, because clips hardly shrink. Unpack it "
            "once (for example with gzip -d) and choose the .tar."
        )
    known = " ".join(sorted(_SOURCE_SUFFIXES))
    raise DatasetError(f"{path.name} has a suffix that no list of files has. Known suffixes: {known}.")


def stated_settings(source: SourceFile) -> list[dict[str, Any]]:
    """Returns the settings of each dataset in another trainer's settings; [{}] for other sources."""
    if not _is_settings(source.path):
        return [{}]
    return [dict(part.settings) for part in open_source(source)]


def stated_mark(source: SourceFile) -> str:
    """Returns a digest that changes with `stated_settings`; "" for a source without settings. Opens only files with
    settings."""
    return source_fingerprint(source) if _is_settings(source.path) else ""


def source_fingerprint(source: SourceFile, caption_extension: str = ".txt") -> str:
    """Returns a digest that changes when the source, or any file it names, changes. Opens no media file."""
    digest = hashlib.sha256()

    def add(places: Iterable[Path]) -> None:
        for place in places:
            digest.update(_identity(place).encode("utf-8", "surrogatepass"))

    add([source.path])
    if _is_self_contained(source):
        return digest.hexdigest()
    for part in open_source(source):
        extension = str(part.settings.get("caption_extension", caption_extension))
        add(part.watched)
        for file in part.files:
            source.stop_if_asked()
            add([file.path])
            if file.caption is None:
                add([file.path.with_suffix(extension)])
        choices = {file.path.parent / CHOICES_FILE for file in part.files}
        add(place for place in sorted(choices) if os.path.lexists(place))
        for file in with_companions(part.files, (*COMPANION_KINDS, "camera", *ROLES)):
            add(companion_paths(file))
    return digest.hexdigest()


def list_sources(input_root: Path, named_roots: dict[str, Path]) -> list[str]:
    """Returns menu entries: sources below `input/` and each root, at most two folders deep."""
    found = _sources_below(input_root)
    for name, root in named_roots.items():
        found += [f"{name}:{inside}" for inside in _sources_below(root)]
    return found[:_MAX_LISTED]


def _sources_below(root: Path, depth: int = 0, inside: str = "") -> list[str]:
    here = root / inside
    try:
        known = _menu_entries(str(here), here.stat().st_mtime_ns)
    except OSError:
        return []
    found: list[str] = []
    for name, folder in known:
        label = f"{inside}/{name}" if inside else name
        if not folder or is_hf_dataset(root / label):
            found.append(label)
        elif depth < _MENU_DEPTH:
            found += _sources_below(root, depth + 1, label)
    return found


@lru_cache(maxsize=4096)
def _menu_entries(folder: str, mtime_ns: int) -> tuple[tuple[str, bool], ...]:
    """Returns (name, is a folder) of the entries that a menu may show, by name."""
    # Cached by mtime: every page load builds the menu, and a folder may contain 100,000 captions.
    with os.scandir(folder) as entries:
        every = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(".")]
    media = {name.rpartition(".")[0] for name, _ in every if name.lower().endswith(_MEDIA)}
    shown = [
        (name, is_folder)
        for name, is_folder in every
        if is_folder or (name.rpartition(".")[0] not in media and _is_listed(Path(folder, name)))
    ]
    return tuple(sorted(shown))


def _is_listed(path: Path) -> bool:
    """Returns whether the menu lists a file: by suffix, and a .json only if it starts like a list."""
    if path.suffix.lower() != ".json":
        return path.suffix.lower() in _SOURCE_SUFFIXES
    try:
        with open(path, "rb") as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    except OSError:
        return False


def _is_self_contained(source: SourceFile) -> bool:
    path = source.path
    tables = tables_of(path) if path.is_dir() else [path] if path.suffix.lower() in TABLE_SUFFIXES else []
    return path.suffix.lower() == ".tar" or (bool(tables) and holds_media(tables[0], source))


def _is_settings(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in SETTINGS_SUFFIXES and not path.is_dir() and not (suffix == ".json" and _is_plain_list(path))


def _is_plain_list(path: Path) -> bool:
    if os.stat(path).st_size > JSON_HERE_BYTES:
        return True  # longer than any settings file
    try:
        data = read_json(path)
    except WanTrainerError as error:
        raise DatasetError(str(error)) from error
    return isinstance(data, list) and not is_backend_list(data)


def _identity(place: Path) -> str:
    try:
        return fingerprint_of_folder(place) if place.is_dir() else repr((str(place), file_mark(place)))
    except OSError:
        return f"{place} is not there"
