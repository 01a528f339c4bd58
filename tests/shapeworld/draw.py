"""Draw the small world: one flat shape that moves over a dark, slightly uneven background.

Everything is a plain description (`Scene`) and one function (`render`) from it to frames. Coordinates are pixels from
the centre of the picture, x to the right, y down; outlines live in the unit circle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

SIZE = 64
FIELD = 96  # grid points of a distance field along each axis
FIELD_REACH = 1.5  # half the side of the square it covers, in radii

Point = tuple[float, float]
Outline = tuple[tuple[Point, ...], ...]
"""closed polygons; a point is inside when an odd number of them surround it, so a second one cuts a hole"""


def regular_polygon(corners: int, radius: float = 1.0, first_angle: float = -math.pi / 2) -> tuple[Point, ...]:
    """`corners` points on a circle, the first one on top unless told otherwise."""
    angles = (first_angle + 2 * math.pi * corner / corners for corner in range(corners))
    return tuple((radius * math.cos(angle), radius * math.sin(angle)) for angle in angles)


SHAPES: dict[str, Outline] = {
    "circle": (regular_polygon(48, 0.9),),
    "square": (regular_polygon(4, 1.12, math.pi / 4),),
    "triangle": (tuple((x, y + 0.15) for x, y in regular_polygon(3, 1.15)),),
    "ring": (regular_polygon(48, 1.0), regular_polygon(48, 0.5)),
}
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (228, 38, 38),
    "green": (40, 200, 70),
    "blue": (52, 92, 242),
    "yellow": (240, 220, 48),
    "purple": (168, 56, 220),
    "white": (244, 244, 244),
}
DIRECTIONS: dict[str, tuple[Point, ...]] = {
    "left": ((1.0, 0.0), (-1.0, 0.0)),
    "right": ((-1.0, 0.0), (1.0, 0.0)),
    "up": ((0.0, 1.0), (0.0, -1.0)),
    "down": ((0.0, -1.0), (0.0, 1.0)),
}
"""a direction is a path like any other: the points it runs through, within the unit square"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One clip, complete: nothing else is needed to draw it."""

    outline: Outline
    colour: tuple[float, float, float]
    """0..255"""
    background: tuple[float, float, float]
    tilt: Point
    """brightness added at the right and lower edge and taken away at the opposite ones, 0..255"""
    radius: float
    """pixels"""
    centres: tuple[Point, ...]
    """one per frame, pixels from the centre of the picture"""
    turn: float = 0.0
    """radians, clockwise on the screen"""


def walk(path: Sequence[Point], frames: int) -> list[Point]:
    """`frames` points at equal distances along a polyline, its two ends included."""
    lengths = [math.dist(a, b) for a, b in itertools.pairwise(path)]
    points: list[Point] = []
    for frame in range(frames):
        left = sum(lengths) * frame / max(1, frames - 1)
        for index, length in enumerate(lengths):
            if left <= length or index == len(lengths) - 1:
                share = min(1.0, left / length) if length else 0.0
                (x0, y0), (x1, y1) = path[index], path[index + 1]
                points.append((x0 + share * (x1 - x0), y0 + share * (y1 - y0)))
                break
            left -= length
    return points


@lru_cache(maxsize=256)
def _distance_field(outline: Outline) -> Tensor:
    """(1, 1, FIELD, FIELD) signed distance to the outline in radii, negative inside."""
    axis = torch.linspace(-FIELD_REACH, FIELD_REACH, FIELD)
    x, y = axis.view(1, -1), axis.view(-1, 1)
    nearest = torch.full((FIELD, FIELD), 1e9)
    inside = torch.zeros(FIELD, FIELD, dtype=torch.bool)
    for polygon in outline:
        for (ax, ay), (bx, by) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            dx, dy = bx - ax, by - ay
            share = (((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy + 1e-12)).clamp(0, 1)
            nearest = torch.minimum(nearest, (x - ax - share * dx) ** 2 + (y - ay - share * dy) ** 2)
            if ay != by:
                crosses = ((ay > y) != (by > y)) & (x < dx * (y - ay) / dy + ax)
                inside ^= crosses
    distance = nearest.sqrt()
    return torch.where(inside, -distance, distance)[None, None]


def cover(outline: Outline, centres: Sequence[Point], radius: float, turn: float = 0.0, size: int = SIZE) -> Tensor:
    """How much of each pixel the shape covers: (T, size, size), 0..1, edges one pixel soft."""
    axis = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    middle = torch.tensor(centres, dtype=torch.float32)
    x = (axis.view(1, 1, -1) - middle[:, 0].view(-1, 1, 1)).expand(-1, size, size)
    y = (axis.view(1, -1, 1) - middle[:, 1].view(-1, 1, 1)).expand(-1, size, size)
    cos, sin = math.cos(turn), math.sin(turn)
    grid = torch.stack([cos * x + sin * y, cos * y - sin * x], dim=-1) / (radius * FIELD_REACH)
    field = _distance_field(outline).expand(len(centres), -1, -1, -1)
    far = functional.grid_sample(field, grid, mode="bilinear", padding_mode="border", align_corners=True)
    return (0.5 - far[:, 0] * radius).clamp(0, 1)


def render(scene: Scene, size: int = SIZE) -> Tensor:
    """The frames of a scene: (T, size, size, 3) float32, 0..255."""
    axis = torch.linspace(-1, 1, size)
    uneven = scene.tilt[0] * axis.view(1, -1) + scene.tilt[1] * axis.view(-1, 1)
    behind = torch.tensor(scene.background).view(1, 1, 1, 3) + uneven.view(1, size, size, 1)
    alpha = cover(scene.outline, scene.centres, scene.radius, scene.turn, size).unsqueeze(-1)
    return torch.lerp(behind.expand(alpha.shape[0], -1, -1, -1), torch.tensor(scene.colour), alpha).clamp(0, 255)
