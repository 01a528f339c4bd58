"""Says what a clip of the world shows: colour, shape and path by name, and how sharp it is. No network looks at it.

A clip is judged in five steps, each a function below: the background is a plane fitted to the border; what stands out
from it is projected on the way from background to the shape's own colour, which gives a soft mask that blur does not
bias; the mask's colour is compared by hue and saturation, its form with the drawn outlines, its way with the paths.
A part that is not there, or that two candidates explain about equally well, is named "".

Arrays: T frames, H, W, K candidates, V variants of one candidate (turned, scaled, blurred), N side of a template.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .concept import Concept
from .draw import COLOURS, DIRECTIONS, SHAPES, SIZE, Outline, Point, cover, walk
from .files import Frames, as_frames
from .scenes import EDGE, Words

_T = TypeVar("_T")
Array = NDArray[np.float32]

LEAST_CONTRAST = 36.0  # of shape and background, RGB distance
LEAST_NOISES = 5.0  # the same, in typical errors of the border
LEAST_AREA, MOST_AREA = 0.01, 0.35  # of the picture
MOST_STRAY = 0.3  # share of the mask that may lie away from the shape
LEAST_SEEN = 0.6  # share of the frames that must show a shape
MOST_SHARPNESS = 2.0  # an edge inside one pixel cannot be measured
LEAST_TRAVEL = 4.0 / SIZE  # between the outermost places, as a share of the picture

MOST_COLOUR_ERROR = 0.3  # distance of hue and saturation; the colour circle has radius 1
MOST_SHAPE_ERROR = 0.12  # 1 - correlation
MOST_PATH_ERROR = 0.4  # rms distance from the path over rms distance from its middle
# What a good clip still misses by: candidates nearer to each other than this are not told apart.
COLOUR_GRAIN, SHAPE_GRAIN, PATH_GRAIN = 0.1, 0.02, 0.1
LEAST_COLOUR_CONFIDENCE = 0.2
LEAST_SHAPE_CONFIDENCE = 0.1
LEAST_PATH_CONFIDENCE = 0.3
# Between the ranges of RADII and REACHES.
SMALLER, SLOWER = 11.0, 0.64

N = 40
REACH = 1.2  # half the side of a template, in square roots of the shape's area
TURNS = (-0.15, -0.075, 0.0, 0.075, 0.15)
SCALES = (0.88, 0.94, 1.0, 1.06, 1.12)
_PLAIN = 12  # the template that is neither turned, scaled nor blurred
BLURS = (0.0, 1.2, 2.2)  # gaussian sigma in template pixels; one is 0.6 to 1.2 pixels of a drawn clip


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a clip shows. "" stands for a part that is not there or not clear."""

    colour: str
    """a name from COLOURS or a concept's `colour_name`"""
    shape: str
    """a name from SHAPES or a concept's name"""
    path: str
    """a name from DIRECTIONS or a concept's name"""
    sharpness: float
    """1 / width of the shape's edge in pixels, where the edge climbs from background to full colour: about 1 as drawn,
    0.4 to 1.4 through H.264 (which halves the resolution of colour), 0.3 after a gaussian blur of one pixel, at most 2,
    0 without a shape"""
    seen: float
    """share of the frames that show one shape, 0..1"""
    colour_confidence: float
    """1 - error / error of the runner-up, both with the grain of a good clip: 0 is a coin toss, 1 beyond doubt"""
    shape_confidence: float
    path_confidence: float
    colours: tuple[str, ...]
    """all candidates, nearest first; () where there was nothing to compare"""
    shapes: tuple[str, ...]
    paths: tuple[str, ...]
    area: float = 0.0
    """median of the frames that show a shape, square pixels"""
    way: float = 0.0
    """typical (rms) distance of the shape from the middle of its path, pixels"""


@dataclass(frozen=True)
class WordMatch:
    """Which words of a caption a clip shows."""

    colour: bool
    shape: bool
    direction: bool

    @property
    def all(self) -> bool:
        return self.colour and self.shape and self.direction


@dataclass(frozen=True)
class ConceptMatch:
    """Which parts of a concept a clip shows."""

    shape: bool
    path: bool
    colour: bool
    size: bool = True
    speed: bool = True
    """true of every clip where the concept leaves them open"""

    @property
    def all(self) -> bool:
        return self.shape and self.path and self.colour and self.size and self.speed


def matches(judgement: Judgement, words: Words) -> WordMatch:
    return WordMatch(
        judgement.colour == words.colour, judgement.shape == words.shape, judgement.path == words.direction
    )


def matches_concept(judgement: Judgement, concept: Concept) -> ConceptMatch:
    """The judgement must come from a `judge` that was told of this concept."""
    seen = judgement.seen >= LEAST_SEEN
    return ConceptMatch(
        shape=judgement.shape == concept.name,
        path=judgement.path == concept.name,
        colour=judgement.colour == concept.colour_name,
        size=not concept.size or (seen and (_radius(judgement, concept) < SMALLER) == (concept.size == "small")),
        speed=not concept.speed or (seen and (_reach(judgement, concept) < SLOWER) == (concept.speed == "slow")),
    )


def _radius(judgement: Judgement, concept: Concept) -> float:
    """Pixels, as if the clip showed the concept's outline."""
    return math.sqrt(judgement.area / outline_area(concept.outline))


def _reach(judgement: Judgement, concept: Concept) -> float:
    """Of REACHES, as if the clip showed the concept's outline on its path."""
    points = np.array(walk(concept.path, 9))
    unit = math.sqrt(np.square(points - points.mean(axis=0)).sum(axis=1).mean())
    return judgement.way / unit / (SIZE / 2 - EDGE - _radius(judgement, concept))


def judge(frames: Frames | Tensor, concepts: Sequence[Concept] = ()) -> Judgement:
    """What a clip, (T, H, W, 3) uint8, shows of the world and of the given concepts.

    Of concepts that share an outline or a path, the first is named.
    """
    if len({concept.name for concept in concepts}) < len(concepts):
        raise ValueError("two concepts have the same name. Pass each one once.")
    pixels = as_frames(frames).astype(np.float32)
    behind, noise = _background(pixels)
    mask = _mask(pixels - behind, noise)
    seen = float(mask.present.mean())
    if seen < LEAST_SEEN:
        colour = shape = path = NOTHING
    else:
        colour = _colour(pixels, mask, concepts)
        shape = _shape(mask, concepts)
        path = _path(mask, concepts, max(pixels.shape[1:3]))
    return Judgement(
        colour=colour.name,
        shape=shape.name,
        path=path.name,
        sharpness=_sharpness(mask),
        seen=seen,
        colour_confidence=colour.confidence,
        shape_confidence=shape.confidence,
        path_confidence=path.confidence,
        colours=colour.order,
        shapes=shape.order,
        paths=path.order,
        area=float(np.median(mask.area[mask.present])) if mask.present.any() else 0.0,
        way=_way(mask),
    )


@dataclass(frozen=True)
class _Finding:
    name: str
    confidence: float
    order: tuple[str, ...]


NOTHING = _Finding("", 0.0, ())


def _decide(errors: dict[str, float], grain: float, most_error: float, least_confidence: float) -> _Finding:
    order = sorted(errors, key=errors.__getitem__)
    first, second = (errors[name] for name in order[:2])
    confidence = 1 - math.hypot(first, grain) / math.hypot(second, grain)
    name = order[0] if first <= most_error and confidence >= least_confidence else ""
    return _Finding(name, confidence, tuple(order))


def _background(pixels: Array) -> tuple[Array, Array]:
    """The plane each frame's border lies on, (T, H, W, 3), and its typical distance from it, (T,)."""
    height, width = pixels.shape[1:3]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    ground = np.stack([np.ones_like(x), x, y], axis=-1).astype(np.float32)
    ring = np.ones((height, width), dtype=bool)
    edge = max(2, height // 32)
    ring[edge:-edge, edge:-edge] = False
    known, border = ground[ring], pixels[:, ring]  # (P, 3), (T, P, 3)
    distance = np.linalg.norm(border - np.median(border, axis=1, keepdims=True), axis=-1)
    plane = np.zeros((len(pixels), 3, 3), dtype=np.float32)
    for _ in range(3):  # each time without what stands out, such as a shape that touches the border
        weight = (distance <= 3 * np.median(distance, axis=1, keepdims=True) + 3).astype(np.float32)
        normal = np.einsum("tp,pi,pj->tij", weight, known, known) + 1e-3 * np.eye(3, dtype=np.float32)
        plane = np.linalg.solve(normal, np.einsum("tp,pi,tpc->tic", weight, known, border))
        distance = np.linalg.norm(border - known @ plane, axis=-1)
    return np.einsum("hwi,tic->thwc", ground, plane), np.median(distance, axis=1)


@dataclass(frozen=True)
class _Mask:
    raw: Array
    """(T, H, W) 0..1 share of the shape in each pixel, 0 away from it"""
    soft: Array
    """the same with both ends cut off, against ghosts and uneven colour"""
    area: Array
    """(T,) pixels"""
    centre: Array
    """(T, 2) x, y in pixels from the upper left pixel"""
    present: NDArray[np.bool_]
    """(T,)"""


def _mask(stands_out: Array, noise: Array) -> _Mask:
    frames, height, width = stands_out.shape[:3]
    strength = np.linalg.norm(stands_out, axis=-1)
    few = max(1, round(LEAST_AREA * height * width))
    peak = np.partition(strength.reshape(frames, -1), -few, axis=1)[:, -few]
    core = strength >= 0.7 * peak[:, None, None]
    axis = np.stack([np.median(frame[inside], axis=0) for frame, inside in zip(stands_out, core, strict=True)])
    level = np.linalg.norm(axis, axis=1)
    present = level >= np.maximum(LEAST_CONTRAST, LEAST_NOISES * noise)
    share = np.einsum("thwc,tc->thw", stands_out, axis) / np.maximum(level, 1.0)[:, None, None] ** 2
    raw = share.clip(0, 1)
    soft = ((share - 0.1) / 0.8).clip(0, 1)

    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)
    total = soft.sum(axis=(1, 2)) + 1e-6
    near, area = soft**2, total
    centre = np.zeros((frames, 2), dtype=np.float32)
    inside = np.ones_like(soft, dtype=bool)
    for _ in range(3):  # what is far from the middle of the shape is not the shape
        weight = near.sum(axis=(1, 2)) + 1e-6
        centre = np.stack([near.sum(axis=1) @ x / weight, near.sum(axis=2) @ y / weight], axis=1)
        reach = 2.2 * np.sqrt(area / math.pi) + 1
        far_x, far_y = x - centre[:, :1], y - centre[:, 1:]
        inside = far_x[:, None, :] ** 2 + far_y[:, :, None] ** 2 <= reach[:, None, None] ** 2
        near = soft * inside
        area = near.sum(axis=(1, 2))
    present &= (area >= LEAST_AREA * height * width) & (area <= MOST_AREA * height * width)
    present &= area >= (1 - MOST_STRAY) * total
    return _Mask(raw * inside, near, area, centre.astype(np.float32), present)


def _hue_and_saturation(rgb: Array) -> Array:
    """(..., 3) 0..255 -> (..., 3): a place on the colour circle, radius = saturation, and some brightness."""
    bright = np.maximum(rgb.max(axis=-1), 1.0)
    red, green, blue = (rgb[..., channel] / bright for channel in range(3))
    return np.stack([red - (green + blue) / 2, math.sqrt(0.75) * (green - blue), 0.6 * bright / 255], axis=-1)


def _colour(pixels: Array, mask: _Mask, concepts: Sequence[Concept]) -> _Finding:
    core = (mask.raw >= 0.8) & mask.present[:, None, None]
    if not core.any():
        return NOTHING
    seen = np.median(pixels[core], axis=0)
    known = {**COLOURS, **{concept.colour_name: concept.rgb for concept in concepts}}
    places = _hue_and_saturation(np.array(list(known.values()), dtype=np.float32))
    errors = np.linalg.norm(places - _hue_and_saturation(seen), axis=-1)
    return _decide(
        dict(zip(known, errors.tolist(), strict=True)), COLOUR_GRAIN, MOST_COLOUR_ERROR, LEAST_COLOUR_CONFIDENCE
    )


@lru_cache(maxsize=64)
def _templates(outline: Outline) -> Tensor:
    """(V, N * N): the outline as a mask of unit area around its middle, in all variants, mean 0 and length 1."""
    size, radius = 128, 40.0
    drawn = cover(outline, [(0.0, 0.0)], radius, size=size)[0]
    axis = (torch.arange(size, dtype=torch.float32) - (size - 1) / 2) / radius
    area = drawn.sum().item() / radius**2
    x, y = (drawn.sum(dim) @ axis / drawn.sum() for dim in (0, 1))
    variants: list[Tensor] = []
    for turn in TURNS:
        cos, sin = math.cos(turn), math.sin(turn)
        for scale in SCALES:
            unit = scale * N / (2 * REACH) / math.sqrt(area)
            middle = (-unit * (cos * x - sin * y).item(), -unit * (sin * x + cos * y).item())
            variants.append(cover(outline, [middle], unit, turn, N))
    plain = torch.cat(variants)
    return _standard(torch.cat([_blurred(plain, sigma) for sigma in BLURS]).flatten(1))


def _standard(rows: Tensor) -> Tensor:
    return functional.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1)


def _blurred(pictures: Tensor, sigma: float) -> Tensor:
    if not sigma:
        return pictures
    reach = math.ceil(3 * sigma)
    kernel = torch.exp(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    rows = functional.conv2d(pictures[:, None], kernel.view(1, 1, 1, -1), padding=(0, reach))
    return functional.conv2d(rows, kernel.view(1, 1, -1, 1), padding=(reach, 0))[:, 0]


def _patches(mask: _Mask) -> Tensor:
    """(T', N * N): each present frame's mask, cut out around its middle and scaled to unit area."""
    here = mask.present
    soft, centre, area = (torch.from_numpy(part[here]) for part in (mask.soft, mask.centre, mask.area))
    height, width = soft.shape[1:]
    step = (torch.arange(N) + 0.5) / N * 2 - 1
    reach = REACH * area.sqrt().view(-1, 1)
    x = (centre[:, :1] + reach * step + 0.5) / width * 2 - 1
    y = (centre[:, 1:] + reach * step + 0.5) / height * 2 - 1
    grid = torch.stack([x[:, None, :].expand(-1, N, -1), y[:, :, None].expand(-1, -1, N)], dim=-1)
    return functional.grid_sample(soft[:, None], grid, mode="bilinear", align_corners=False).flatten(1)


def _shape(mask: _Mask, concepts: Sequence[Concept]) -> _Finding:
    known = _distinct(SHAPES, ((concept.name, concept.outline) for concept in concepts))
    patches = _standard(_patches(mask))
    alike = {name: (patches @ _templates(outline).T).amax(dim=1).mean().item() for name, outline in known.items()}
    errors = {name: 1 - value for name, value in alike.items()}
    return _decide(errors, SHAPE_GRAIN, MOST_SHAPE_ERROR, LEAST_SHAPE_CONFIDENCE)


def _path(mask: _Mask, concepts: Sequence[Concept], size: int) -> _Finding:
    """Place and scale of a path are free, its turn is not; what remains between it and the clip is its error."""
    way = mask.centre[mask.present].astype(np.float64)
    if np.linalg.norm(way[:, None] - way[None], axis=-1).max() < LEAST_TRAVEL * size:
        return NOTHING
    way -= way.mean(axis=0)
    known = _distinct(DIRECTIONS, ((concept.name, concept.path) for concept in concepts))
    frames = len(mask.present)
    errors = {name: _apart(way, np.array(walk(path, frames))[mask.present]) for name, path in known.items()}
    return _decide(errors, PATH_GRAIN, MOST_PATH_ERROR, LEAST_PATH_CONFIDENCE)


def _apart(way: NDArray[np.float64], ideal: NDArray[np.float64]) -> float:
    """Error of a way (T, 2), around its middle, against an ideal one: 0 alike, 1 nothing in common."""
    ideal = ideal - ideal.mean(axis=0)
    alike = (way * ideal).sum() / (np.linalg.norm(way) * np.linalg.norm(ideal) + 1e-9)
    return math.sqrt(max(0.0, 1 - max(0.0, alike) ** 2))


def _way(mask: _Mask) -> float:
    points = mask.centre[mask.present].astype(np.float64)
    return float(np.sqrt(np.square(points - points.mean(axis=0)).sum(axis=1).mean())) if len(points) else 0.0


def path_error(path: Sequence[Point], other: Sequence[Point]) -> float:
    """What the judge would call the error of `other` for a clip that follows `path` exactly."""
    points = np.array(walk(path, 9))
    return _apart(points - points.mean(axis=0), np.array(walk(other, 9)))


def shape_error(outline: Outline, other: Outline) -> float:
    """What the judge would call the error of `other` for a clip that shows `outline` exactly."""
    return 1 - (_templates(outline)[_PLAIN] @ _templates(other).T).max().item()


def outline_area(outline: Outline) -> float:
    """Squared radii."""
    return cover(outline, [(0.0, 0.0)], 20.0).sum().item() / 20.0**2


def colour_error(rgb: Sequence[float], other: Sequence[float]) -> float:
    """Distance of two colours (0..255) by hue and saturation; the colour circle has radius 1."""
    return float(np.linalg.norm(np.subtract(*_hue_and_saturation(np.array([rgb, other], dtype=np.float32)))))


def _distinct(world: Mapping[str, _T], others: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Candidates by name; of equal ones the first."""
    known = dict(world)
    for name, what in others:
        if what not in known.values():
            known[name] = what
    return known


def _sharpness(mask: _Mask) -> float:
    """Length of the outline (the mask's slope, summed) over the area of its edge (where the mask is neither 0 nor 1).

    A straight edge that climbs over w pixels has slope 1 and area 2/3 w for each pixel of its length, hence 1 / w. The
    soft mask shows the steeper 0.8 of the climb.
    """
    soft = mask.soft[mask.present]
    if not soft.size:
        return 0.0
    down, right = np.diff(soft, axis=1)[:, :, :-1], np.diff(soft, axis=2)[:, :-1]
    outline = np.hypot(down, right).sum()
    edge = (4 * soft * (1 - soft)).sum()
    return min(MOST_SHARPNESS, float(0.8 * 2 / 3 * outline / max(edge, 1e-6)))
