"""Hugging Face datasets on disk: a folder of `save_to_disk`, or parquet files. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..dataset.files import SourcePart, media_names
from ..errors import DatasetError
from ..files import confine, read_json
from .listing import read_rows
from .source import SourceFile


def is_hf_dataset(folder: Path) -> bool:
    """Returns whether a folder was written by `save_to_disk`, or has parquet files (directly or in data/) and no
    media."""
    if _is_saved(folder) or (folder / "dataset_dict.json").is_file():
        return True
    return bool(_all_parquet(folder)) and not media_names(folder)


def read_hf_dataset(source: SourceFile) -> SourcePart:
    """Returns the rows of the split "train", or of the only split."""
    folder = source.path
    place, notes = _split(folder)
    tables = tables_of(folder)
    if left := [] if _is_saved(place) else [path.name for path in _all_parquet(place) if path not in tables]:
        notes = [*notes, f"{folder.name}: not used: {', '.join(left)[:200]}"]
    if not tables:
        raise DatasetError(f"{folder.name} holds no .arrow and no .parquet file. Save the dataset with save_to_disk.")
    found = read_rows(tables, source, folder=place)
    return replace(found, notes=[*notes, *found.notes])


def tables_of(folder: Path) -> list[Path]:
    """Returns the files that are read."""
    place, _notes = _split(folder)
    if _is_saved(place):
        return _saved_tables(place)
    every = _all_parquet(place)
    return [path for path in every if path.name.startswith("train")] or every


def _is_saved(folder: Path) -> bool:
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def _split(folder: Path) -> tuple[Path, list[str]]:
    if not (folder / "dataset_dict.json").is_file():
        return folder, []
    data: Any = read_json(folder / "dataset_dict.json")
    entries: Any = cast("dict[str, Any]", data).get("splits") if isinstance(data, dict) else None
    splits = [split for split in cast("list[Any]", entries) if isinstance(split, str)] if entries else []
    if not splits:
        raise DatasetError(f"{folder.name}/dataset_dict.json names no splits. Save the dataset again.")
    chosen = "train" if "train" in splits else splits[0]
    if chosen != "train" and len(splits) > 1:
        raise DatasetError(f"{folder.name} has the splits {', '.join(splits)[:120]}. Choose the folder of one of them.")
    left = [split for split in splits if split != chosen]
    notes = [f"{folder.name}: split {chosen!r} is used; not used: {', '.join(left)[:120]}"] if left else []
    return confine(folder, chosen, "split"), notes


def _saved_tables(folder: Path) -> list[Path]:
    state: Any = read_json(folder / "state.json")
    entries: Any = cast("dict[str, Any]", state).get("_data_files") if isinstance(state, dict) else None
    names = [entry.get("filename") for entry in cast("list[Any]", entries or []) if isinstance(entry, dict)]
    # The indices list the rows that are left after the user has filtered others out.
    if (indices := isinstance(state, dict) and cast("dict[str, Any]", state).get("_indices_data_files")) and indices:
        raise DatasetError(
            f"{folder.name} was saved with an index of chosen rows. Save it again after flatten_indices()."
        )
    return [confine(folder, name, "data file") for name in names if isinstance(name, str)]


def _all_parquet(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))
