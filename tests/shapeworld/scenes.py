"""Scenes at random, each from its own seed: those with captions, and the wider ones that teach the VAE to see."""

from __future__ import annotations

import colorsys
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from .draw import COLOURS, DIRECTIONS, SHAPES, SIZE, Outline, Point, Scene, regular_polygon, walk

EDGE = 2.0  # pixels that stay free around the shape
RADII = {"": (9.5, 14.0), "small": (8.0, 9.5), "large": (13.0, 15.5)}
"""size -> pixels"""
REACHES = {"": (0.55, 0.9), "slow": (0.35, 0.5), "fast": (0.8, 0.98)}
"""speed -> half the extent of a path, as a share of the room"""


@dataclass(frozen=True)
class Words:
    """What a caption says."""

    colour: str
    shape: str
    direction: str

    @property
    def caption(self) -> str:
        return f"a {self.colour} {self.shape} moving {self.direction}"


def all_words() -> list[Words]:
    """The 96 captions of the world, always in this order."""
    return [Words(c, s, d) for s in SHAPES for c in COLOURS for d in DIRECTIONS]


CAPTIONS = [words.caption for words in all_words()]


def _background(rng: random.Random) -> tuple[float, float, float]:
    grey = rng.uniform(8, 64)
    red, green, blue = (max(0.0, grey + rng.uniform(-10, 10)) for _ in range(3))
    return red, green, blue


def _shade(colour: Sequence[float], rng: random.Random) -> tuple[float, float, float]:
    light = rng.uniform(0.9, 1.0)
    red, green, blue = (min(255.0, max(0.0, light * value + rng.uniform(-8, 8))) for value in colour)
    return red, green, blue


def scene_of(
    outline: Outline,
    colour: Sequence[float],
    path: Sequence[Point],
    rng: random.Random,
    frames: int = 9,
    size: int = SIZE,
    radii: tuple[float, float] = RADII[""],
    reaches: tuple[float, float] = REACHES[""],
) -> Scene:
    """A scene of given content with everything else (size, place, speed, background) at random.

    `radii` in pixels; `reaches` as shares of the room that a path has.
    """
    radius = rng.uniform(*radii)
    room = size / 2 - EDGE - radius
    reach = rng.uniform(*reaches) * room
    width, height = (max(abs(point[axis]) for point in path) * reach for axis in (0, 1))
    aside = rng.uniform(-1, 1) * (room - width), rng.uniform(-1, 1) * (room - height)
    return Scene(
        outline=outline,
        colour=_shade(colour, rng),
        background=_background(rng),
        tilt=(rng.uniform(-8, 8), rng.uniform(-8, 8)),
        radius=radius,
        centres=tuple((aside[0] + reach * x, aside[1] + reach * y) for x, y in walk(path, frames)),
        turn=rng.uniform(-0.1, 0.1),
    )


def captioned_scene(words: Words, seed: int, frames: int = 9) -> Scene:
    """The scene that `words` describe; everything the caption leaves open follows from `seed`."""
    rng = random.Random(f"{words.caption} {seed}")
    return scene_of(SHAPES[words.shape], COLOURS[words.colour], DIRECTIONS[words.direction], rng, frames)


def _any_outline(rng: random.Random) -> Outline:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(list(SHAPES.values()))
    corners = rng.randint(3, 8)
    if kind < 0.55:
        return (regular_polygon(corners),)
    if kind < 0.8:  # stars and crosses: every other corner further in
        inner = rng.uniform(0.3, 0.7)
        points = regular_polygon(2 * corners)
        return (tuple((x * f, y * f) for (x, y), f in zip(points, [1.0, inner] * corners, strict=True)),)
    lengths = [rng.uniform(0.4, 1.0) for _ in range(corners)]
    blob = tuple((x * f, y * f) for (x, y), f in zip(regular_polygon(corners), lengths, strict=True))
    return (blob, regular_polygon(24, rng.uniform(0.2, 0.5))) if kind > 0.93 else (blob,)


def any_scene(rng: random.Random, frames: int = 9, size: int = SIZE) -> Scene:
    """A scene far beyond the captions: any outline, colour, turn and curved path, sometimes partly out of sight."""
    colour = (
        _shade(rng.choice(list(COLOURS.values())), rng)
        if rng.random() < 0.5
        else tuple(255 * v for v in colorsys.hsv_to_rgb(rng.random(), rng.uniform(0, 1), rng.uniform(0.5, 1)))
    )
    radius = rng.uniform(8.0, 15.0)
    centre = [rng.uniform(-0.35, 0.35) * size for _ in range(2)]
    speed, angle, bend = rng.uniform(0, 5.5), rng.uniform(0, 2 * math.pi), rng.uniform(-0.3, 0.3)
    if rng.random() < 0.5:
        bend = 0.0
        angle = rng.choice([0.0, 0.5, 1.0, 1.5]) * math.pi
    here = [centre[0] - math.cos(angle) * speed * frames / 2, centre[1] - math.sin(angle) * speed * frames / 2]
    sharp = rng.randrange(frames * 3)  # a path may break once
    centres: list[Point] = []
    for frame in range(frames):
        if frame == sharp:
            angle += rng.uniform(-2.5, 2.5)
        centres.append((here[0], here[1]))
        here = [here[0] + speed * math.cos(angle), here[1] + speed * math.sin(angle)]
        angle += bend
    return Scene(
        outline=_any_outline(rng),
        colour=colour,
        background=_background(rng),
        tilt=(rng.uniform(-8, 8), rng.uniform(-8, 8)),
        radius=radius,
        centres=tuple(centres),
        turn=rng.uniform(-0.1, 0.1) if rng.random() < 0.6 else rng.uniform(0, 2 * math.pi),
    )


def _wide_outline(rng: random.Random) -> Outline:
    """Polygons, stars and blobs; never the five-pointed star or the cross that the concept files hold."""
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(list(SHAPES.values()))
    if kind < 0.4:
        return (regular_polygon(rng.randint(4, 8), 1.0),)
    if kind < 0.75:
        corners = rng.choice((3, 4, 6, 7, 8))
        inner = rng.uniform(0.4, 0.75) if corners != 4 else rng.uniform(0.25, 0.45)
        points = regular_polygon(2 * corners, 1.15)
        return (tuple((x * f, y * f) for (x, y), f in zip(points, [1.0, inner] * corners, strict=True)),)
    corners = rng.randint(4, 8)
    lengths = [rng.uniform(0.5, 1.15) for _ in range(corners)]
    return (tuple((x * f, y * f) for (x, y), f in zip(regular_polygon(corners), lengths, strict=True)),)


def _wide_path(rng: random.Random) -> list[Point]:
    """A straight line at any angle, a line with one or two corners, or an arc of less than a full turn."""
    kind = rng.random()
    if kind < 0.3:
        angle = rng.uniform(0, 2 * math.pi)
        return [(-math.cos(angle), -math.sin(angle)), (math.cos(angle), math.sin(angle))]
    if kind < 0.7:
        return [(rng.uniform(-1, 1), rng.uniform(-1, 1)) for _ in range(rng.choice((3, 3, 4)))]
    start, sweep = rng.uniform(0, 2 * math.pi), rng.choice((-1, 1)) * rng.uniform(1.5, 5.0)
    return [(math.cos(start + sweep * part / 24), math.sin(start + sweep * part / 24)) for part in range(25)]


def wide_scene(rng: random.Random, frames: int = 9) -> Scene:
    """What the captions do not name: other outlines, any colour, other paths, whole in the picture."""
    red, green, blue = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.5, 1), rng.uniform(0.7, 1))
    colour = rng.choice(list(COLOURS.values())) if rng.random() < 0.4 else (255 * red, 255 * green, 255 * blue)
    return scene_of(_wide_outline(rng), colour, _wide_path(rng), rng, frames)
