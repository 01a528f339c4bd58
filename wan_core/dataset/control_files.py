"""Companions of clips (control and mask videos, camera poses, files of ROLES): finds them and checks that they fit.

A companion of `clip.mp4` is `control/clip.mp4` or `mask/clip.png` (also `controls`, `masks`), or `clip_control.mp4` or
`clip_mask.png` next to it, with any clip or still suffix. A list may name other files. Camera poses are
`clip.camera.txt` next to it, files of `ROLES` too: `clip_source.mp4`, `clip_pose.mp4`, `clip_ref1.png`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import DatasetError
from ..files import file_mark, lies_under
from ..model import FACE_SIDE
from ..video import ClipInfo, shown
from .bucket import Bucket, nearest_frames
from .camera import POSES_SUFFIX, read_poses
from .caption_names import in_one_form
from .captions import LINK_OUTSIDE
from .config import ROLES, DatasetConfig, Reading, Role, kind_of, wanted_companions
from .files import CLIP_SUFFIXES, COMPANION_FOLDERS, STILL_SUFFIXES, MediaFile, UnfitError, media_names
from .known_files import ScanContext
from .sample import Companion, Sample

COMPANION_KINDS = ("control", "mask")
LONGEST_REFERENCE = 848
"""largest longer side of Bernini-R's reference images in pixels, the default of BerniniConditioning; smaller images
keep their size"""
_REFERENCE_GRID = 16

_Listing = Callable[[Path], dict[str, str]]


def with_companions(files: Sequence[MediaFile], wanted: Collection[str]) -> list[MediaFile]:
    """Returns `files` with their `wanted` companions, and without the files that are companions."""
    if not wanted:
        return list(files)
    beside = lru_cache(maxsize=None)(_media_by_stem)
    found: list[MediaFile] = []
    for file in files:
        if not _goes_with_another(file.path, wanted, beside):
            sought = [kind for kind in wanted if kind not in ROLES and getattr(file, kind) is None]
            missing: dict[str, Any] = {kind: _companion(file.path, kind, beside) for kind in sought}
            roles = ((role, _companion(file.path, role, beside)) for role in ROLES if role in wanted)
            missing["context"] = tuple((role, path) for role, path in roles if path is not None)
            found.append(replace(file, **missing))
    # A list may name companions outside of the naming scheme.
    named = {path for file in found for path in companion_paths(file)}
    return [file for file in found if file.path not in named]


def with_their_companions(excluded: Collection[Path], files: Sequence[MediaFile]) -> set[Path]:
    """Returns the excluded files, and those of `files` that are named like their companions."""
    beside: dict[Path, dict[str, str]] = {}
    for path in excluded:
        beside.setdefault(path.parent, {})[in_one_form(path.stem)] = path.name
    kinds = (*COMPANION_KINDS, *ROLES)
    follow = (f.path for f in files if _goes_with_another(f.path, kinds, lambda folder: beside.get(folder, {})))
    return {*excluded, *follow} if excluded else set()


def roles_beside(folder: Path, wanted: Collection[str]) -> tuple[str, ...]:
    """Returns the `wanted` companions of the clip in `folder` that has most of them; reads file names only."""
    files = [MediaFile(path=folder / name) for name in media_names(folder)]
    found = (tuple(role for role, _ in file.context) for file in with_companions(files, wanted))
    return max(found, key=len, default=())


def companion_paths(file: MediaFile) -> list[Path]:
    """Returns the companions of a file."""
    named = (file.control, file.mask, file.camera, *(path for _, path in file.context))
    return [path for path in named if path is not None]


def _companion(path: Path, kind: str, beside: _Listing) -> Path | None:
    folder = path.parent
    if kind == "camera":
        poses = path.with_name(path.stem + POSES_SUFFIX)
        return poses if poses.is_file() else None
    places = [(folder / name, path.stem) for name, of in COMPANION_FOLDERS.items() if of == kind]
    for place, stem in (*places, (folder, f"{path.stem}_{kind}")):
        if name := beside(place).get(in_one_form(stem)):
            return place / name
    return None


def _goes_with_another(path: Path, wanted: Collection[str], beside: _Listing) -> bool:
    """Returns True for control/clip.mp4 and clip_control.mp4 if clip.* exists."""
    folder = path.parent
    if COMPANION_FOLDERS.get(folder.name) in wanted and in_one_form(path.stem) in beside(folder.parent):
        return True
    videos = (kind for kind in wanted if kind != "camera" and path.stem.endswith(f"_{kind}"))
    stems = (path.stem.removesuffix(f"_{kind}") for kind in videos)
    return any(in_one_form(stem) in beside(folder) for stem in stems)


def _media_by_stem(folder: Path) -> dict[str, str]:
    """Returns stem -> file name of the clips and stills in a folder; the first name wins."""
    try:
        # Reversed, so that in the dict below the first file by name overwrites the later ones.
        names = sorted(os.listdir(folder), reverse=True)
    except OSError:
        return {}
    kinds = CLIP_SUFFIXES | STILL_SUFFIXES
    return {in_one_form(Path(name).stem): name for name in names if Path(name).suffix.lower() in kinds}


_SHAPE_TOLERANCE = 0.02
"""largest relative difference of aspect ratios; rounding to even sizes gives 0.2 % for a 16:9 control of 426x240"""

_SAID = {
    "control": "control video",
    "mask": "mask",
    "camera": "camera poses",
    **{name: role.said for name, role in ROLES.items()},
}


def accompanied(found: list[Sample], file: MediaFile, config: DatasetConfig, context: ScanContext) -> list[Sample]:
    """Returns `found` with companions; UnfitError if the file cannot be used without one."""
    kind = kind_of(config)
    if kind.in_context and not file.context:
        raise UnfitError(f"has no context files, but other clips have some; add one as {_places(file, 'source')}")
    for name in wanted_companions(config):
        path: Path | None = dict(file.context).get(name) if name in ROLES else getattr(file, name)
        if path is not None:
            if not lies_under(path, (file.path.parent, *context.allowed)):
                raise UnfitError(f"its {_SAID[name]} {shown(path)} {LINK_OUTSIDE}")
            look = _poses_at if name == "camera" else _look_at
            found = look(name, path, found, config, context)
        elif name in kind.files:
            lines = f"write a line for each frame into {shown(file.path.stem + POSES_SUFFIX)}"
            fix = lines if name == "camera" else f"add it as {_places(file, name)}"
            raise UnfitError(f"has no {_SAID[name]}; {fix}")
    return found


def _look_at(name: str, path: Path, samples: list[Sample], config: DatasetConfig, context: ScanContext) -> list[Sample]:
    said, role = f"its {_SAID[name]} {shown(path)}", ROLES.get(name)
    reading = role.reading if role is not None else Reading.ALIKE
    try:
        info, mark = context.probe(path), tuple(file_mark(path))
    except (DatasetError, OSError) as error:
        raise UnfitError(f"{said} cannot be used: {str(error).removeprefix(f'{shown(path)} ').rstrip('.')}") from error
    if reading is Reading.ALIKE:
        _check_shape(said, info, samples[0].info, config)
    if reading is not Reading.IMAGE and name != "mask" and info.kind != samples[0].kind:
        raise UnfitError(f"{said} is a {info.kind}, the file itself a {samples[0].kind}")
    if reading is not Reading.IMAGE and info.kind == "clip":
        _check_length(said, info, samples, config, complete=reading is not Reading.FREE)
    found = Companion(path=path, mark=mark, deep_still=info.kind == "still" and info.bits > 8, role=name)
    if role is None:
        return [replace(sample, **{name: found}) for sample in samples]
    sized = (replace(found, size=_size_of(role, info, sample, config)) for sample in samples)
    return [replace(sample, context=(*sample.context, one)) for sample, one in zip(samples, sized, strict=True)]


def _size_of(role: Role, info: ClipInfo, sample: Sample, config: DatasetConfig) -> Bucket | None:
    """Returns the size at which a companion is read; None: the size of its sample."""
    own, rate = sample.bucket, sample.cut.fps or config.fps
    if role.reading is Reading.ALIKE:
        return None
    if role.reading is Reading.SQUARE:
        return Bucket(own.num_frames, FACE_SIDE, FACE_SIDE)
    if not kind_of(config).in_context:
        return Bucket(1, own.height, own.width)
    frames = 1
    if role.reading is Reading.FREE:
        frames = nearest_frames(min(info.frames_at(rate) - round(sample.cut.start_s * rate), own.num_frames))
    scale = min(LONGEST_REFERENCE / max(info.width, info.height), 1.0)
    sides = (max(1, round(side * scale / _REFERENCE_GRID)) for side in (info.height, info.width))
    return Bucket(frames, *(side * _REFERENCE_GRID for side in sides))


def _check_shape(said: str, info: ClipInfo, own: ClipInfo, config: DatasetConfig) -> None:
    sizes = (info.width, info.height), (own.width, own.height)
    if config.crop == "none" and sizes[0] != sizes[1]:
        raise UnfitError(f"{said} is {info.width}x{info.height}, and crop is none: it needs {own.width}x{own.height}")
    ratio = info.width * own.height / (info.height * own.width)
    if abs(ratio - 1) > _SHAPE_TOLERANCE:
        raise UnfitError(f"{said} is {info.width}x{info.height}, another aspect ratio than {own.width}x{own.height}")


def _check_length(said: str, info: ClipInfo, samples: list[Sample], config: DatasetConfig, *, complete: bool) -> None:
    """Refuses a companion that lacks frames of a sample. `complete` False: only the first frame of each sample is
    needed."""
    rate = samples[0].cut.fps or config.fps
    lengths = [sample.bucket.num_frames - sample.cut.held if complete else 1 for sample in samples]
    needed = max(round(one.cut.start_s * rate) + length for one, length in zip(samples, lengths, strict=True))
    available = info.frames_at(rate)
    if available < needed:
        raise UnfitError(f"{said} has {available} frames at {rate:g} fps, {needed} are needed")


def _poses_at(
    name: str, path: Path, samples: list[Sample], config: DatasetConfig, context: ScanContext
) -> list[Sample]:
    said, info = f"its {_SAID[name]} {shown(path)}", samples[0].info
    try:
        mark = tuple(file_mark(path))
        lines: int = context.recall(path, "poses", lambda: len(read_poses(path).lens))
    except (DatasetError, OSError) as error:
        raise UnfitError(f"{said} cannot be used: {str(error).removeprefix(f'{shown(path)} ').rstrip('.')}") from error
    if info.variable_rate:
        raise UnfitError(f"{said} have a line for each frame, and its frame rate varies; write it at a constant rate")
    frames = info.num_frames if info.kind == "clip" else 1
    if lines != frames:
        raise UnfitError(f"{said} have {lines} lines, and it has {frames} frames; write a line for each frame")
    return [replace(sample, camera=Companion(path=path, mark=mark)) for sample in samples]


def _places(file: MediaFile, name: str) -> str:
    stem, suffix = file.path.stem, file.path.suffix
    if name in ROLES:
        return shown(f"{stem}_{name}{'.png' if ROLES[name].reading is Reading.IMAGE else suffix}")
    return f"{name}/{shown(stem + suffix)} or {shown(f'{stem}_{name}{suffix}')}"
