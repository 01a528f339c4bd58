"""Concepts that nobody chose: a seed draws the outline, colour, path, size, speed and dataset of one.

`drawn_concept` is a pure function of its seed. `Drawn.near` is what a judge has to refuse: another outline of the same
family, the path mirrored or reversed, the neighbouring colours, the other size and speed. `seen_right` says whether
the judge knows a drawn concept from these; one that it does not is left out, and the generator's next seed taken.
"""

from __future__ import annotations

import colorsys
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from .concept import Concept, Rgb, concept_scene
from .draw import COLOURS, DIRECTIONS, SHAPES, Outline, Point, regular_polygon
from .files import Frames, drawn
from .judge import colour_error, judge, matches_concept, outline_area, path_error, shape_error

CLIPS = (8, 40)
STILLS = (0.0, 0.0, 0.25, 0.5)
"""shares of the dataset that are stills, each as likely"""
LEAST_AREA = 0.85  # squared radii
LEAST_FROM_WORLD = 0.07  # error of the nearest shape of the world
NEAR = (0.06, 0.25)  # error of another outline of the family
LEAST_PATH_APART = 0.55
LEAST_COLOUR_APART = 0.35
NEIGHBOUR = 42 / 360  # of hue
TRIES = 400
TRIALS = 6
"""clips of the concept, and of each near miss, that `seen_right` looks at"""
SHOWN = 3
"""of these, clips of the concept that it looks at through a VAE, which takes a hundred times as long"""
FIRST_TRIAL = 5_000
"""seed of the scenes of `seen_right`; a dataset has those from 0, a measurement its own"""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A drawn concept and the dataset that teaches it."""

    seed: int
    concept: Concept
    clips: int
    """without the stills"""
    stills: int
    convex: bool
    things: int
    near: tuple[Concept, ...]
    """its near misses: as the concept but for one part"""

    @property
    def candidates(self) -> tuple[Concept, ...]:
        """What a judge compares a clip with; shapes, paths and colours of the world are known to it anyway."""
        return (self.concept, *self.near)


# ---- outlines ----------------------------------------------------------------------------------


def _turned(points: Sequence[Point], angle: float) -> tuple[Point, ...]:
    cos, sin = math.cos(angle), math.sin(angle)
    return tuple((cos * x - sin * y, sin * x + cos * y) for x, y in points)


def _fitted(points: Sequence[Point], radius: float = 1.12) -> tuple[Point, ...]:
    """Around the middle of their box, the farthest point at `radius`."""
    left, right = (pick(x for x, _ in points) for pick in (min, max))
    top, bottom = (pick(y for _, y in points) for pick in (min, max))
    moved = [(x - (left + right) / 2, y - (top + bottom) / 2) for x, y in points]
    scale = radius / max(math.hypot(x, y) for x, y in moved)
    return tuple((round(scale * x, 3), round(scale * y, 3)) for x, y in moved)


def _bar(rng: random.Random) -> tuple[Point, ...]:
    thin = rng.uniform(0.35, 0.6)
    return _turned([(-1, -thin), (1, -thin), (1, thin), (-1, thin)], rng.choice((0, 1, 2, 3)) * math.pi / 4)


def _diamond(rng: random.Random) -> tuple[Point, ...]:
    thin = rng.uniform(0.45, 0.72)
    return _turned([(0, -1), (thin, 0), (0, 1), (-thin, 0)], rng.choice((0, 1)) * math.pi / 2)


def _ellipse(rng: random.Random) -> tuple[Point, ...]:
    thin = rng.uniform(0.4, 0.62)
    points = [(x, thin * y) for x, y in regular_polygon(24)]
    return _turned(points, rng.choice((0, 1, 2, 3)) * math.pi / 4)


def _wedge(rng: random.Random) -> tuple[Point, ...]:
    return _turned([(-1, -rng.uniform(0.5, 0.9)), (1, 0.7), (-1, 0.7)], rng.randrange(4) * math.pi / 2)


def _half(rng: random.Random) -> tuple[Point, ...]:
    sweep = rng.uniform(0.95, 1.2) * math.pi
    points = [(math.cos(sweep * part / 16), math.sin(sweep * part / 16)) for part in range(17)]
    return _turned(points, rng.randrange(4) * math.pi / 2)


def _trapezium(rng: random.Random) -> tuple[Point, ...]:
    top = rng.uniform(0.1, 0.45)
    return _turned([(-top, -0.7), (top, -0.7), (1, 0.7), (-1, 0.7)], rng.choice((1, 2, 3)) * math.pi / 2)


def _star(rng: random.Random) -> tuple[Point, ...]:
    corners, inner = rng.choice((3, 4, 5, 6)), rng.uniform(0.35, 0.5)
    points = regular_polygon(2 * corners, 1.0, rng.choice((-0.5, 0.5)) * math.pi)
    return tuple((x * f, y * f) for (x, y), f in zip(points, [1.0, inner] * corners, strict=True))


def _cross(rng: random.Random) -> tuple[Point, ...]:
    arm = rng.uniform(0.25, 0.42)
    quarter = [(-arm, -1.0), (arm, -1.0), (arm, -arm)]
    points = [point for turn in range(4) for point in _turned(quarter, turn * math.pi / 2)[:3]]
    return _turned(points, rng.choice((0, 1)) * math.pi / 4)


def _corner(rng: random.Random) -> tuple[Point, ...]:
    wide = rng.uniform(0.6, 0.95)
    points = [(-1, -1), (wide - 1, -1), (wide - 1, 1 - wide), (1, 1 - wide), (1, 1), (-1, 1)]
    return _turned(points, rng.randrange(4) * math.pi / 2)


def _tee(rng: random.Random) -> tuple[Point, ...]:
    bar, stem = rng.uniform(0.5, 0.75), rng.uniform(0.25, 0.4)
    points = [(-1, -1), (1, -1), (1, bar - 1), (stem, bar - 1), (stem, 1), (-stem, 1), (-stem, bar - 1), (-1, bar - 1)]
    return _turned(points, rng.randrange(4) * math.pi / 2)


def _chevron(rng: random.Random) -> tuple[Point, ...]:
    deep, thick = rng.uniform(0.5, 0.8), rng.uniform(0.6, 0.9)
    points = [(-1, 0), (0, -deep), (1, 0), (1, thick), (0, thick - deep), (-1, thick)]
    return _turned(points, rng.randrange(4) * math.pi / 2)


def _arrow(rng: random.Random) -> tuple[Point, ...]:
    head, stem = rng.uniform(0.0, 0.4), rng.uniform(0.22, 0.42)
    points = [(0, -1), (0.9, head), (stem, head), (stem, 1), (-stem, 1), (-stem, head), (-0.9, head)]
    return _turned(points, rng.randrange(4) * math.pi / 2)


def _crescent(rng: random.Random) -> tuple[Point, ...]:
    bite = rng.uniform(0.15, 0.45)
    outer = [(math.cos(a), math.sin(a)) for a in (math.pi * (0.5 + part / 16) for part in range(17))]
    inner = [(-bite * math.cos(a), math.sin(a)) for a in (math.pi * (1.5 - part / 16) for part in range(1, 16))]
    return _turned(outer + [(-abs(x), y) for x, y in inner], rng.randrange(4) * math.pi / 2)


def _blob(rng: random.Random) -> tuple[Point, ...]:
    corners = rng.randint(5, 7)
    lengths = [rng.uniform(0.4, 1.0) for _ in range(corners)]
    return tuple((x * f, y * f) for (x, y), f in zip(regular_polygon(corners), lengths, strict=True))


_Family = Callable[[random.Random], tuple[Point, ...]]
CONVEX: tuple[_Family, ...] = (_bar, _diamond, _ellipse, _wedge, _half, _trapezium)
CONCAVE: tuple[_Family, ...] = (_star, _cross, _corner, _tee, _chevron, _arrow, _crescent, _blob)
PAIRED: tuple[_Family, ...] = (_bar, _diamond, _ellipse, _wedge, _half)


def _outline(family: _Family, things: int, rng: random.Random) -> Outline:
    """One polygon, or two of them side by side that move together."""
    one = _fitted(family(rng))
    if things == 1:
        return (one,)
    dx, dy = rng.choice(((0.62, 0.0), (0.0, 0.62)))
    small = [(0.5 * x, 0.5 * y) for x, y in one]
    return tuple(tuple((round(x + s * dx, 3), round(y + s * dy, 3)) for x, y in small) for s in (-1, 1))


def _outlines(seed: int, rng: random.Random) -> tuple[Outline, Outline, bool, int]:
    """An outline that is none of the world's, another of its family near to it, whether it is convex, its things.

    Half of all seeds are convex, a quarter are concave, a quarter are two things.
    """
    convex, things = seed % 2 == 0, 2 if seed % 4 == 1 else 1  # so that a few concepts hold some of each
    family = rng.choice(PAIRED if things == 2 else CONVEX if convex else CONCAVE)
    for _ in range(TRIES):
        outline = _outline(family, things, rng)
        if outline_area(outline) < LEAST_AREA:
            continue
        if min(shape_error(outline, other) for other in SHAPES.values()) < LEAST_FROM_WORLD:
            continue
        for _ in range(TRIES // 10):
            near = _outline(family, things, rng)
            if outline_area(near) >= LEAST_AREA and NEAR[0] <= shape_error(outline, near) <= NEAR[1]:
                return outline, near, convex, things
    raise ValueError(f"seed {seed} draws no outline with another of its family near to it.")


# ---- paths and colours -------------------------------------------------------------------------


def _arc(start: float, sweep: float) -> list[Point]:
    return [(math.cos(start + sweep * part / 24), math.sin(start + sweep * part / 24)) for part in range(25)]


def _slant(rng: random.Random) -> tuple[str, list[Point]]:
    angle = (rng.randrange(4) + 0.5) * math.pi / 2 + rng.uniform(-0.2, 0.2)
    return "sliding", [(-math.cos(angle), -math.sin(angle)), (math.cos(angle), math.sin(angle))]


def _bounce(rng: random.Random) -> tuple[str, list[Point]]:
    high = rng.uniform(0.5, 0.9)
    return "bouncing", list(_turned([(-1, -high), (0, high), (1, -high)], rng.randrange(4) * math.pi / 2))


def _zigzag(rng: random.Random) -> tuple[str, list[Point]]:
    high = rng.uniform(0.5, 0.9)
    points = [(-1, high), (-0.33, -high), (0.33, high), (1, -high)]
    return "zigzagging", list(_turned(points, rng.randrange(4) * math.pi / 2))


def _bend(rng: random.Random) -> tuple[str, list[Point]]:
    points: list[Point] = [(-1, -1), (rng.uniform(0.5, 1), -1), (1, 1)]
    side = rng.choice((-1, 1))
    return "turning", list(_turned([(x, side * y) for x, y in points], rng.randrange(4) * math.pi / 2))


def _circle(rng: random.Random) -> tuple[str, list[Point]]:
    return "circling", _arc(rng.randrange(8) * math.pi / 4, rng.choice((-1, 1)) * 2 * math.pi)


def _bow(rng: random.Random) -> tuple[str, list[Point]]:
    return "arching", _arc(rng.randrange(8) * math.pi / 4, rng.choice((-1, 1)) * rng.uniform(0.8, 1.2) * math.pi)


def _back(rng: random.Random) -> tuple[str, list[Point]]:
    angle = rng.randrange(8) * math.pi / 4
    end = (math.cos(angle), math.sin(angle))
    return "returning", [(-end[0], -end[1]), end, (-end[0], -end[1])]


PATHS = (_slant, _bounce, _zigzag, _bend, _circle, _bow, _back)


def _centred(points: Sequence[Point]) -> tuple[Point, ...]:
    """Around the middle of their box, the longer side from -1 to 1."""
    left, right = (pick(x for x, _ in points) for pick in (min, max))
    top, bottom = (pick(y for _, y in points) for pick in (min, max))
    scale = 2 / max(right - left, bottom - top)
    return tuple((round(scale * (x - (left + right) / 2), 3), round(scale * (y - (top + bottom) / 2), 3))
                 for x, y in points)  # fmt: skip


def _paths(seed: int, rng: random.Random) -> tuple[str, tuple[Point, ...], list[tuple[Point, ...]]]:
    """The verb of a path, the path, and its mirrored and reversed forms that differ from it and from each other."""
    for _ in range(TRIES):
        verb, points = rng.choice(PATHS)(rng)
        path = _centred(points)
        if min(path_error(path, other) for other in DIRECTIONS.values()) < LEAST_PATH_APART:
            continue
        others: list[tuple[Point, ...]] = []
        for other in (tuple((-x, y) for x, y in path), tuple((x, -y) for x, y in path), path[::-1]):
            if all(path_error(known, other) >= LEAST_PATH_APART for known in (path, *others)):
                others.append(other)
        if others:
            return verb, path, others
    raise ValueError(f"seed {seed} draws no path that differs from its mirror images.")


_HUES = {"orange": (24, 32), "lime": (80, 98), "cyan": (170, 192), "pink": (312, 335)}
"""colours without a name in the world, degrees"""


def _rgb(hue: float, saturation: float, value: float) -> Rgb:
    red, green, blue = (float(round(255 * part)) for part in colorsys.hsv_to_rgb(hue % 1, saturation, value))
    return red, green, blue


def _colours(seed: int, rng: random.Random) -> tuple[str, Rgb, list[Rgb]]:
    """The word for a colour, the colour, and its two neighbours in hue."""
    for _ in range(TRIES):
        word = rng.choice(list(_HUES))
        hue, saturation, value = rng.uniform(*_HUES[word]) / 360, rng.uniform(0.75, 1), rng.uniform(0.85, 1)
        colour = _rgb(hue, saturation, value)
        if min(colour_error(colour, other) for other in COLOURS.values()) < LEAST_COLOUR_APART:
            continue
        return word, colour, [_rgb(hue + side * NEIGHBOUR, saturation, value) for side in (-1, 1)]
    raise ValueError(f"seed {seed} draws no colour that the world does not know.")


# ---- concepts ----------------------------------------------------------------------------------


@cache
def drawn_concept(seed: int) -> Drawn:
    """The concept of a seed. ValueError, always for the same seeds, where nothing fits."""
    rng = random.Random(f"drawn concept {seed}")
    outline, near_outline, convex, things = _outlines(seed, rng)
    verb, path, other_paths = _paths(seed, rng)
    word, colour, neighbours = _colours(seed, rng)
    size = rng.choice(("", "large")) if things == 2 else rng.choice(("", "small", "large"))
    speed = rng.choice(("", "slow", "fast"))
    noun = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2)) + rng.choice("lmnrx")
    total = rng.randint(*CLIPS)
    stills = round(rng.choice(STILLS) * total)
    concept = Concept(
        name=f"drawn_{seed}",
        caption=f"{'an' if word == 'orange' else 'a'} {word} {noun} {verb}",
        outline=outline,
        colour=colour,
        path=path,
        size=size,
        speed=speed,
    )
    other = {"small": "large", "large": "small", "slow": "fast", "fast": "slow"}
    changes: list[tuple[str, dict[str, object]]] = [
        ("shape", {"outline": near_outline}),
        *((f"path{index}", {"path": one}) for index, one in enumerate(other_paths)),
        *((f"colour{index}", {"colour": one}) for index, one in enumerate(neighbours)),
        *([("size", {"size": other[size]})] if size else []),
        *([("speed", {"speed": other[speed]})] if speed else []),
    ]
    near = tuple(replace(concept, name=f"{concept.name}_{name}", **change) for name, change in changes)  # type: ignore[arg-type]
    return Drawn(
        seed=seed,
        concept=concept,
        clips=total - stills,
        stills=stills,
        convex=convex,
        things=things,
        near=near,
    )


def judgements(one: Drawn, first: int, count: int) -> Iterator[tuple[str, bool]]:
    """Yields (what was drawn, whether the judge was right) for `count` scenes of the concept and of each near miss."""
    for shown in one.candidates:
        for seed in range(first, first + count):
            found = matches_concept(judge(drawn(concept_scene(shown, seed)), one.candidates), one.concept)
            yield shown.name.removeprefix(one.concept.name).strip("_") or "concept", found.all == (shown is one.concept)


def seen_right(one: Drawn, shown: Callable[[Frames], Frames] | None = None) -> bool:
    """Whether the judge tells the concept from its near misses in every scene that it is tried on.

    `shown`: what a model's VAE makes of a clip; of the concept, the judge must then see every such clip too.
    """
    if not all(right for _, right in judgements(one, FIRST_TRIAL, TRIALS)):
        return False
    scenes = (concept_scene(one.concept, seed) for seed in range(FIRST_TRIAL, FIRST_TRIAL + SHOWN))
    return shown is None or all(
        matches_concept(judge(shown(drawn(scene)), one.candidates), one.concept).all for scene in scenes
    )
