"""Frozen configs with JSON conversion; each field carries the metadata of its setting.

Widgets, run files and tests create configs by `from_dict`. `Config` checks values against the bounds and choices of
their `Setting`, from which nodes also create widgets.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin

from .errors import ConfigError
from .words import filled, is_text

C = TypeVar("C", bound="Config")


def nearest(word: str, known: list[str]) -> str:
    """Returns a hint such as ' Did you mean "rank"?', or the list of known words."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return filled(' Did you mean "{close}"?', close=close[0])
    return " Known: " + ", ".join(sorted(known)) + "."


def arguments_of(text: str, setting: str) -> dict[str, Any]:
    """Returns the text of a setting parsed: `key=value` by comma or line, values as Python literals, else text.

    Raises ConfigError for a part that is no argument.
    """
    found: dict[str, Any] = {}
    for part in _parts(text):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or not name.isidentifier() or not value:
            raise ConfigError(f'{setting}: "{part[:60]}" is not key=value. Example: betas=(0.9, 0.99), eps=1e-8')
        if name in found:
            raise ConfigError(f'{setting} names "{name}" twice. Keep one of them.')
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
    return found


def _parts(text: str) -> Iterable[str]:
    """Yields the parts of `text` between commas and line ends outside brackets."""
    depth, piece = 0, ""
    for letter in text + "\n":
        depth += (letter in "([{") - (letter in ")]}")
        if letter in ",\n" and depth <= 0:
            if piece.strip():
                yield piece.strip()
            piece = ""
        else:
            piece += letter
    if piece.strip():
        yield piece.strip()


Number = int | float


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The metadata of a setting; name and type are the field's."""

    default: Any
    sentence: str
    """the effect of the setting, as tooltip of its widget"""
    low: Number | None = None
    """smallest accepted value; None: no bound, or one that the config's `__post_init__` checks"""
    high: Number | None = None
    offered: tuple[Number, Number] | None = None
    """a narrower range of the widget; run.json may still hold more"""
    step: Number | None = None
    """increment of the widget"""
    choices: tuple[str, ...] = ()
    """menu entries; empty for free text"""
    also: tuple[Any, ...] = ()
    """accepted values outside the bounds or menu"""
    refusal: str = ""
    """template of the refusal of a value, in place of `Config._refusals`"""
    counts: str = "changed"
    """when the setting is part of a job's identity. always; changed: if it is not the default, so that a new setting
    keeps the identity of older jobs; pair: as changed, if both experts are trained; never
    """
    called: str = ""
    """name on nodes, if different"""
    group: str = ""
    """group in Wan Train Settings; "" is the last one"""

    def accepts(self, value: Any) -> bool:
        """Returns whether `value` is within the bounds or choices."""
        if value in self.also:
            return True
        if self.choices:
            return value in self.choices
        # `low <= value`, not `not value < low`: NaN must be refused.
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    @property
    def bounds(self) -> tuple[Number, Number]:
        """The widget's range. Raises ConfigError if there is none."""
        low, high = self.offered or (self.low, self.high)
        if low is None or high is None:
            raise ConfigError("A setting with a number widget needs low and high, or offered.")
        return low, high


def setting(default: Any, sentence: str, within: tuple[Any, Any] = (None, None), **known: Any) -> Any:
    """Returns a config field with a `Setting`. `within`: its `low` and `high`; `known`: its other fields."""
    low, high = within
    made = Setting(default=default, sentence=sentence, **{"low": low, "high": high} | known)
    return dataclasses.field(default=default, metadata={"setting": made, "counts": made.counts})


counted = functools.partial(setting, counts="always")
"""a setting that is always part of a job's identity"""


def internal(default: Any, counts: str) -> Any:
    """Returns a config field without a widget; `counts`: as in `Setting`. A plain dataclass field counts always."""
    return dataclasses.field(default=default, metadata={"counts": counts})


@functools.cache
def settings_of(config: type[Config]) -> Mapping[str, Setting]:
    """Returns name -> Setting of a config, in order."""
    fields = dataclasses.fields(config)  # type: ignore[arg-type]
    return types.MappingProxyType({f.name: f.metadata["setting"] for f in fields if "setting" in f.metadata})


@functools.cache
def names_on_nodes(config: type[Config]) -> Mapping[str, str]:
    """Returns name on nodes -> field name, of each setting."""
    return types.MappingProxyType({known.called or name: name for name, known in settings_of(config).items()})


def _usable(known: Setting) -> str:
    """Returns the accepted range, such as ' Use 0 to 1.'; '' without bounds."""
    low, high = known.offered or (known.low, known.high)
    if low is None:
        return ""
    return f" Use {low:g} or more." if high is None else f" Use {low:g} to {high:g}."


class Config:
    """Base of the frozen dataclasses that describe a job. A subclass with `__post_init__` calls the base's first.

    Values are JSON scalars, Configs, tuples of either, or None, so `to_dict` round-trips through JSON exactly.
    """

    _refusals = ("{name} {value} is out of range. Use {low} to {high}.", '{name} "{value}" is unknown.{nearest}')
    """templates of the refusal of a number and of a choice; `refused` fills in the values"""

    def __post_init__(self) -> None:
        for name, known in settings_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):  # NaN passes where there are no bounds
                raise ConfigError(f"{name} {value} is not a finite number.{_usable(known)}")
            if not known.accepts(value):
                raise self.refused(name)

    def refused(self, name: str) -> ConfigError:
        """Returns the refusal of the value of setting `name`."""
        known, value = settings_of(type(self))[name], getattr(self, name)
        values = {
            **vars(self),
            "name": name,
            "value": value,
            "short": f"{value:g}" if isinstance(value, float) else value,
            "start": str(value)[:40],
            "quoted": repr(str(value)[:40]),
            "low": known.low,
            "high": known.high,
            "known": ", ".join(known.choices),
            "nearest": nearest(str(value), list(known.choices)) if known.choices else "",
        }
        return ConfigError(known.refusal or self._refusals[bool(known.choices)], **values)

    @classmethod
    def from_dict(cls: type[C], data: Any, where: str = "") -> C:
        """Build from JSON data. ConfigError for unknown keys (with the nearest known one) and wrong types.

        `where`: path of this object in the file, for messages ("train.lora").
        """
        place = where or cls.__name__
        if not isinstance(data, dict):
            raise ConfigError(f"{place} must be an object with named settings, not {_kind(data)}.")
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for key in data:
            if key not in fields:
                raise ConfigError(f'Unknown setting "{key}" in {place}.{nearest(str(key), list(fields))}')
        hints = _hints(cls)
        values = {key: _read(hints[key], value, f"{where}.{key}" if where else key) for key, value in data.items()}
        missing = [
            name
            for name, field in fields.items()
            if name not in values
            and field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise ConfigError(f"{place} lacks: {', '.join(missing)}. Add it, or write the file again with the node.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON data, keys in field order."""
        return {f.name: _write(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def identity(self) -> dict[str, Any]:
        """Returns the identity as JSON data: the fields that count (`Setting.counts`)."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, counts = getattr(self, field.name), field.metadata.get("counts", "always")
            if counts == "always" or (counts != "never" and value != field.default):
                found[field.name] = _write(value, lambda config: config.identity())
        return found


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Returns the field types; cached, because a list of runs reads thousands of configs."""
    return typing.get_type_hints(cls)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "true/false", type(None): "null"}.get(
        type(value), f"the number {value!r}"
    )


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        choices = [a for a in get_args(hint) if a is not type(None)]
        if value is None and type(None) in get_args(hint):
            return None
        return _read(choices[0], value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list, not {_kind(value)}.")
        return tuple(_read(get_args(hint)[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if isinstance(hint, type) and issubclass(hint, Config):
        return value if isinstance(value, hint) else hint.from_dict(value, where)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not -sys.float_info.max <= value <= sys.float_info.max:  # Python's JSON parser accepts NaN and 1e999
            raise ConfigError(f"{where} must be a finite number, not {value!r:.40}.")
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is not bool and isinstance(value, bool))):
        wanted = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise ConfigError(f"{where} must be {wanted.get(hint, hint.__name__)}, not {_kind(value)}.")
    if isinstance(value, str) and not is_text(value):
        raise ConfigError(f"{where} contains half a character (a lone surrogate): {value!r:.80}. Write it again.")
    return value


def _write(value: Any, config: Callable[[Config], Any] = lambda config: config.to_dict()) -> Any:
    if isinstance(value, Config):
        return config(value)
    if isinstance(value, tuple):
        return [_write(v, config) for v in value]
    return value
