"""Clips of the world as the product meets them: H.264 files with a caption beside each, and the way back to frames."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .concept import Concept, concept_scene
from .draw import Scene, render
from .scenes import Words, all_words, captioned_scene

Frames = NDArray[np.uint8]

FPS = 16
CRF = "10"  # far better than the eye asks for: what a judge misses is then the model's fault
SEEDS_APART = 100_003  # clips of one seed never meet those of the next
_BT709 = 1
_BT709_LUMA = np.array([0.2126, 0.7152, 0.0722])
"""share of red, green and blue in the brightness; ITU-R BT.709-6, item 3.2"""


def as_frames(frames: Frames | Tensor) -> Frames:
    """(T, H, W, 3) uint8 from an array or a tensor; ValueError for anything else."""
    found: NDArray[Any] = frames.detach().cpu().numpy() if isinstance(frames, Tensor) else np.asarray(frames)
    if found.dtype != np.uint8 or found.ndim != 4 or found.shape[-1] != 3 or 0 in found.shape:
        raise ValueError(f"frames are {found.dtype} {found.shape}. Pass uint8 (T, H, W, 3), RGB.")
    return found


def drawn(scene: Scene) -> Frames:
    """The frames of a scene as a file holds them: (T, H, W, 3) uint8."""
    return render(scene).round().byte().numpy()


def write_clip(file: Path, frames: Frames | Tensor, fps: int = FPS) -> None:
    """(T, H, W, 3) uint8 as an mp4: H.264, yuv420p, BT.709, index first. Height and width are even."""
    import av
    from av.video.frame import VideoFrame

    pixels = np.ascontiguousarray(as_frames(frames))
    height, width = pixels.shape[1:3]
    if height % 2 or width % 2:
        raise ValueError(f"frames are {width}x{height}. H.264 in yuv420p takes even sizes: cut an edge off.")
    container: Any
    with av.open(str(file), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(fps))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        # x264's assembly searches motion otherwise where its buffers lie otherwise: one clip was five different files.
        stream.options = {"crf": CRF, "preset": "medium", "threads": "1", "x264-params": "asm=0"}
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        for rgb in pixels:
            container.mux(stream.encode(VideoFrame.from_ndarray(_yuv420p(rgb), format="yuv420p")))
        container.mux(stream.encode())


def _yuv420p(rgb: Frames) -> Frames:
    """(H, W, 3) RGB -> (H * 3 / 2, W): the planes Y, U, V of BT.709 in limited range, one U and V per 2x2 pixels.

    FFmpeg's converter rounds otherwise where its buffers lie otherwise in memory: clips drawn twice would be different
    files, with other keys and another order of training.
    """
    height, width = rgb.shape[:2]
    scaled = rgb.astype(np.float64) / 255.0
    luma = scaled @ _BT709_LUMA
    blocks = scaled.reshape(height // 2, 2, width // 2, 2, 3).mean(axis=(1, 3))
    block_luma = blocks @ _BT709_LUMA
    blue = (blocks[..., 2] - block_luma) / (2 * (1 - _BT709_LUMA[2]))
    red = (blocks[..., 0] - block_luma) / (2 * (1 - _BT709_LUMA[0]))
    planes = [16 + 219 * luma, 128 + 224 * blue, 128 + 224 * red]
    return np.concatenate([np.rint(plane).astype(np.uint8).ravel() for plane in planes]).reshape(-1, width)


def read_clip(file: Path) -> Frames:
    """The frames of a video file: (T, H, W, 3) uint8."""
    import av

    with av.open(str(file)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    if not frames:
        raise ValueError(f"{file.name} holds no frames. Write it again.")
    return np.stack(frames)


def balanced_words(count: int, seed: int) -> list[Words]:
    """`count` captions: no word ever leads another of its kind by more than two, none comes twice within 96."""
    rng = random.Random(f"words {seed}")
    chosen: list[Words] = []
    used: Counter[str] = Counter()
    left: list[Words] = []
    for _ in range(count):
        left = left or rng.sample(all_words(), len(all_words()))
        parts = {words: (words.colour, words.shape, words.direction) for words in left}
        best = min(left, key=lambda words: sum(used[part] ** 2 for part in parts[words]))
        left.remove(best)
        used.update(parts[best])
        chosen.append(best)
    return chosen


def write_world(folder: Path, count: int, seed: int, frames: int = 9) -> list[Path]:
    """`count` clips of captioned scenes with their captions, each word about equally often. Returns the clips."""
    return [
        _write_pair(folder, index, words.caption, captioned_scene(words, seed * SEEDS_APART + index, frames))
        for index, words in enumerate(balanced_words(count, seed))
    ]


def write_concept(folder: Path, concept: Concept, count: int = 8, seed: int = 0, frames: int = 9) -> list[Path]:
    """`count` clips of a concept with its caption beside each: what a user would train a LoRA on."""
    return [
        _write_pair(folder, index, concept.caption, concept_scene(concept, seed * SEEDS_APART + index, frames))
        for index in range(count)
    ]


def _write_pair(folder: Path, index: int, caption: str, scene: Scene) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    name = "_".join("".join(c if c.isascii() and c.isalnum() else " " for c in caption).split())[:60]
    file = folder / f"{index:04d}_{name}.mp4"
    write_clip(file, drawn(scene))
    file.with_suffix(".txt").write_text(caption + "\n", encoding="utf-8", newline="\n")
    return file
