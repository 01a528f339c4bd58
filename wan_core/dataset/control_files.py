"""Control and mask videos of samples: there, readable, of the clip's shape, and long enough for every cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import DatasetError
from ..files import file_identity, lies_under
from ..video import ClipInfo, VideoProcess, shown
from .captions import LINK_OUTSIDE
from .config import DatasetConfig, kind_of, wanted_companions
from .files import MediaFile, Rejected
from .sample import Companion, Sample

__all__ = [
    "accompanied",
]

SHAPE_TOLERANCE = 0.02
"""relative difference of aspect ratios that rounding to even sizes explains (a 16:9 control of 426x240: 0.2 %)"""

_SAID = {"control": "control video", "mask": "mask"}


class _UnfitError(Exception):
    """Why a file cannot go with its clip."""


def accompanied(
    found: list[Sample] | Rejected,
    file: MediaFile,
    config: DatasetConfig,
    video: VideoProcess,
    allowed: Sequence[Path],
) -> list[Sample] | Rejected:
    """`found` with the files that go with it, or why the file cannot be used without one of them."""
    if isinstance(found, Rejected):
        return found
    needed = kind_of(config).files
    try:
        for name in wanted_companions(config):
            path = file.control if name == "control" else file.mask
            if path is None:
                if name in needed:
                    raise _UnfitError(f"has no {_SAID[name]}; put it there as {_places(file, name)}")
                continue
            companion = _look_at(name, path, found, config, video, (file.path.parent, *allowed))
            found = [replace(sample, **{name: companion}) for sample in found]
    except _UnfitError as unfit:
        return Rejected(name=shown(file.path), reason=str(unfit))
    return found


def _look_at(
    name: str, path: Path, samples: list[Sample], config: DatasetConfig, video: VideoProcess, allowed: Sequence[Path]
) -> Companion:
    said = f"its {_SAID[name]} {shown(path)}"
    if not lies_under(path, allowed):
        raise _UnfitError(f"{said} {LINK_OUTSIDE}")
    try:
        info, identity = video.probe(path), file_identity(path)
    except (DatasetError, OSError) as error:
        raise _UnfitError(f"{said} cannot be used: {str(error).removeprefix(f'{shown(path)} ').rstrip('.')}") from error
    _check_shape(said, info, samples[0].info, config)
    if name == "control" and info.kind != samples[0].kind:
        raise _UnfitError(f"{said} is a {info.kind}, the file itself a {samples[0].kind}")
    if info.kind == "clip":
        _check_length(said, info, samples, config)
    return Companion(path=path, identity=identity)


def _check_shape(said: str, info: ClipInfo, own: ClipInfo, config: DatasetConfig) -> None:
    sizes = (info.width, info.height), (own.width, own.height)
    if config.crop == "none" and sizes[0] != sizes[1]:
        raise _UnfitError(f"{said} is {info.width}x{info.height}, and crop is none: it needs {own.width}x{own.height}")
    ratio = info.width * own.height / (info.height * own.width)
    if abs(ratio - 1) > SHAPE_TOLERANCE:
        raise _UnfitError(f"{said} is {info.width}x{info.height}, another shape than {own.width}x{own.height}")


def _check_length(said: str, info: ClipInfo, samples: list[Sample], config: DatasetConfig) -> None:
    rate = samples[0].cut.fps or config.fps
    needed = max(round(sample.cut.start_s * rate) + sample.bucket.num_frames - sample.cut.held for sample in samples)
    available = info.frames_at(rate)
    if available < needed:
        raise _UnfitError(f"{said} has {available} frames at {rate:g} fps, {needed} are needed")


def _places(file: MediaFile, name: str) -> str:
    stem, suffix = file.path.stem, file.path.suffix
    return f"{name}/{shown(stem + suffix)} or {shown(f'{stem}_{name}{suffix}')}"
