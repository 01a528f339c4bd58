"""The tensors that control and mask videos become, as VACE, Fun-Control and Fun-InP read them. Pure functions.

Pixels are (F, H, W, 3) in [0, 1] with F = 4n+1, masks (F, H, W) in [0, 1], latents (C, F', h, w) normalised.
`encode` is a VAE. Sources: Wan VACE's vace_encode_frames and vace_encode_masks, VideoX-Fun's control and inpaint
pipelines; the tests compare with ComfyUI's nodes and diffusers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .conditioning import MID_GREY

__all__ = ["control_channels", "folded_mask", "inpaint_channels", "loss_mask", "mask_of", "vace_tensor"]

Encode = Callable[[Tensor], Tensor]


def mask_of(pixels: Tensor) -> Tensor:
    """The mask (F, H, W) that a video or picture (F, H, W, 3) shows: its mean over the colours."""
    return pixels.mean(-1)


def vace_tensor(control: Tensor, mask: Tensor | None, encode: Encode) -> Tensor:
    """(2C + 64, F', h, w): inactive latent, reactive latent, mask.

    Where the mask is white the model is free (reactive); without one it is white everywhere. What belongs to the other
    side is mid grey in either. A mask is black or white, split at one half, as VACE was trained.
    """
    white = torch.ones_like(control[..., 0]) if mask is None else (mask > 0.5).float()
    away_from_grey = control - MID_GREY
    inactive = encode(away_from_grey * (1 - white[..., None]) + MID_GREY)
    reactive = encode(away_from_grey * white[..., None] + MID_GREY)
    stride = control.shape[1] // inactive.shape[2]
    return torch.cat([inactive, reactive, _squares(white, stride, inactive.shape[1])])


def control_channels(control: Tensor, start: Tensor | None, encode: Encode, *, with_mask: bool = False) -> Tensor:
    """`Conditioning.channels` of Fun-Control: control latent, with 2.2 a mask of four channels, start image latent.

    `start` (1, H, W, 3) is given in latent frame 0 of the last part; the rest of it, all of it without a start image,
    is zero, and so is the mask. A single frame gets no start image: it would be given whole.
    """
    latent = encode(control)
    given = torch.zeros_like(latent)
    if start is not None and latent.shape[1] > 1:
        given[:, :1] = encode(start)
    mask = latent.new_zeros(4, *latent.shape[1:])
    return torch.cat([latent, mask, given] if with_mask else [latent, given])


def inpaint_channels(pixels: Tensor, mask: Tensor, encode: Encode) -> Tensor:
    """`Conditioning.channels` of Fun-InP: four channels that are 1 where a pixel is given, then the latent of the clip
    with the masked (white) pixels grey.
    """
    white = (mask > 0.5).float()
    latent = encode((pixels - MID_GREY) * (1 - white[..., None]) + MID_GREY)
    return torch.cat([folded_mask(1 - white, latent.shape[2:]), latent])


def folded_mask(given: Tensor, size: torch.Size | tuple[int, int]) -> Tensor:
    """(4, F', h, w) of a mask (F, H, W): the first frame four times, the rest folded by four, as `given_mask`."""
    four = torch.cat([given[:1].expand(4, -1, -1), given[1:]]).unflatten(0, (-1, 4)).transpose(0, 1)
    return functional.interpolate(four, size=tuple(size), mode="bilinear", align_corners=False)


def loss_mask(mask: Tensor, stride: int) -> Tensor:
    """(1, F', h, w) weights of the loss from a mask (F, H, W): means over the pixels that a latent value stands for.

    In space those are squares of `stride`; in time frame 0 alone, then four frames each, as the VAE folds them.
    """
    small = functional.avg_pool2d(mask[:, None], stride)[:, 0]
    return torch.cat([small[:1], small[1:].unflatten(0, (-1, 4)).mean(1)])[None]


def _squares(mask: Tensor, stride: int, latent_frames: int) -> Tensor:
    """(stride * stride, F', h, w): each pixel of a square in a channel of its own, of the nearest frames in time."""
    frames, height, width = mask.shape
    squares = mask.view(frames, height // stride, stride, width // stride, stride)
    channels = squares.permute(2, 4, 0, 1, 3).flatten(0, 1)[None]
    size = (latent_frames, height // stride, width // stride)
    return functional.interpolate(channels, size=size, mode="nearest-exact")[0]
