"""Inputs of the pack's nodes. Each has a default and a tooltip, and may be missing in API JSON.

ComfyUI refuses a required input without a value even when it has a default, and 0.3.75 does not check the value of a
COMBO. Widgets are therefore declared optional, and checked by `one_of` and `check_menus`.

`widget` makes the input of a setting from its field; the other functions make inputs of a single node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

from comfy_api.latest import io

from ...wan_core.config import Config, Setting, names_on_nodes, nearest, settings_of
from ...wan_core.errors import ConfigError
from ...wan_core.words import filled

Number = TypeVar("Number", int, float)
_MODEL_WORD = re.compile(r"[a-z]*2v|vace|fun|animate|camera|control|high|low|\d+(?:[._]\d+)?b|2[._][12]|\d{3}p")
"""parts of a file name that say which Wan model a file holds"""


def widget(config: type[Config], name: str, **own: Any) -> io.Input:
    """Returns the widget of a setting. `own`: another default, tooltip or options, and more keywords of the input."""
    known = settings_of(config)[name]
    made = _shown(known, known.called or name, **own)
    if known.group:  # the page shows it by the button of this group
        made.extra_dict["wan_group"] = known.group
    return made


def widgets(config: type[Config], names: str) -> list[io.Input]:
    """Returns the widgets of settings. `names`: separated by spaces."""
    return [widget(config, name) for name in names.split()]


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


def advanced(*inputs: io.Input) -> list[io.Input]:
    """Returns `inputs` marked as advanced, which the page shows on request.

    The schema of ComfyUI 0.3.75 has no argument for this, so the mark is an extra option, which 0.33 reads too.
    """
    for made in inputs:
        made.extra_dict["advanced"] = True
    return list(inputs)


def listed(values: Sequence[object]) -> str:
    """Returns values as the text of a widget: numbers separated by commas, texts by line breaks."""
    if all(isinstance(value, int | float) for value in values):
        return ", ".join(f"{value:g}" for value in values)
    return "\n".join(map(str, values))


def check_menus(config: type[Config], values: Mapping[str, Any]) -> None:
    """Raises ConfigError for the first value that is not among the choices of its setting."""
    for name, own in names_on_nodes(config).items():
        if name in values and (choices := settings_of(config)[own].choices):
            one_of(name, values[name], choices)


def whole(name: str, default: int, low: int, high: int, tooltip: str, step: int = 1, **more: Any) -> io.Input:
    return io.Int.Input(name, optional=True, default=default, min=low, max=high, step=step, tooltip=tooltip, **more)


def number(
    name: str, default: float, low: float, high: float, tooltip: str, step: float = 0.01, **more: Any
) -> io.Input:
    # round=1e-9, because by default the page rounds to `step`, and 5e-7 would become 0.
    return io.Float.Input(
        name, optional=True, default=default, min=low, max=high, step=step, round=1e-9, tooltip=tooltip, **more
    )


def strength_input(name: str, tooltip: str, **more: Any) -> io.Input:
    """Returns the strength of a LoRA."""
    return number(name, 1.0, -100.0, 100.0, tooltip, **more)


def text(name: str, default: str, tooltip: str, multiline: bool = False, placeholder: str = "") -> io.Input:
    return io.String.Input(
        name, optional=True, default=default, multiline=multiline, tooltip=tooltip, placeholder=placeholder
    )


def flag(name: str, default: bool, tooltip: str) -> io.Input:
    return io.Boolean.Input(name, optional=True, default=default, tooltip=tooltip)


def combo(name: str, options: list[str], tooltip: str, default: str | None = None) -> io.Input:
    """Returns a COMBO widget; without `default`, the first option is the default."""
    options = options or [""]  # the page shows "undefined" for a menu without options
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
"""validate_inputs of nodes for training: accepts everything, because these nodes check their widgets when they run.

If ComfyUI refuses a node, it still runs outputs that do not need this node, such as a dataset, and reports success,
although nothing was trained. An exception of a running node fails the prompt.
"""


def file_of(name: str, value: str, known: list[str], kind: str) -> str:
    """Returns `value` if it is one of the `known` model files.

    Raises ConfigError with the folder and the nearest name that has at least the model words of `value`.
    """
    if value not in known:
        asked = str(value)[:200]
        same = [one for one in known if _model_words(one) >= _model_words(asked)]
        close = get_close_matches(asked, same, n=1, cutoff=0.8)
        hint = filled(' Did you mean "{close}"?', close=close[0]) if close else ""
        raise ConfigError(
            '{name} "{value}" is not a choice: models/{kind} has no file of that name. Put it there, or choose '
            "another.{hint}",
            name=name,
            value=asked,
            kind=kind,
            hint=hint,
        )
    return value


def _model_words(name: str) -> set[str]:
    return {word.replace("_", ".") for word in _MODEL_WORD.findall(name.lower())}


def in_menu(words: str) -> dict[str, Any]:
    """Returns keywords of `io.Schema` for the menu, and for the page's search from words with commas (ComfyUI 0.10)."""
    known = {field.name for field in fields(io.Schema)}
    aliases = {"search_aliases": words.split(", ")} if "search_aliases" in known else {}
    return {"category": "Wan Trainer", **aliases}


def numbers_of(name: str, text: str, kind: Callable[[str], Number], what: str, example: str) -> tuple[Number, ...]:
    """Returns the numbers of a text. Raises ConfigError for another text. `what`: of what it is a list."""
    try:
        return tuple(kind(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise ConfigError(f'{name} "{text[:100]}" is not a list of {what}. Example: {example}') from error


def widget_values(node: type[io.ComfyNode]) -> dict[str, Any]:
    """Returns the widget values of the running node, without linked inputs; the page marks a card of other values."""
    hidden = node.hidden
    if hidden is None or not hidden.prompt:
        return {}
    inputs = hidden.prompt.get(str(hidden.unique_id), {}).get("inputs", {})
    return {name: value for name, value in inputs.items() if isinstance(value, (str, int, float, bool))}
