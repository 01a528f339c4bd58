"""The trainer a settings file belongs to, found by its content."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, cast

from ...dataset.captions import read_utf8
from ...dataset.files import SourcePart
from ...errors import DatasetError, DependencyError
from ...files import read_json
from ...packages import pip_line
from .ai_toolkit import processes_of, read_ai_toolkit
from .diffusion_pipe import read_diffusion_pipe
from .ledger import Context
from .musubi import read_musubi
from .simpletuner import read_simpletuner

__all__ = ["SETTINGS_SUFFIXES", "is_backend_list", "read_document", "read_settings"]

SETTINGS_SUFFIXES = frozenset({".toml", ".json", ".yaml", ".yml"})
_MAX_BYTES = 4 << 20


def read_settings(context: Context) -> list[SourcePart]:
    """The datasets of a settings file; DatasetError when it belongs to no known trainer."""
    path = context.path
    suffix, data = path.suffix.lower(), read_document(path)
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
            f"all of it makes: python -m wan_core import {path.name}"
        )
    raise DatasetError(
        f"{path.name} is not known. Read are: musubi-tuner TOML with [[datasets]], diffusion-pipe TOML with "
        "[[directory]], SimpleTuner's multidatabackend JSON, ai-toolkit YAML with config, process, datasets."
    )


def read_document(path: Path) -> Any:
    """Returns what a TOML, JSON or YAML file holds, by its suffix; DatasetError for one that is none."""
    suffix = path.suffix.lower()
    return _toml(path) if suffix == ".toml" else read_json(path) if suffix == ".json" else _yaml(path)


def is_backend_list(data: Any) -> bool:
    """True for what SimpleTuner calls a multidatabackend: a list of tables that say where data is."""
    keys = {"instance_data_dir", "dataset_type", "caption_strategy", "cache_dir_vae"}
    entries = cast("list[Any]", data) if isinstance(data, list) else []
    return any(isinstance(entry, dict) and keys & set(cast("dict[str, Any]", entry)) for entry in entries)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in cast("list[Any]", value))


def _text(path: Path) -> str:
    return read_utf8(path, _MAX_BYTES, "is larger than 4 MiB; settings are not. Choose the settings file itself.")


def _toml(path: Path) -> Any:
    try:
        tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        raise DependencyError(f"{path.name} needs tomli on Python 3.10. Run: {pip_line('tomli')}") from error
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not valid TOML ({error}).") from error


def _yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise DependencyError(f"{path.name} needs the package PyYAML. Run: {pip_line('pyyaml')}") from error
    text = _text(path)
    # References let a few lines stand for gigabytes; settings have no use for them.
    if any(isinstance(token, yaml.AliasToken) for token in _tokens(yaml, text, path)):
        raise DatasetError(f"{path.name} holds YAML references (*name). Write the values out.")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DatasetError(f"{path.name} is not valid YAML ({str(error)[:200]}).") from error


def _tokens(yaml: Any, text: str, path: Path) -> list[Any]:
    try:
        return list(yaml.scan(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not valid YAML ({str(error)[:200]}).") from error
