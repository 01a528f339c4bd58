"""Settings files: parses TOML, YAML and JSON into JSON data, with limits."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any, cast

from ..errors import DatasetError, DependencyError
from ..packages import pip_line

_MOST_VALUES = 50_000
_MOST_DEPTH = 40
_LONGEST_KEY = 1000
_LARGEST = 1 << 64
"""bound of whole numbers; seeds have 64 bits"""


def parsed_here(kind: str, name: str, text: str) -> Any:
    """Returns the JSON data of a text of `kind` "toml", "yaml" or "json"; dates and keys become text.

    DatasetError for an invalid text, or one beyond the limits; DependencyError without the parser's package.
    """
    data = _toml(name, text) if kind == "toml" else _json(name, text) if kind == "json" else _yaml(name, text)
    return _Plain(name).value(data, 0)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{name} is not valid JSON ({error}). Correct it, or save it again.") from error


def _toml(name: str, text: str) -> Any:
    try:
        tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        raise DependencyError(f"{name} needs tomli on Python 3.10. Run: {pip_line('tomli')}") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError too, because int() refuses thousands of digits
        raise DatasetError(f"{name} is not valid TOML ({error}). Correct it, or save it again.") from error


def _yaml(name: str, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise DependencyError(f"{name} needs the package PyYAML. Run: {pip_line('pyyaml')}") from error
    quick = hasattr(yaml, "CSafeLoader")
    try:
        tokens: Any = yaml.scan(text, Loader=yaml.CSafeLoader) if quick else yaml.scan(text, Loader=yaml.SafeLoader)
        # Aliases can expand a few lines to gigabytes ("billion laughs").
        if any(isinstance(token, yaml.AliasToken) for token in tokens):
            raise DatasetError(f"{name} holds YAML references (*name). Write the values out.")
        return yaml.load(text, Loader=yaml.CSafeLoader) if quick else yaml.load(text, Loader=yaml.SafeLoader)
    except DatasetError:
        raise
    except Exception as error:  # constructors of YAML tags can raise anything
        said = " ".join(str(error).split())[:200]
        raise DatasetError(f"{name} is not valid YAML ({said}). Correct it, or save it again.") from error


class _Plain:
    """Converts one document to JSON data and enforces the limits."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0

    def value(self, value: Any, depth: int) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise self._too_much(f"holds more than {_MOST_VALUES:,} values")
        if depth > _MOST_DEPTH:
            raise self._too_much(f"goes more than {_MOST_DEPTH} levels deep")
        if isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value).items()
            return {self._key(key): self.value(inner, depth + 1) for key, inner in entries}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(inner, depth + 1) for inner in cast("list[Any]", value)]
        return self._single(value)

    def _key(self, key: Any) -> str:
        text = key if isinstance(key, str) else str(self._single(key))
        if len(text) > _LONGEST_KEY:
            raise self._too_much(f"has a key of {len(text):,} characters")
        return text

    def _single(self, value: Any) -> Any:
        if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
            raise self._too_much("has a whole number of more than 64 bits")
        if value is None or isinstance(value, str | int | float):
            return value
        # dates and other YAML or TOML types
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def _too_much(self, what: str) -> DatasetError:
        return DatasetError(f"{self._name} {what}, and settings do not. Choose the settings file itself.")
