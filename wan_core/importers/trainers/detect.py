"""The trainer a settings file belongs to, found by its content."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ...dataset.captions import read_utf8
from ...dataset.files import SourcePart
from ...errors import DatasetError, DependencyError
from ...packages import pip_line
from .ai_toolkit import processes_of, read_ai_toolkit
from .diffusion_pipe import read_diffusion_pipe
from .ledger import Context
from .musubi import read_musubi
from .simpletuner import read_simpletuner

__all__ = [
    "SETTINGS_SUFFIXES",
    "is_backend_list",
    "parse_document",
    "read_settings",
    "read_settings_text",
]

SETTINGS_SUFFIXES = frozenset({".toml", ".json", ".yaml", ".yml"})
_MAX_BYTES = 4 << 20


def read_settings(context: Context) -> list[SourcePart]:
    """The datasets of a settings file; DatasetError when it belongs to no known trainer."""
    path = context.path
    suffix, data = path.suffix.lower(), parse_document(path.name, read_settings_text(path))
    if suffix == ".json" and is_backend_list(data):
        return read_simpletuner(data, context)
    table = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if suffix == ".toml" and _is_tables(table.get("datasets")):
        return read_musubi(table, context)
    if suffix == ".toml" and _is_tables(table.get("directory")):
        return read_diffusion_pipe(table, context)
    if suffix != ".toml" and processes_of(table):
        return read_ai_toolkit(table, context)
    if suffix == ".toml" and isinstance(named := table.get("dataset"), str):
        raise DatasetError(
            f"{path.name} are training settings of diffusion-pipe. Choose its dataset file, {named[:120]}; a graph of "
            "all of it makes: python wan_core/launch.py import FILE."
        )
    raise DatasetError(
        f"{path.name} is not known. Read are: musubi-tuner TOML with [[datasets]], diffusion-pipe TOML with "
        "[[directory]], SimpleTuner's multidatabackend JSON, ai-toolkit YAML with config, process, datasets."
    )


def read_settings_text(path: Path) -> str:
    """Returns the text of a settings file; DatasetError for one above 4 MiB, or that is not UTF-8."""
    return read_utf8(path, _MAX_BYTES, "is larger than 4 MiB; settings are not. Choose the settings file itself.")


def parse_document(name: str, text: str) -> Any:
    """Returns what a TOML, JSON or YAML text holds, by the suffix of its name; DatasetError for one that is none."""
    suffix = PurePosixPath(name).suffix.lower()
    return _toml(name, text) if suffix == ".toml" else _json(name, text) if suffix == ".json" else _yaml(name, text)


def is_backend_list(data: Any) -> bool:
    """True for what SimpleTuner calls a multidatabackend: a list of tables that say where data is."""
    keys = {"instance_data_dir", "dataset_type", "caption_strategy", "cache_dir_vae"}
    entries = cast("list[Any]", data) if isinstance(data, list) else []
    return any(isinstance(entry, dict) and keys & set(cast("dict[str, Any]", entry)) for entry in entries)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in cast("list[Any]", value))


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{name} is not valid JSON ({error}). Mend it there, or save it again.") from error


def _toml(name: str, text: str) -> Any:
    try:
        tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        raise DependencyError(f"{name} needs tomli on Python 3.10. Run: {pip_line('tomli')}") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is no TOMLDecodeError
        raise DatasetError(f"{name} is not valid TOML ({error}). Mend it there, or save it again.") from error


def _yaml(name: str, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise DependencyError(f"{name} needs the package PyYAML. Run: {pip_line('pyyaml')}") from error
    # References let a few lines stand for gigabytes; settings have no use for them.
    if any(isinstance(token, yaml.AliasToken) for token in _tokens(yaml, text, name)):
        raise DatasetError(f"{name} holds YAML references (*name). Write the values out.")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DatasetError(
            f"{name} is not valid YAML ({str(error)[:200]}). Mend it there, or save it again."
        ) from error


def _tokens(yaml: Any, text: str, name: str) -> list[Any]:
    try:
        return list(yaml.scan(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise DatasetError(
            f"{name} is not valid YAML ({str(error)[:200]}). Mend it there, or save it again."
        ) from error
