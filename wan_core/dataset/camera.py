"""Camera poses of clips: the text file next to a clip, the lens after crop and resize, and Pluecker rays.

A line of the file is one frame: the lens (fx, fy, cx, cy as shares of width and height, and two unused numbers), then
the pose. Sources: pose files of RealEstate10K and VideoX-Fun; ComfyUI's WanCameraEmbedding, with which tests compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DatasetError
from ..files import FileError, open_regular
from ..video import covered_size, shown
from .sample import Sample

POSES_SUFFIX = ".camera.txt"
_MOST_BYTES = 32 << 20
"""largest pose file, more than 200,000 lines"""
_LENS = 6
_TO_CAMERA, _TO_WORLD = 12, 16
"""how many numbers a pose has: a 3x4 matrix world -> camera, or a 4x4 matrix camera -> world"""
_COLUMNS = {_LENS + pose + time: pose for pose in (_TO_CAMERA, _TO_WORLD) for time in (0, 1)}
"""numbers in a line (with or without a time in front) -> numbers in its pose"""
_ROTATION_TOLERANCE = 0.05
"""largest deviation of a rotation times its transpose from the identity; files have few digits"""
_PARTS = 3
"""number of bfloat16 values whose sum is a float32 value exactly"""


@dataclass(frozen=True)
class Poses:
    """The camera of each frame of a file."""

    lens: NDArray[np.float64]
    """(F, 4) fx, fy, cx, cy as shares of width and height"""
    to_world: NDArray[np.float64]
    """(F, 4, 4) camera -> world"""


def read_poses(path: Path) -> Poses:
    """Returns the poses of a file; DatasetError says which line is wrong.

    Blank lines are skipped, and a first line that is a title or an address instead of numbers.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except FileError as error:
        raise DatasetError(str(error)) from error
    if len(data) > _MOST_BYTES:
        raise _refused(path, f"is larger than {_MOST_BYTES >> 20} MiB")
    rows = [(number, line.split()) for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1)]
    rows = [row for row in rows if row[1]]
    if rows and _numbers(rows[0][1]) is None and len(rows[0][1]) not in _COLUMNS:
        del rows[0]
    if not rows:
        raise _refused(path, "holds no poses; write a line of 19 numbers for each frame")
    wanted, lenses, poses = len(rows[0][1]), list[list[float]](), list[NDArray[np.float64]]()
    for number, words in rows:
        values = _numbers(words)
        if values is None:
            raise _refused(path, f"line {number} contains text that is not a number")
        if len(values) not in _COLUMNS or len(values) != wanted:
            raise _refused(path, f"line {number} has {len(values)} numbers; each line needs 19 (or 18, 22, 23)")
        size = _COLUMNS[wanted]
        lens, pose = values[-size - _LENS : -size], np.eye(4, dtype=np.float64)
        pose[: size // 4] = np.reshape(values[-size:], (-1, 4))
        turn = pose[:3, :3]
        if not min(lens[:2]) > 0:
            raise _refused(path, f"line {number} has no focal length above 0")
        if not (np.abs(turn).max() < 2 and np.abs(turn @ turn.T - np.eye(3)).max() <= _ROTATION_TOLERANCE):
            raise _refused(path, f"line {number} holds no rotation; write a pose as [R|t], row by row")
        lenses.append(lens[:4])
        poses.append(pose)
    to_world = np.linalg.inv(np.stack(poses)) if _COLUMNS[wanted] == _TO_CAMERA else np.stack(poses)
    return Poses(np.array(lenses), to_world.astype(np.float64))


def _numbers(words: list[str]) -> list[float] | None:
    try:
        values = [float(word) for word in words]
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _refused(path: Path, why: str) -> DatasetError:
    return DatasetError(f"{shown(path)} {why}.")


def camera_path(poses: Poses, sample: Sample, fps: float) -> Tensor:
    """Returns the camera path (F, 18) float32 of a sample.

    A row has width, height, fx, fy, cx, cy in the sample's pixels, then the 3x4 matrix from this frame's camera to the
    first frame's. Each frame takes the pose at its time in the file; crop, resize and mirroring are applied. `fps`:
    frame rate of the dataset.
    """
    info, bucket, cut = sample.info, sample.bucket, sample.cut
    shown_frames = np.minimum(np.arange(bucket.num_frames), bucket.num_frames - 1 - cut.held)
    # Plus 1e-3 frames, because times are rounded to ticks.
    places = np.floor((cut.start_s + shown_frames / (cut.fps or fps)) * info.fps + 1e-3).astype(int)
    places = np.clip(places, 0, len(poses.lens) - 1)
    size, wanted = (info.width, info.height), (bucket.width, bucket.height)
    size = size if cut.framing.native else covered_size(size, wanted)
    lens = poses.lens[places] * (size * 2)
    lens[:, 2:] -= cut.framing.place(size, wanted)
    relative = np.linalg.inv(poses.to_world[places[0]]) @ poses.to_world[places]
    if cut.framing.flip:
        lens[:, 2] = wanted[0] - lens[:, 2]
        mirror = np.diag([-1.0, 1.0, 1.0, 1.0])
        relative = mirror @ relative @ mirror
    sizes = np.tile(np.array(wanted, np.float64), (len(lens), 1))
    rows = np.concatenate([sizes, lens, relative[:, :3].reshape(-1, _TO_CAMERA)], axis=1)
    return torch.from_numpy(rows.astype(np.float32))


def packed_path(path: Tensor) -> Tensor:
    """Returns a path (F, 18) as (F, 18, 3) bfloat16, exact as a sum of three, for the cache; rays would be 50,000 times
    larger."""
    parts: list[Tensor] = []
    for _ in range(_PARTS):
        parts.append(path.bfloat16())
        path = path - parts[-1]
    return torch.stack(parts, -1)


def packed_misfits(packed: Tensor, clip: tuple[int, int, int] | None) -> str:
    """Returns why a packed path does not fit a clip of (frames, width, height); "" if it does, or without a clip."""
    frames, *size = clip or (len(packed), 0, 0)
    if tuple(packed.shape) != (frames, 2 + 4 + _TO_CAMERA, _PARTS):
        return f"its camera path has shape {list(packed.shape)}, the clip has {frames} frames"
    sizes = packed[:, :2].float().sum(-1)
    return "its camera path has another size" if clip and bool((sizes != sizes.new_tensor(size)).any()) else ""


def rays_of_packed(packed: Tensor) -> Tensor:
    """Returns `Conditioning.camera` of one clip, (24, F', H, W) float32, from a packed path (4F' - 3, 18, 3)."""
    path = packed.float().sum(-1)
    width, height = (int(side) for side in path[0, :2])
    rays = torch.empty(6, 4, (len(path) + 3) // 4, height, width)
    lens, towards = path[0, :0], torch.empty(0)
    for frame, row in enumerate(path):
        if not torch.equal(row[2:6], lens):  # most files have one lens for all frames
            lens = row[2:6]
            towards = _towards(lens, width, height)
        pose = row[6:].view(3, 4)
        moment = torch.linalg.cross(pose[:, 3:].expand(3, 3), pose[:, :3], dim=0)
        ray = (torch.cat([moment, pose[:, :3]]) @ towards).view(6, height, width)
        if frame == 0:  # frame 0 is repeated four times, because the first latent frame has one pixel frame
            rays[:, :, 0] = ray[:, None]
        else:
            rays[:, (frame + 3) % 4, (frame + 3) // 4] = ray
    return rays.flatten(0, 1)


def _towards(lens: Tensor, width: int, height: int) -> Tensor:
    """Returns the unit vector (3, H * W) towards each pixel's centre, in the camera's axes."""
    fx, fy, cx, cy = lens
    x, y = (torch.arange(width) + 0.5 - cx) / fx, (torch.arange(height)[:, None] + 0.5 - cy) / fy
    found = torch.stack(torch.broadcast_tensors(x, y, torch.ones(1, 1)))
    return (found / found.norm(dim=0)).flatten(1)
