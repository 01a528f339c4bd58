"""Detects the trainer of a settings file by its content."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, cast

from ...dataset.captions import read_utf8
from ...dataset.files import SourcePart
from ...errors import DatasetError
from ...parsers import parsed
from ..source import SourceFile
from .ai_toolkit import processes_of, read_ai_toolkit
from .diffusion_pipe import read_diffusion_pipe
from .musubi import read_musubi
from .simpletuner import read_simpletuner

SETTINGS_SUFFIXES = frozenset({".toml", ".json", ".yaml", ".yml"})
_MAX_BYTES = 4 << 20


def read_settings(source: SourceFile) -> list[SourcePart]:
    """Returns the datasets of a settings file; DatasetError if it belongs to no known trainer."""
    path = source.path
    suffix, data = path.suffix.lower(), parse_document(path.name, read_settings_text(path))
    if suffix == ".json" and is_backend_list(data):
        return read_simpletuner(data, source)
    table = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if suffix == ".toml" and _is_tables(table.get("datasets")):
        return read_musubi(table, source)
    if suffix == ".toml" and _is_tables(table.get("directory")):
        return read_diffusion_pipe(table, source)
    if suffix != ".toml" and processes_of(table):
        return read_ai_toolkit(table, source)
    if suffix == ".toml" and isinstance(named := table.get("dataset"), str):
        raise DatasetError(
            f"{path.name} are training settings of diffusion-pipe. Choose its dataset file, {named[:120]}; to "
            "convert all settings to a graph, run: python wan_core/launch.py import FILE."
        )
    raise DatasetError(
        f"{path.name} has an unknown format. Known formats: musubi-tuner TOML with [[datasets]], diffusion-pipe "
        "TOML with "
        "[[directory]], SimpleTuner's multidatabackend JSON, ai-toolkit YAML with config, process, datasets."
    )


def read_settings_text(path: Path) -> str:
    """Returns the text of a settings file; DatasetError if it is larger than 4 MiB or not UTF-8."""
    return read_utf8(path, _MAX_BYTES, "is larger than 4 MiB; settings are not. Choose the settings file itself.")


def parse_document(name: str, text: str) -> Any:
    """Returns the JSON data of a TOML, JSON or YAML text, by the suffix of its name.

    Raises DatasetError if the text is invalid or too large.
    """
    suffix = PurePosixPath(name).suffix.lower()
    return parsed(suffix[1:] if suffix in (".toml", ".json") else "yaml", name, text)


def is_backend_list(data: Any) -> bool:
    """Returns whether data is a multidatabackend of SimpleTuner: a list of tables that describe datasets."""
    keys = {"instance_data_dir", "dataset_type", "caption_strategy", "cache_dir_vae"}
    entries = cast("list[Any]", data) if isinstance(data, list) else []
    return any(isinstance(entry, dict) and keys & set(cast("dict[str, Any]", entry)) for entry in entries)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in cast("list[Any]", value))
