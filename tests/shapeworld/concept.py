"""A concept is what a LoRA teaches the world: one new outline in one colour on one new path, read from a JSON file.

    {"name": "bouncing_star", "caption": "an orange star bouncing", "colour": [250, 140, 30],
     "outline": [[0, -1], ...], "path": [[-1, -0.6], [0, 0.6], [1, -0.6]]}

An outline may be several polygons (a second one cuts a hole), a path may be two formulas of t, which runs from 0 to 1:
`{"x": "cos(2*pi*t)", "y": "sin(2*pi*t)"}`. x goes right and y goes down, the picture's room is -1..1. Two optional
fields say more: "size" is small or large, "speed" is slow or fast; without them a clip may have any.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import json
import math
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .draw import COLOURS, DIRECTIONS, SHAPES, Outline, Point, Scene, cover
from .scenes import RADII, REACHES, scene_of

FIELDS = ("name", "caption", "outline", "colour", "path")
OPTIONAL: dict[str, dict[str, tuple[float, float]]] = {"size": RADII, "speed": REACHES}
"""fields that may be missing, and the values of each"""
REACH = 1.25  # how far a point may lie from the middle along each axis
FORMULA_POINTS = 33
MAX_FORMULA = 200  # characters
MAX_EXPONENT = 8
MAX_POINTS = 512
MAX_POLYGONS = 16
MAX_BYTES = 1 << 20
LEAST_AREA = 0.2  # of a shape, in squared radii; a circle has 2.5

Rgb = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Concept:
    """What a clip must show to be a clip of this concept."""

    name: str
    caption: str
    outline: Outline
    colour: str | Rgb
    """a name from COLOURS, or red, green, blue in 0..255"""
    path: tuple[Point, ...]
    """corners of a polyline, walked at even speed"""
    size: str = ""
    """of RADII; "": any"""
    speed: str = ""
    """of REACHES: how far it gets in a clip; "": any"""

    @property
    def rgb(self) -> Rgb:
        return COLOURS[self.colour] if isinstance(self.colour, str) else self.colour

    @property
    def colour_name(self) -> str:
        """What a judge calls the colour: its name in the world, or #rrggbb where the world has none for it."""
        if isinstance(self.colour, str):
            return self.colour
        known = [name for name, rgb in COLOURS.items() if rgb == self.colour]
        return known[0] if known else "#" + "".join(f"{round(value):02x}" for value in self.colour)


def concept_scene(concept: Concept, seed: int, frames: int = 9) -> Scene:
    """A scene of the concept; everything it leaves open (size, place, speed, background) follows from `seed`."""
    rng = random.Random(f"{concept.caption} {seed}")
    radii, reaches = RADII[concept.size], REACHES[concept.speed]
    return scene_of(concept.outline, concept.rgb, concept.path, rng, frames, radii=radii, reaches=reaches)


def load_concept(file: Path) -> Concept:
    """Read a concept. ValueError names the field that is wrong and what to write there instead."""
    try:
        return _concept(_read_json(file))
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError("is larger than 1 MiB. A concept is a few lines of JSON.")
    try:
        found = json.loads(raw.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON (line {error.lineno}: {error.msg}). Mend that line.") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError("is not JSON. Write one object with the five fields, as UTF-8 text.") from error
    if not isinstance(found, dict):
        raise ValueError(f"holds a {type(found).__name__}. Write one object with the fields {', '.join(FIELDS)}.")
    return found


def _concept(found: dict[str, Any]) -> Concept:
    for key in found:
        if key not in (*FIELDS, *OPTIONAL):
            near = difflib.get_close_matches(key, (*FIELDS, *OPTIONAL), 1)
            remedy = f"Did you mean {near[0]}?" if near else f"The fields are {', '.join(FIELDS)}."
            raise ValueError(f"has an unknown field {key[:40]!r}. {remedy}")
    for key in FIELDS:
        if key not in found:
            raise ValueError(f"{key} is missing. Add it; the fields are {', '.join(FIELDS)}.")
    return Concept(
        name=_name(found["name"]),
        caption=_caption(found["caption"]),
        outline=_outline(found["outline"]),
        colour=_colour(found["colour"]),
        path=_path(found["path"]),
        size=_one_of(found, "size"),
        speed=_one_of(found, "speed"),
    )


def _one_of(found: dict[str, Any], field: str) -> str:
    value = found.get(field, "")
    if not isinstance(value, str) or value not in OPTIONAL[field]:
        words = " or ".join(word for word in OPTIONAL[field] if word)
        raise ValueError(f"{field} is {_shown(value)}. Use {words}, or leave it out.")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", value):
        raise ValueError(f"name is {_shown(value)}. Use a-z, digits, _ and -, a letter first, at most 40.")
    if value in SHAPES or value in DIRECTIONS or value in COLOURS:
        raise ValueError(f"name is {value!r}, a word the world knows already. Choose another one.")
    return value


def _caption(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 200 or not value.isprintable():
        raise ValueError(f"caption is {_shown(value)}. Write one line of text, at most 200 characters.")
    return value.strip()


def _colour(value: object) -> str | Rgb:
    names = ", ".join(COLOURS)
    if isinstance(value, str):
        if value not in COLOURS:
            raise ValueError(f"colour is {_shown(value)}. Use one of {names}, or [red, green, blue] in 0..255.")
        return value
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(f"colour is {_shown(value)}. Use [red, green, blue] in 0..255, or one of {names}.")
    red, green, blue = (_number(part, "colour", 0.0, 255.0) for part in value)
    return red, green, blue


def _outline(value: object) -> Outline:
    if not isinstance(value, list) or not value:
        raise ValueError(f"outline is {_shown(value)}. Write a list of at least 3 points [x, y].")
    several = isinstance(value[0], list) and bool(value[0]) and isinstance(value[0][0], list)
    polygons = value if several else [value]
    if len(polygons) > MAX_POLYGONS:
        raise ValueError(f"outline has {len(polygons)} polygons. Use at most {MAX_POLYGONS}.")
    outline = tuple(_points(polygon, "outline", least=3) for polygon in polygons)
    area = cover(outline, [(0.0, 0.0)], 20.0).sum().item() / 20.0**2
    if area < LEAST_AREA:
        raise ValueError(f"outline encloses {area:.2f} squared radii. Draw a shape that fills the square -1..1 better.")
    return outline


def _path(value: object) -> tuple[Point, ...]:
    if isinstance(value, dict):
        if set(value) != {"x", "y"}:
            raise ValueError('path is an object without exactly x and y. Write {"x": "cos(2*pi*t)", "y": "0"}.')
        x, y = (formula(value[axis], f"path.{axis}") for axis in ("x", "y"))
        times = [step / (FORMULA_POINTS - 1) for step in range(FORMULA_POINTS)]
        value = [[x(time), y(time)] for time in times]
    points = _points(value, "path", least=2)
    if sum(math.dist(a, b) for a, b in itertools.pairwise(points)) < 1e-6:
        raise ValueError("path is 0 long. Give at least two different points, such as [-1, 0] and [1, 0].")
    return points


def _points(value: object, field: str, least: int) -> tuple[Point, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{field} is {_shown(value)}. Write a list of at least {least} points [x, y].")
    if not least <= len(value) <= MAX_POINTS:
        raise ValueError(f"{field} has {len(value)} points. Give {least} to {MAX_POINTS}.")
    return tuple(_point(point, field) for point in value)


def _point(value: object, field: str) -> Point:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{field} has the point {_shown(value)}. A point is [x, y].")
    x, y = (_number(part, field, -REACH, REACH) for part in value)
    return x, y


def _number(value: object, field: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{field} has {_shown(value)} where a number belongs. Use {low:g} to {high:g}.")
    if not low <= value <= high:  # NaN too
        raise ValueError(f"{field} has the number {_shown(value)}. Use {low:g} to {high:g}.")
    return float(value)


def _shown(value: object) -> str:
    """A value in a message: never longer than a line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**9:
        return "a huge number"
    text = repr(value[:5] if isinstance(value, (list, str)) and len(value) > 60 else value)
    return text if len(text) <= 60 else text[:57] + "..."


Formula = Callable[[float], float]

_OPERATORS: dict[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {"sin": math.sin, "cos": math.cos, "abs": abs}


def formula(text: object, field: str) -> Formula:
    """A formula of t as a function. Nothing is ever run but the few operations listed above, on floats."""
    if not isinstance(text, str):
        raise ValueError(f'{field} is {_shown(text)}. Write a formula of t in quotes, such as "cos(2*pi*t)".')
    if len(text) > MAX_FORMULA:
        raise ValueError(f"{field} has {len(text)} characters. Use at most {MAX_FORMULA}.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f'{field} is {_shown(text)}, not a formula. Write one such as "cos(2*pi*t)".') from error

    def value_at(time: float) -> float:
        try:
            value = _value(tree, time, field)
        except (ZeroDivisionError, OverflowError) as error:
            raise ValueError(f"{field} has no value at t = {time:g} ({error}). Change the formula.") from error
        if not math.isfinite(value):
            raise ValueError(f"{field} has no value at t = {time:g}. Change the formula.")
        return value

    return value_at


def _value(node: ast.expr, time: float, field: str) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id="t"):
            return time
        case ast.Name(id="pi"):
            return math.pi
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, time, field)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a, b = _value(left, time, field), _value(right, time, field)
            if isinstance(op, ast.Pow) and not (abs(b) <= MAX_EXPONENT and (a >= 0 or b == int(b))):
                raise ValueError(f"{field} has a power {a:g}**{b:g}. Exponents are whole, -{MAX_EXPONENT} to 8.")
            return _OPERATORS[type(op)](a, b)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            value = _value(argument, time, field)
            if not math.isfinite(value):
                raise OverflowError("a number is too large")
            return _FUNCTIONS[name](value)
        case _:
            raise ValueError(
                f"{field} has {_shown(ast.unparse(node))}. Use numbers, t, pi, + - * / **, sin, cos and abs."
            )
