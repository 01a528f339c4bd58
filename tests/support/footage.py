"""Draws shots of footage from a seed, plants faults in them, and writes them as H.264 files.

A shot is a function from a time in seconds to a picture of brightness (H, W), so that a fault can ask for fields and
frames at any rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.float32]
Shot = Callable[[float], Picture]
SIZES = ((480, 272), (480, 272), (432, 320), (320, 480), (640, 360))


def _texture(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Returns a picture of 1/f noise, patches and lines, from 0 to 255."""
    out = np.zeros((height, width), np.float32)
    for octave in range(7):
        cell = 2**octave
        coarse = rng.normal(size=(height // cell + 2, width // cell + 2)).astype(np.float32)
        out += _enlarged(coarse, height, width, cell) * cell ** rng.uniform(0.75, 1.0)
    out = (out - out.mean()) / out.std() * 32 + rng.uniform(90, 140)
    rows, columns = np.mgrid[:height, :width]
    for _ in range(rng.integers(10, 28)):
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        a, b = rng.uniform(0.01, 0.1, 2) * width
        turn = rng.uniform(0, np.pi)
        u = (columns - x) * np.cos(turn) + (rows - y) * np.sin(turn)
        v = (rows - y) * np.cos(turn) - (columns - x) * np.sin(turn)
        inside = (u / a) ** 2 + (v / b) ** 2 if rng.random() < 0.5 else np.maximum(abs(u) / a, abs(v) / b)
        cover = np.clip((1 - inside) * min(a, b) / 1.4, 0, 1)
        out += cover * (rng.uniform(20, 230) + 0.3 * (out - 120) - out)
    return np.clip(out, 0, 255).astype(np.float32)


def _enlarged(coarse: Picture, height: int, width: int, cell: int) -> Picture:
    y, x = np.arange(height) / cell, np.arange(width) / cell
    iy, ix = y.astype(int), x.astype(int)
    fy, fx = (y - iy)[:, None].astype(np.float32), (x - ix).astype(np.float32)
    rows = coarse[iy] * (1 - fy) + coarse[iy + 1] * fy
    return rows[:, ix] * (1 - fx) + rows[:, ix + 1] * fx


def _sampled(world: Picture, x: float, y: float, height: int, width: int, zoom: float = 1.0) -> Picture:
    """Returns the window at (x, y), with parts of pixels."""
    rows, columns = y + np.arange(height) * zoom, x + np.arange(width) * zoom
    rows, columns = np.clip(rows, 0, world.shape[0] - 2), np.clip(columns, 0, world.shape[1] - 2)
    iy, ix = rows.astype(int), columns.astype(int)
    fy, fx = (rows - iy)[:, None].astype(np.float32), (columns - ix).astype(np.float32)
    lines = world[iy] * (1 - fy) + world[iy + 1] * fy
    return lines[:, ix] * (1 - fx) + lines[:, ix + 1] * fx


def blurred(picture: Picture, sigma: float) -> Picture:
    """Returns the picture under a Gaussian blur."""
    reach = int(3 * sigma) + 1
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel = (kernel / kernel.sum()).astype(np.float32)
    for axis in (0, 1):
        pad = [(reach, reach) if side == axis else (0, 0) for side in (0, 1)]
        padded = np.pad(picture, pad, "edge")
        size = picture.shape[axis]
        picture = sum(weight * np.take(padded, range(at, at + size), axis) for at, weight in enumerate(kernel))
    return picture


def _subject(rng: np.random.Generator, height: int, width: int, scale: float = 1.0) -> tuple[Picture, Picture]:
    """Returns brightness and cover of a textured subject."""
    side = int(min(height, width) * rng.uniform(0.2, 0.4) * scale)
    rows, columns = np.mgrid[:side, :side] - side / 2
    radius = np.hypot(rows, columns * rng.uniform(0.8, 1.6))
    wave = 1 + 0.2 * np.sin(rng.integers(2, 6) * np.arctan2(rows, columns) + rng.uniform(0, 6))
    cover = np.clip(side * 0.38 * wave - radius, 0, 1).astype(np.float32)
    return _texture(rng, side, side), cover


def _shifted(picture: Picture, x: float, y: float) -> Picture:
    """Returns a picture moved right and down by a part of a pixel."""
    padded = np.pad(picture, 1, "edge")
    lines = padded[:-1] * y + padded[1:] * (1 - y)
    return (lines[:, :-1] * x + lines[:, 1:] * (1 - x))[:-1, :-1].astype(np.float32)


def _pasted(picture: Picture, what: tuple[Picture, Picture], x: float, y: float) -> Picture:
    ix, iy = int(np.floor(x)), int(np.floor(y))
    texture, cover = (_shifted(part, x - ix, y - iy) for part in what)
    side = len(texture)
    out = picture.copy()
    left, top = max(0, ix), max(0, iy)
    right, bottom = min(out.shape[1], ix + side), min(out.shape[0], iy + side)
    if right <= left or bottom <= top:
        return out
    part = slice(top - iy, bottom - iy), slice(left - ix, right - ix)
    out[top:bottom, left:right] += cover[part] * (texture[part] - out[top:bottom, left:right])
    return out


CLEAN = (
    "pan",
    "fast pan",
    "motion-blurred pan",
    "zoom",
    "handheld",
    "static camera",
    "static camera, grain",
    "talking head",
    "dark",
    "grain",
    "fast subject",
    "black background",
    "night sky",
    "fade in",
    "fade out",
    "shallow focus",
    "water",
    "sunset",
    "stripes",
    "flash",
)
MOVING_CAMERA = ("pan", "fast pan", "handheld", "grain", "motion-blurred pan", "sunset")
"""kinds whose complete picture moves, so that a static-edge test can tell"""


def shot(kind: str, rng: np.random.Generator, size: tuple[int, int], seconds: float) -> Shot:
    """Returns a shot of a kind of CLEAN."""
    width, height = size
    world = _texture(rng, int(height * 1.6), int(width * 2.2))
    unit = width / 640
    speed = rng.uniform(40, 120) * unit
    turn, phase = rng.uniform(-0.5, 0.5), rng.uniform(0, 6, 4)
    if kind == "fast pan":
        speed *= 4
    sharp = _subject(rng, height, width)
    room_x, room_y = world.shape[1] - width - 4, world.shape[0] - height - 4
    grain = rng.uniform(4, 12)
    seed = int(rng.integers(1 << 30))
    soft = blurred(world[:height, :width], 6 * unit) if kind == "shallow focus" else world
    seen = _texture(rng, height, width) if kind == "water" else world

    def there(at: float, room: float) -> float:
        """Moves to and fro within the room."""
        at = at % (2 * room)
        return at if at < room else 2 * room - at

    def camera(t: float) -> Picture:
        return _sampled(world, there(speed * t, room_x), there(speed * turn * t + room_y / 2, room_y), height, width)

    def moving(picture: Picture, t: float, fast: float = 1.0) -> Picture:
        x = there(width * 0.35 * fast * t + phase[0] * 50, width * 0.9) - width * 0.1
        y = height * (0.4 + 0.25 * np.sin(2.3 * fast * t + phase[1])) - height * 0.1
        return _pasted(picture, sharp, x, y)

    def noisy(picture: Picture, sigma: float, t: float) -> Picture:
        """Adds grain, the same at the same time: a repeated frame repeats it."""
        noise = np.random.default_rng([seed, round(t * 10_000)])
        return picture + sigma * noise.standard_normal(picture.shape, np.float32)

    def at(t: float) -> Picture:
        still = world[:height, :width]
        if kind == "motion-blurred pan":
            fast = [_sampled(world, there(2.5 * speed * (t + k / 240), room_x), 9, height, width) for k in range(5)]
            return np.mean(fast, axis=0)
        if kind == "zoom":
            zoom = 1.3 - 0.12 * t
            return _sampled(world, width * (1.5 - zoom) / 2, height * (1.5 - zoom) / 2, height, width, zoom)
        if kind == "handheld":
            shake = [np.sin(1.7 * t + phase[0]) * 22, np.sin(2.3 * t + phase[1]) * 14, np.sin(7 * t + phase[2]) * 3]
            return moving(
                _sampled(world, 60 + unit * (shake[0] + shake[2]), 40 + unit * (shake[1] + shake[2]), height, width), t
            )
        if kind == "static camera":
            return moving(still, t)
        if kind == "static camera, grain":
            return noisy(moving(still, t), grain / 2, t)
        if kind == "talking head":
            x, y = width * 0.4 + 8 * unit * np.sin(4 * t + phase[0]), height * 0.3 + 5 * unit * np.sin(6 * t)
            return _pasted(still, sharp, x, y)
        if kind == "dark":
            return noisy(moving(camera(t), t) * 0.16, 2.0, t)
        if kind == "grain":
            return noisy(camera(t), grain, t)
        if kind == "fast subject":
            return moving(still, t, 6.0)
        if kind == "black background":
            return moving(np.zeros((height, width), np.float32), t)
        if kind == "night sky":
            sky = np.clip(camera(t), 0, 255)
            sky[: int(height * 0.45)] *= 0.0
            sky[phase.astype(int) * 9 + 4, (phase * 60).astype(int) % width] = 220
            return moving(sky, t)
        if kind == "fade in":
            return camera(t) * min(1.0, t / 1.5)
        if kind == "fade out":
            return camera(t) * min(1.0, max(0.0, (seconds - t) / 1.5))
        if kind == "shallow focus":
            return moving(soft, t)
        if kind == "water":
            shift = [there(30 * unit * t + phase[k] * 20, width / 3) for k in range(2)]
            waves = 0.5 * (
                _sampled(world, shift[0], 30 + 20 * np.sin(t), height, width)
                + _sampled(world, width - shift[1], 9 + 8 * np.sin(2 * t), height, width)
            )
            waves[: height // 4] = seen[: height // 4]
            return moving(waves, t)
        if kind == "sunset":
            return camera(t) * (1 - 0.15 * t)
        if kind == "stripes":
            rows = np.arange(height) + 20 * t
            lines = 110 + 60 * np.sign(np.sin(rows * 2 * np.pi / (9 * unit)))[:, None]
            return moving(np.repeat(lines, width, 1).astype(np.float32), t)
        if kind == "flash":
            return camera(t) + (90.0 if abs(t - seconds / 2) < 0.03 else 0.0)
        return camera(t)

    return at


@dataclass
class Clip:
    """A drawn clip, and what was planted in it."""

    frames: Callable[[], Iterator[Picture]]
    fps: float
    kind: str
    fault: str = ""
    size: tuple[int, int] = (640, 360)
    about: dict[str, Any] = field(default_factory=dict)


def clean(kind: str, seed: int, seconds: float = 2.6, size: tuple[int, int] | None = None) -> Clip:
    """Returns a clip without a fault."""
    rng = np.random.default_rng([seed, 1])
    size = size or SIZES[int(rng.integers(len(SIZES)))]
    fps = float(rng.choice([24, 25, 30]))
    made = shot(kind, rng, size, seconds)
    return Clip(lambda: (made(k / fps) for k in range(round(seconds * fps))), fps, kind, size=size)


FAULTS = (
    "letterbox",
    "pillars",
    "logo",
    "subtitle",
    "flicker",
    "telecine",
    "24 in 30",
    "12 in 24",
    "interlaced",
    "blur",
    "still start",
    "still end",
    "still",
    "cuts",
)


def faulty(fault: str, kind: str, seed: int, seconds: float = 2.6, size: tuple[int, int] | None = None) -> Clip:
    """Returns a clip of a kind of CLEAN with a planted fault."""
    rng = np.random.default_rng([seed, 2, FAULTS.index(fault)])
    size = size or SIZES[int(rng.integers(len(SIZES)))]
    width, height = size
    made = shot(kind, rng, size, seconds)
    fps = {"24 in 30": 30.0, "12 in 24": 24.0, "telecine": 30.0}.get(fault, float(rng.choice([24, 25, 30])))
    count = round(seconds * fps)
    clip = Clip(lambda: iter(()), fps, kind, fault, size)
    if fault in ("letterbox", "pillars"):
        side = height if fault == "letterbox" else width
        bar = int(rng.uniform(0.06, 0.2) * side) // 2 * 2
        clip.about["bar"] = bar / side

        def barred(k: int) -> Picture:
            out = np.zeros((height, width), np.float32)
            inner = slice(bar, side - bar)
            part = (inner, slice(None)) if fault == "letterbox" else (slice(None), inner)
            out[part] = made(k / fps)[part]
            return out

        frame: Callable[[int], Picture] = barred
    elif fault in ("logo", "subtitle"):
        ink, cover, place = _text(rng, fault, size)
        first, last = (0, count) if fault == "logo" or rng.random() < 0.5 else (count // 4, count * 3 // 4 + fps // 2)
        clip.about["place"] = place

        def lettered(k: int) -> Picture:
            picture = made(k / fps)
            return picture + cover * (ink - picture) if first <= k < last else picture

        frame = lettered
    elif fault == "flicker":
        size_, rate = rng.uniform(0.05, 0.2), rng.uniform(4, min(12, fps / 2))
        gains = 1 + size_ * (
            rng.normal(size=count) if rng.random() < 0.4 else np.sin(6.283 * rate * np.arange(count) / fps)
        )
        clip.about["size"] = float(size_)
        frame = lambda k: made(k / fps) * gains[k]  # noqa: E731
    elif fault == "telecine":

        def pulled(k: int) -> Picture:
            # 3:2: film frame n gives 2 fields if even, else 3.
            fields = [n for n in range(count) for _ in range(2 + n % 2)][2 * k : 2 * k + 2]
            top, bottom = (made(n / 24) for n in fields)
            out = top.copy()
            out[1::2] = bottom[1::2]
            return out

        frame = pulled
    elif fault in ("24 in 30", "12 in 24"):
        source = 24 if fault == "24 in 30" else 12
        frame = lambda k: made(int(k * source / fps + 1e-6) / source)  # noqa: E731
    elif fault == "interlaced":

        def woven(k: int) -> Picture:
            out = made(k / fps)
            out[1::2] = made((k + 0.5) / fps)[1::2]
            return out

        frame = woven
    elif fault == "blur":
        sigma = rng.uniform(2.5, 5.0) * min(width, height) / 480
        clip.about["sigma"] = float(sigma)
        frame = lambda k: blurred(made(k / fps), sigma)  # noqa: E731
    elif fault in ("still start", "still end", "still"):
        held = seconds if fault == "still" else rng.uniform(0.7, 1.6)
        clip.about["seconds"] = float(held)
        if fault == "still end":
            frame = lambda k: made(min(k / fps, seconds - held))  # noqa: E731
        else:
            frame = lambda k: made(max(0.0, k / fps - held))  # noqa: E731
    else:
        others = [shot(str(rng.choice(MOVING_CAMERA)), rng, size, seconds) for _ in range(2)]
        at = sorted((float(rng.uniform(0.2, 0.45)), float(rng.uniform(0.55, 0.8))))
        clip.about["cuts"] = [int(np.ceil(share * seconds * fps)) / fps for share in at]

        def spliced(k: int) -> Picture:
            share = k / fps / seconds
            return (made if share < at[0] else others[0] if share < at[1] else others[1])(k / fps)

        frame = spliced
    clip.frames = lambda: (frame(k) for k in range(count))
    return clip


def _text(rng: np.random.Generator, fault: str, size: tuple[int, int]) -> tuple[Picture, Picture, list[float]]:
    """Returns ink, cover (H, W) and the place of a logo in a corner or a subtitle."""
    from PIL import Image, ImageDraw, ImageFont

    width, height = size
    tall = (rng.uniform(0.05, 0.09) if fault == "subtitle" else rng.uniform(0.05, 0.12)) * height
    words = "".join(rng.choice(list("ABDEHKMNRSTUWX"), rng.integers(4, 7) if fault == "logo" else 16))
    font = ImageFont.load_default(size=tall)
    ink, cover = Image.new("L", size, 0), Image.new("L", size, 0)
    long = font.getlength(words)
    margin = 0.04 * width
    if fault == "subtitle":
        x, y = max(4.0, (width - long) / 2), height * 0.95 - tall * 1.2
    else:
        x = margin if rng.random() < 0.5 else width - margin - long
        y = margin if rng.random() < 0.5 else height - margin - tall
    outline = max(1, round(tall / 14)) if fault == "subtitle" or rng.random() < 0.4 else 0
    alpha = 255 if fault == "subtitle" else int(rng.uniform(0.65, 1.0) * 255)
    ImageDraw.Draw(ink).text((x, y), words, fill=245, font=font, stroke_width=outline, stroke_fill=10)
    ImageDraw.Draw(cover).text((x, y), words, fill=alpha, font=font, stroke_width=outline, stroke_fill=alpha)
    place = [x / width, y / height, (x + long) / width, (y + 1.2 * tall) / height]
    return np.asarray(ink, np.float32), np.asarray(cover, np.float32) / 255, place


def write(clip: Clip, path: Path, crf: int = 20, preset: str = "superfast") -> Path:
    """Writes a clip as H.264, in video range."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=round(clip.fps), options={"crf": str(crf), "preset": preset})
        stream.width, stream.height = clip.size
        stream.pix_fmt = "yuv420p"
        for picture in clip.frames():
            luma = np.clip(picture, 0, 255) * (219 / 255) + 16.5
            height, width = luma.shape
            planes = np.full((height * 3 // 2, width), 128, np.uint8)
            planes[:height] = luma.astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
        container.mux(stream.encode())
    return path
