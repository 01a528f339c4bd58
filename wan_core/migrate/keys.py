"""The type of the tables of a trainer's keys, and `take_over`, which reads settings by a table.

A table has, for each key, the widget that replaces it, and the reason for a difference. docs/use/coming_from.md is
generated from the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError
from ..importers import Ledger
from ..importers.trainers.ledger import TYPE_WORDS, short
from ..words import filled
from .foreign_job import LOADER, UNKNOWN_MODEL, ForeignJob, default_of, place_of

_NOT_SET = re.compile(r"\$\{?[A-Za-z_]|^@[A-Za-z_]\w*@$|\$\(|%[A-Za-z_]\w*%|\{\{?[A-Za-z_ ][^{}]*\}")
"""placeholders of shells, cmd and templates"""
_MAY_HOLD = frozenset(
    (
        *("validation_prompt", "validation_negative_prompt", "prompts", "samples", "neg"),
        *("trigger_word", "caption_prefix", "network_args"),
    )
)
"""keys whose texts may contain placeholder characters such as $ and % as ordinary text"""
CHANGED = "{said} -> {made}: {why}"
NOT_STATED = "{key} is not set: {value}, the default of {trainer}"
_SECRET = re.compile(r"api_key|token$|password|secret|webhook_url")


@dataclass(frozen=True)
class Changed:
    """A value with another meaning here."""

    value: Any
    why: str


@dataclass(frozen=True)
class Without:
    """A value without counterpart here."""

    why: str


@dataclass(frozen=True)
class Key:
    names: str
    """the key, then its older names, separated by blanks"""
    at: str = ""
    """the widget, as in `place_of`; "" for none"""
    note: str = ""
    """the reason for a difference, or for a missing widget; shown in the docs, and in the account if the key is
    dropped"""
    kind: type = str
    """type of the value"""
    own: Any = None
    """the trainer's default; None if it is the same as here"""
    read: Callable[[Any, ForeignJob], Any] | None = None
    """converts the value; returns a value, `Changed`, `Without`, or None if it has set all widgets itself"""

    @property
    def name(self) -> str:
        return self.names.split()[0]


def drops(names: str, note: str = "") -> tuple[Key, ...]:
    """Returns keys without a widget; "x_*": all others that begin so. Without a `note` they change no result."""
    return tuple(Key(name, note=note) for name in names.split())


def same(kind: type, names: str) -> tuple[Key, ...]:
    """Returns keys whose widgets have their names."""
    return tuple(Key(name, name, kind=kind) for name in names.split())


def also(names: str, at: str, note: str = "") -> tuple[Key, ...]:
    """Returns keys whose values the `read` of another key reads."""
    return tuple(Key(name, at, note, object, read=lambda _value, _job: None) for name in names.split())


def ledger_of(where: str, section: Mapping[str, Any]) -> Ledger:
    """Returns the account of a section, without its secrets."""
    return Ledger(
        where, {key: "(hidden)" if value and _SECRET.search(key) else value for key, value in section.items()}
    )


def take_over(keys: Iterable[Key], job: ForeignJob, ledger: Ledger) -> None:
    """Sets the widgets of `job` from the keys in `ledger`, and records the result for each key."""
    job.now = ledger
    for key in _with_members(keys, ledger):
        name = next((name for name in key.names.split() if name in ledger or name in job.unset), "")
        if not name and key.own is None:
            continue
        if key.at and name and _is_unset(name, job, ledger):
            if key.at.startswith(LOADER):
                job.put(key.at, UNKNOWN_MODEL)
            continue
        stated = bool(name)
        name = name or key.name
        if stated and not key.at and key.read is None:
            if key.note:
                ledger.drop(name, key.note)
            elif name in ledger:
                ledger.leave_out(name)
            continue
        given: Any = ledger.get(name, object, None) if stated else key.own
        value = _as(key.kind, given, f"{ledger.where}: {name}")
        job.reading = name, key.at
        made = key.read(value, job) if key.read else value
        _record(key, name, value, made, job, ledger, stated=stated)


def take_over_tables(tables: Mapping[str, tuple[Key, ...]], job: ForeignJob) -> None:
    """Sets the widgets of `job` from its file and the tables in it. `tables`: name, "" for the file, -> keys."""
    take_over(tables[""], job, job.ledger)
    for name in [name for name in tables if name and name in job.ledger]:
        inner = ledger_of(f"{job.source}, {name}", job.ledger.get(name, dict, {}))
        take_over(tables[name], job, inner)
        job.ledger.absorb(inner, name)


def _with_members(keys: Iterable[Key], ledger: Ledger) -> Iterator[Key]:
    """Yields keys, and for each "x_*" the keys in `ledger` that it stands for."""
    listed = tuple(keys)
    known = {name for key in listed for name in key.names.split()}
    for key in listed:
        start = key.names.removesuffix("*")
        if start == key.names:
            yield key
        else:
            others = (name for name in ledger.names() if name not in known)
            yield from (replace(key, names=name) for name in others if name.startswith(start))


def _record(key: Key, name: str, value: Any, made: Any, job: ForeignJob, ledger: Ledger, *, stated: bool) -> None:
    said: str = f"{name} {shown(value)}"
    if not stated:
        said = filled(NOT_STATED, key=name, value=shown(value), trainer=job.trainer)
    if made is None:  # the `read` function has recorded the key, or the account lists it as dropped
        return
    if isinstance(made, Without):
        if stated:
            ledger.drop(name, made.why)
    elif isinstance(made, Changed):
        job.put(key.at, made.value)
        ledger.change(CHANGED, said=said, made=f"{place_of(key.at)[1]} {shown(made.value)}", why=made.why)
    else:
        job.put(key.at, made)
        if not stated and made == default_of(key.at):
            return
        widget = place_of(key.at)[1]
        if stated and widget == name and made == value:
            ledger.take(said)
        else:
            ledger.take("{said} -> {made}", said=said, made=f"{widget} {shown(made)}")


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else short(value)


def _is_unset(name: str, job: ForeignJob, ledger: Ledger) -> bool:
    """Returns whether a key's value is a placeholder; if so, records that in the job."""
    value = ledger.get(name, object, None) if name in ledger else None
    if isinstance(value, str) and name not in _MAY_HOLD and stands_for_more(value):
        job.unset[name] = value
    if name not in job.unset:
        return False
    written = job.unset[name].replace("\n", " ")[:60]
    ledger.change("{key} -> skipped: the file does not say what it means", key=f"{name} {written}")
    said = "{key} is {value}, a variable that the file does not set: choose the value in the nodes"
    job.hint(said, key=name, value=written)
    return True


def stands_for_more(value: str) -> bool:
    """Returns whether the last path component of a text contains a placeholder."""
    # A shell command in a path counts as one part.
    last = re.split(r"[/\\]", re.sub(r"\$\([^)\n]*\)?", "$(", value).rstrip("/\\"))[-1]
    return "\n" not in value and _NOT_SET.search(last) is not None


def if_so(choice: str) -> Callable[[bool, ForeignJob], str | None]:
    """Returns a reader of a flag that selects a choice of a menu."""
    return lambda value, _job: choice if value else None


def every(value: float, job: ForeignJob) -> None:
    """Reads an interval in epochs, which `settle` converts to steps."""
    name, at = job.reading
    if value:
        job.every_epochs[at] = (name, value)


def dataset(value: str, job: ForeignJob) -> None:
    """Reads the path of the dataset settings."""
    job.data = value
    job.ledger.take("{said}: {why}", said=f"{job.reading[0]} {value:.80}", why="read by Wan Dataset From File")


def base_precision(value: str, _job: ForeignJob) -> Changed | None:
    """Returns the dtype of the base weights for accelerate's mixed_precision; None for bf16, the default here."""
    if value == "bf16":
        return None
    return Changed({"fp16": "fp16", "no": "fp32"}.get(value, "as in file"), "the dtype of the base weights")


_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off", "none", ""}


def _as(kind: type, value: Any, where: str) -> Any:
    """Returns a value as a type; text such as 1e-4 (from YAML), "true" and "20" (from JSON) is converted."""
    try:
        if kind is bool and isinstance(value, str):
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[value.strip().lower()]
        if kind in (int, float) and not isinstance(value, bool):
            if kind is int and (isinstance(value, int) or str(value).isdecimal()):
                return int(value)  # no conversion through float, which has 53 bits, because a seed has 64
            number = float(value)
            if kind is float:
                return number
            if number == int(number):
                return int(number)
            raise ValueError
        if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if kind is object or isinstance(value, kind):
            return value
    except (TypeError, ValueError, KeyError, OverflowError):
        pass
    raise ConfigError(f"{where} is {str(value)[:60]!r}; it must be {TYPE_WORDS.get(kind, kind.__name__)}.")
