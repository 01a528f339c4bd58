"""Inputs as every node of the pack declares them: with a default, a tooltip, and optional in API JSON.

ComfyUI calls a required input without a value "missing" even when it has a default, and 0.3.75 does not check the
value of a COMBO; so widgets are declared optional, and `one_of` and `check_menus` check them.

What is a setting of a config is shown by `widget`, which reads default, bounds, choices and tooltip at the field; the
other makers are for what belongs to a node alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from comfy_api.latest import io

from ...wan_core.config import Config, Setting, names_on_nodes, nearest, settings_of
from ...wan_core.errors import ConfigError
from ...wan_core.words import filled


def widget(config: type[Config], name: str, **own: Any) -> io.Input:
    """Returns the widget of the setting `name` of `config`.

    `own` is what this node says otherwise (default, tooltip, options of a menu) and further keywords of the input. A
    setting of several values is shown as text, which `listed` writes. The page reads its group as `wan_group`.
    """
    known = settings_of(config)[name]
    made = _shown(known, known.called or name, **own)
    if known.group:
        made.extra_dict["wan_group"] = known.group
    return made


def _shown(known: Setting, name: str, **own: Any) -> io.Input:
    default = own.pop("default", known.default)
    tooltip = own.pop("tooltip", known.sentence)
    if isinstance(default, bool):
        return flag(name, default, tooltip, **own)
    if known.choices:
        return combo(name, own.pop("options", list(known.choices)), tooltip, default, **own)
    if isinstance(default, int):
        low, high = known.bounds
        return whole(name, default, int(low), int(high), tooltip, int(known.step or 1), **own)
    if isinstance(default, float):
        low, high = known.bounds
        return number(name, default, float(low), float(high), tooltip, float(known.step or 0.01), **own)
    return text(name, default if isinstance(default, str) else listed(default), tooltip, **own)


def listed(values: Sequence[object]) -> str:
    """Returns several values as the text of a widget: numbers with commas, texts a line each."""
    if all(isinstance(value, int | float) for value in values):
        return ", ".join(f"{value:g}" for value in values)
    return "\n".join(map(str, values))


def check_menus(config: type[Config], values: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first of `values` that the menu of its setting does not offer."""
    for name, own in names_on_nodes(config).items():
        if name in values and (choices := settings_of(config)[own].choices):
            one_of(name, values[name], choices)


def whole(name: str, default: int, low: int, high: int, tooltip: str, step: int = 1, **more: Any) -> io.Input:
    """An INT widget."""
    return io.Int.Input(name, optional=True, default=default, min=low, max=high, step=step, tooltip=tooltip, **more)


def number(
    name: str, default: float, low: float, high: float, tooltip: str, step: float = 0.01, **more: Any
) -> io.Input:
    """A FLOAT widget. Values are not rounded to `step`: 1e-4 and 5e-7 stay what they are."""
    return io.Float.Input(
        name, optional=True, default=default, min=low, max=high, step=step, round=1e-9, tooltip=tooltip, **more
    )


def text(name: str, default: str, tooltip: str, multiline: bool = False, placeholder: str = "") -> io.Input:
    """A STRING widget."""
    return io.String.Input(
        name, optional=True, default=default, multiline=multiline, tooltip=tooltip, placeholder=placeholder
    )


def flag(name: str, default: bool, tooltip: str) -> io.Input:
    """A BOOLEAN widget."""
    return io.Boolean.Input(name, optional=True, default=default, tooltip=tooltip)


def combo(name: str, options: list[str], tooltip: str, default: str | None = None) -> io.Input:
    """A COMBO widget; the default is the first option.

    Where there is nothing to choose, the empty text is offered: the page would show "undefined" otherwise.
    """
    options = options or [""]
    first = default if default is not None else options[0]
    return io.Combo.Input(name, options=options, optional=True, default=first, tooltip=tooltip)


def one_of(name: str, value: str, options: list[str] | tuple[str, ...]) -> str:
    """Returns `value` if it is one of `options`. Raises ConfigError naming the nearest."""
    if value not in options:
        raise ConfigError(
            '{name} "{value}" is not a choice.{nearest}',
            name=name,
            value=str(value)[:200],
            nearest=nearest(str(value), list(options)[:200]),
        )
    return value


def _says_nothing(cls: type[io.ComfyNode], **_: object) -> bool:
    return True


judged_when_it_runs: Any = classmethod(_says_nothing)
"""The validate_inputs of a node that only a training reads: ComfyUI leaves the check of its widgets to the node.

Where ComfyUI refuses a node, it still runs the outputs that do not need it, and a graph with a dataset in it, which is
one, ends as a success in which nothing was trained. What raises while the graph runs fails the whole prompt.
"""


def file_of(name: str, value: str, known: list[str], kind: str) -> str:
    """Returns `value` if it is one of the `known` files of models. Raises ConfigError saying where it belongs."""
    if value not in known:
        close = get_close_matches(str(value)[:200], known, n=1, cutoff=0.8)
        hint = filled(' Did you mean "{close}"?', close=close[0]) if close else ""
        raise ConfigError(
            '{name} "{value}" is not a choice: models/{kind} holds no file of that name. Put it there, or '
            "choose another.{hint}",
            name=name,
            value=str(value)[:200],
            kind=kind,
            hint=hint,
        )
    return value


def comfyui_checks_menus() -> bool:
    """Returns whether the running ComfyUI refuses what is on no menu before it asks a node (0.10 and later)."""
    return "search_aliases" in {field.name for field in fields(io.Schema)}


def searched_as(*words: str) -> dict[str, Any]:
    """Keywords of `io.Schema` that make a node found by `words`, beside its id and its name.

    Nothing where the running ComfyUI knows no such words (before 0.10): the search of its page reads id and name only.
    """
    return {"search_aliases": list(words)} if comfyui_checks_menus() else {}


def asked_of(node: type[io.ComfyNode]) -> dict[str, Any]:
    """Returns what the widgets of the running node were set to; linked inputs are left out.

    The page compares it with the widgets, and says when a card is older than they are.
    """
    hidden = node.hidden
    if hidden is None or not hidden.prompt:
        return {}
    inputs = hidden.prompt.get(str(hidden.unique_id), {}).get("inputs", {})
    return {name: value for name, value in inputs.items() if isinstance(value, (str, int, float, bool))}
