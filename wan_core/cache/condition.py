"""Encodes the conditioning of a sample, from its own frames and its companion files."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..dataset import Companion, Sample
from ..dataset.camera import camera_path, packed_path, read_poses
from ..dataset.conditioning import (
    animated_tensors,
    control_channels,
    driven_tensors,
    given_frames,
    inpaint_channels,
    mask_of,
    start_channels,
    vace_tensor,
    with_mask,
)
from ..model import ConditionKind
from ..model.conditioning import STREAMS
from ..model.latents import ImageEncoder, LatentCodec

PixelsOf = Callable[[Sample, Companion | None], Tensor]
"""(sample, companion or None) -> pixels (F, H, W, 3) in [0, 1]: of the companion cut like the sample, or of the
sample"""


def condition_of(
    pixels: Tensor, kind: ConditionKind, codec: LatentCodec, image_encoder: ImageEncoder | None
) -> dict[str, Tensor]:
    """Returns the conditioning of a clip (F, H, W, 3) in [0, 1] on some of its own frames."""
    # All other frames are encoded as mid grey, as Wan does; the latent of grey is not zero.
    latent = codec.encode(given_frames(pixels, kind.frames))
    tensors = {"channels": with_mask(latent, len(pixels), kind.frames)}
    return tensors | _image_tokens(pixels, kind, image_encoder)


def condition_from_files(
    sample: Sample,
    kind: ConditionKind,
    pixels_of: PixelsOf,
    codec: LatentCodec,
    image_encoder: ImageEncoder | None,
    fps: float,
) -> dict[str, Tensor]:
    """Returns the conditioning of a sample: from its own frames, control video, mask, camera poses or context files.

    `fps`: frame rate of the dataset.
    """
    if sample.context:
        return _of_roles({file.role: pixels_of(sample, file) for file in sample.context}, kind, codec, image_encoder)
    if not kind.files:
        return condition_of(pixels_of(sample, None), kind, codec, image_encoder)
    mask = mask_pixels(sample, pixels_of) if sample.mask is not None and kind.reads("mask") else None
    pixels = pixels_of(sample, None) if kind.frames else torch.empty(0)
    if kind.files == ("mask",):
        assert mask is not None
        channels = {"channels": inpaint_channels(pixels, mask, codec.encode)}
    elif kind.files == ("camera",):
        assert sample.camera is not None
        path = camera_path(read_poses(sample.camera.path), sample, fps)
        given = start_channels(pixels, codec.encode, with_mask=kind.mask > 0)
        channels = {"channels": given, "camera": packed_path(path)}
    else:
        assert sample.control is not None
        control = pixels_of(sample, sample.control)
        if "vace" in kind.tensors:
            return {"vace": vace_tensor(control, mask, codec.encode)}
        start = pixels[:1] if kind.frames else None
        channels = {"channels": control_channels(control, start, codec.encode, with_mask=kind.mask > 0)}
    return channels | _image_tokens(pixels, kind, image_encoder)


def files_read(sample: Sample, kind: ConditionKind) -> list[Companion | None]:
    """Returns the files that `condition_from_files` reads, in order; None stands for the sample itself."""
    if sample.context:
        return list(sample.context)
    if not kind.files:
        return [None]
    found: list[Companion | None] = []
    if sample.mask is not None and kind.reads("mask"):
        found.append(sample.mask)
    if kind.frames:
        found.append(None)
    if "control" in kind.files and sample.control is not None:
        found.append(sample.control)
    return found


def _of_roles(
    files: dict[str, Tensor], kind: ConditionKind, codec: LatentCodec, image_encoder: ImageEncoder | None
) -> dict[str, Tensor]:
    """Returns the conditioning of Bernini-R, SCAIL or Animate; `files`: role -> pixels (F, H, W, 3) in [0, 1]."""
    if kind.in_context:
        return dict(zip(STREAMS, map(codec.encode, files.values()), strict=False))
    assert image_encoder is not None
    tokens = {"image_tokens": image_encoder.encode(files["ref1"][0])}
    if kind.leading_frames:
        return tokens | animated_tensors(files["ref1"], files["pose"], files["face"], codec.encode)
    masks = (files["ref1_mask"], files["pose_mask"]) if "pose_mask" in files else None
    return tokens | driven_tensors(files["ref1"], files["pose"], masks, codec.encode)


def mask_pixels(sample: Sample, pixels_of: PixelsOf) -> Tensor:
    """Returns the mask (F, H, W) in [0, 1] of a sample; a still is repeated for all frames."""
    mask = mask_of(pixels_of(sample, sample.mask))
    return mask.expand(sample.bucket.num_frames, -1, -1) if len(mask) == 1 else mask


def _image_tokens(pixels: Tensor, kind: ConditionKind, image_encoder: ImageEncoder | None) -> dict[str, Tensor]:
    if not kind.vision:
        return {}
    assert image_encoder is not None
    return {"image_tokens": torch.cat([image_encoder.encode(pixels[frame]) for frame in kind.frames])}
