"""Conditioning tensors of clips (given frames, masks, control videos, VACE) and batches of them.

Pixels are (F, H, W, 3) in [0, 1] with F = 4n+1, masks (F, H, W) in [0, 1], latents (C, F', h, w) normalised; `encode`
is a VAE. Sources: Wan VACE's vace_encode_frames and vace_encode_masks, VideoX-Fun's control and inpaint pipelines;
tests compare with ComfyUI's nodes and diffusers. `model.Conditioning` documents the tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import CacheError
from ..model import FACE_SIDE, FRAMES_BEFORE, WHISPER_WINDOW, Conditioning, sizes_behind
from ..model.conditioning import STREAMS
from .camera import packed_misfits, rays_of_packed

CONDITION_TENSORS = (
    *(field.name for field in dataclasses.fields(Conditioning) if field.name not in ("vace_strength", "context")),
    *STREAMS,
)
"""names of a clip's conditioning tensors: the fields of Conditioning, without the batch axis"""

NOTHING_TO_PREDICT = (
    "The dataset has only stills: this model gets each picture as its own first frame, so nothing is left to "
    "predict, and a LoRA learns nothing. Add clips, or train the text-to-video model."
)
"""advice for a dataset in which the model is given every frame (`given_whole`)"""

_MID_GREY = 0.5
"""0 in the VAE's range [-1, 1]; fills frames that are not given, as in official Wan"""


def given_mask(num_frames: int, frames: Sequence[int]) -> Tensor:
    """Returns the mask (4, F') float32 of a clip of 4n+1 pixel frames: 1 for a given frame.

    As in official Wan, the first pixel frame counts four times, and each four frames become channels: channel c of
    latent frame j > 0 is pixel frame 4 * (j - 1) + 1 + c.
    """
    flags = torch.zeros(num_frames)
    flags[list(frames)] = 1.0
    return torch.cat([flags[:1].expand(4), flags[1:]]).view(-1, 4).T.contiguous()


def given_frames(pixels: Tensor, frames: Sequence[int]) -> Tensor:
    """Returns a clip (F, H, W, 3) in [0, 1] in which all frames but `frames` are mid grey."""
    kept = torch.full_like(pixels, _MID_GREY)
    kept[list(frames)] = pixels[list(frames)]
    return kept


def with_mask(latent: Tensor, num_frames: int, frames: Sequence[int]) -> Tensor:
    """Returns `Conditioning.channels` of one clip: 4 mask channels, then the latent (C, F', h, w) of `given_frames`."""
    mask = given_mask(num_frames, frames).to(latent.dtype)
    return torch.cat([mask[:, :, None, None].expand(-1, -1, *latent.shape[2:]), latent])


def stack_conditions(clips: Sequence[Mapping[str, Tensor]]) -> Conditioning | None:
    """Returns the tensors of several clips as one float32 batch; None if there are none."""
    names = set(clips[0])
    if any(set(clip) != names for clip in clips):
        raise CacheError(
            "Clips of one batch are conditioned on different tensors. Queue Cache Latents + Captions again."
        )
    if not names:
        return None
    if any({name: clip[name].shape for name in names} != {n: t.shape for n, t in clips[0].items()} for clip in clips):
        raise CacheError("Clips of one batch have different numbers of reference images. Set batch_size to 1.")
    stacked = {name: torch.stack([_complete(name, clip[name]) for clip in clips]).float() for name in names}
    context = tuple(stacked.pop(name) for name in STREAMS if name in stacked)
    modes = set(stacked.pop("replaces", torch.zeros(1)).flatten().tolist())
    if len(modes) > 1:
        raise CacheError("Clips of one batch differ in whether they replace a character. Set batch_size to 1.")
    return dataclasses.replace(Conditioning(context=context), **stacked, replaces=bool(modes.pop()))


def _complete(name: str, tensor: Tensor) -> Tensor:
    """Returns a tensor of a cache entry as the model reads it: a camera path becomes rays."""
    return rays_of_packed(tensor) if name == "camera" and tensor.ndim == 3 else tensor


def stream_sizes(tensors: Mapping[str, Tensor]) -> tuple[tuple[int, ...], ...]:
    """Returns latent frames, height and width of each context stream of a clip, or of its tokens behind the video."""
    if "pose_video" in tensors:
        return sizes_behind(tuple(tensors["pose_video"].shape[1:]), set(tensors))
    return tuple(tuple(tensors[name].shape[1:]) for name in STREAMS if name in tensors)


def condition_misfits(tensors: Mapping[str, Tensor], latent_shape: Sequence[int] | None) -> str:
    """Returns why a clip's tensors do not fit its latent (C, F', h, w); "" if they do. None checks only their axes."""
    sides: dict[str, int] = {}
    if latent_shape is not None:
        channels, frames, height, width = latent_shape
        sides = {"c": channels, "F": frames, "h": height, "w": width, "H": 8 * height, "W": 8 * width}
        sides |= {"y": height // 2, "x": width // 2, "P": frames, "T": 4 * frames - 3, "S": FACE_SIDE}
        sides |= dict(zip("VG", WHISPER_WINDOW, strict=True))
        sides |= {"A": 4 * frames, "B": FRAMES_BEFORE}
        sides["F"] += "pose" in tensors  # Animate's latent has the reference image as an extra first frame
    for name, tensor in tensors.items():
        shape, axes = tuple(tensor.shape), _AXES[name]
        if name == "camera" and len(shape) == 3:
            if why := packed_misfits(tensor, (4 * sides["F"] - 3, sides["W"], sides["H"]) if sides else None):
                return why
            continue
        if len(shape) != len(axes) or 0 in shape:
            return f"its {name} have shape {list(shape)}, not {len(axes)} axes"
        wanted = [sides.get(axis, side) for axis, side in zip(axes, shape, strict=True)]
        if list(shape) != wanted:
            return f"its {name} have shape {list(shape)}, the clip needs {wanted}"
        if name in STREAMS and (shape[2] % 2 or shape[3] % 2):
            return f"its {name} have shape {list(shape)}, and both sides must be even"
    streams = [name for name in STREAMS if name in tensors]
    return f"it has {streams[-1]} but not all streams before it" if streams != list(STREAMS[: len(streams)]) else ""


_AXES = {
    "channels": "CFhw",
    "image_tokens": "RC",
    "vace": "CFhw",
    "reference": "Chw",
    "camera": "CFHW",
    "references": "cRhw",
    "pose_stream": "cFyx",
    "reference_masks": "CRhw",
    "pose_masks": "CFyx",
    "replaces": "1",
    "pose": "cPhw",
    "face": "CTSS",
    "whisper": "FVGC",
    "sound": "RCA",
    "pose_video": "cFhw",
    "frames_before": "cBhw",
    **dict.fromkeys(STREAMS, "cNYX"),
}
"""axes of a clip's tensors: c, F, h, w: of its latent; H, W: of its pixels; y, x: half of h, w; P, T: latent and pixel
frames without a reference image; S: FACE_SIDE; V, G: WHISPER_WINDOW; A: sound features; B: FRAMES_BEFORE; other
letters: any size"""
assert set(_AXES) == set(CONDITION_TENSORS)
_ON = 225 / 255
_IDENTITIES = torch.tensor(
    [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)], dtype=torch.bool
)
_BACKGROUND = 0.01
"""share of white pixels above which a mask has a white background; smaller shares are compression errors"""
Encode = Callable[[Tensor], Tensor]


def mask_of(pixels: Tensor) -> Tensor:
    """Returns the mask (F, H, W) of a video or still (F, H, W, 3): the mean over colours."""
    return pixels.mean(-1)


def vace_tensor(control: Tensor, mask: Tensor | None, encode: Encode) -> Tensor:
    """Returns (2C + 64, F', h, w): latent of the inactive part, latent of the reactive part, mask.

    White areas of the mask are reactive, that is generated; without a mask, all areas are. In each latent, the other
    part is mid grey. The mask is binarised at 0.5, as in VACE's training.
    """
    white = torch.ones_like(control[..., 0]) if mask is None else (mask > 0.5).float()
    away_from_grey = control - _MID_GREY
    inactive = encode(away_from_grey * (1 - white[..., None]) + _MID_GREY)
    reactive = encode(away_from_grey * white[..., None] + _MID_GREY)
    stride = control.shape[1] // inactive.shape[2]
    return torch.cat([inactive, reactive, _squares(white, stride, inactive.shape[1])])


def control_channels(control: Tensor, start: Tensor | None, encode: Encode, *, with_mask: bool = False) -> Tensor:
    """Returns `Conditioning.channels` of Fun-Control: control latent, zero mask of four channels, start image latent.

    `with_mask`: Wan 2.2 has the mask, 2.1 has not. `start` (1, H, W, 3) becomes frame 0 of the start image latent; its
    other frames are zero.
    """
    latent = encode(control)
    given = torch.zeros_like(latent)
    # A clip of one latent frame has no start image, because that image would contain the complete target.
    if start is not None and latent.shape[1] > 1:
        given[:, :1] = encode(start)
    mask = latent.new_zeros(4, *latent.shape[1:])
    return torch.cat([latent, mask, given] if with_mask else [latent, given])


def start_channels(pixels: Tensor, encode: Encode, *, with_mask: bool) -> Tensor:
    """Returns `Conditioning.channels` of Fun-Control-Camera: four mask channels, then the latent of frame 0.

    `with_mask`: Wan 2.2 has the mask, 2.1 has not. Other latent frames are zero. A still has zero channels, because its
    frame 0 is the complete target.
    """
    first = encode(pixels[:1])
    given = first.new_zeros(first.shape[0] + 4, (len(pixels) + 3) // 4, *first.shape[2:])
    if given.shape[1] > 1:
        given[:4, 0], given[4:, :1] = 1.0, first
    return given if with_mask else given[4:]


def inpaint_channels(pixels: Tensor, mask: Tensor, encode: Encode) -> Tensor:
    """Returns `Conditioning.channels` of Fun-InP: four mask channels (1 = given), then the masked latent."""
    white = (mask > 0.5).float()
    latent = encode((pixels - _MID_GREY) * (1 - white[..., None]) + _MID_GREY)
    return torch.cat([_folded_mask(1 - white, latent.shape[2:]), latent])


def _half_size(pixels: Tensor) -> Tensor:
    """Returns a video (F, H, W, C) at half its height and width, each pixel the mean of four."""
    return functional.avg_pool2d(pixels.movedim(-1, 1), 2).movedim(1, -1)


def identity_channels(colours: Tensor) -> Tensor:
    """Returns the identity masks (28, F', h, w) of SCAIL-2 for a video (F, H, W, 3) whose colours mark identities.

    The colours are white, red, green, blue, yellow, magenta and cyan; a channel of a pixel is on above 225 / 255. A
    value is the share of a colour's pixels in a square of 8 x 8. The 28 channels are 7 colours of 4 frames; frame 0
    counts four times.
    """
    is_on = (colours > _ON)[..., None, :]
    among = (is_on == _IDENTITIES.to(colours.device)).all(-1).float().movedim(-1, 1)
    small = functional.avg_pool2d(among, 8)
    four = torch.cat([small[:1].expand(4, -1, -1, -1), small[1:]]).unflatten(0, (-1, 4))
    return four.flatten(1, 2).transpose(0, 1).contiguous()


def driven_tensors(
    reference: Tensor, pose: Tensor, masks: tuple[Tensor, Tensor] | None, encode: Encode
) -> dict[str, Tensor]:
    """Returns the conditioning of SCAIL without CLIP tokens, as WanSCAILToVideo does, from a reference (1, H, W, 3) and
    a pose video (F, H, W, 3).

    `masks`: identity masks of both, as colours. If the pose video's mask has a white background, the character of the
    reference replaces the one in the video, and the reference's background is set to black.
    """
    if masks is None:
        return {"references": encode(reference), "pose_stream": encode(_half_size(pose))}
    of_reference, of_pose = masks
    identities = identity_channels(_half_size(of_pose))
    replaces = float(identities[::7].mean()) > _BACKGROUND
    if replaces:
        reference = reference * (of_reference.amax(-1, keepdim=True) > 0.1)
    return {
        "references": encode(reference),
        "pose_stream": encode(_half_size(pose)),
        "reference_masks": identity_channels(of_reference),
        "pose_masks": identities,
        "replaces": torch.tensor([float(replaces)]),
    }


def animated_tensors(reference: Tensor, pose: Tensor, face: Tensor, encode: Encode) -> dict[str, Tensor]:
    """Returns the conditioning of Animate without CLIP tokens, as WanAnimateToVideo does without a background video.

    Pixels in [0, 1]: reference (1, H, W, 3), pose (F, H, W, 3), face (F, 512, 512, 3).
    """
    image = encode(reference)
    latents = torch.cat([image, encode(given_frames(pose, ()))], dim=1)
    mask = latents.new_zeros(4, *latents.shape[1:])
    mask[:, : image.shape[1]] = 1
    return {
        "channels": torch.cat([mask, latents]),
        "pose": encode(pose),
        "face": face.movedim(-1, 0) * 2 - 1,
    }


def _folded_mask(given: Tensor, size: torch.Size | tuple[int, int]) -> Tensor:
    """Returns a mask (F, H, W) as (4, F', h, w); frames become channels as in `given_mask`."""
    four = torch.cat([given[:1].expand(4, -1, -1), given[1:]]).unflatten(0, (-1, 4)).transpose(0, 1)
    return functional.interpolate(four, size=tuple(size), mode="bilinear", align_corners=False)


def loss_mask(mask: Tensor, stride: int) -> Tensor:
    """Returns loss weights (1, F', h, w) of a mask (F, H, W): the mean over the pixels of each latent value.

    Space is averaged over squares of `stride`; time over frame 0 alone, then groups of four, as in the VAE.
    """
    small = functional.avg_pool2d(mask[:, None], stride)[:, 0]
    return torch.cat([small[:1], small[1:].unflatten(0, (-1, 4)).mean(1)])[None]


def _squares(mask: Tensor, stride: int, latent_frames: int) -> Tensor:
    """Returns (stride * stride, F', h, w) of a mask (F, H, W): a channel for each pixel of a square, nearest frames."""
    frames, height, width = mask.shape
    squares = mask.view(frames, height // stride, stride, width // stride, stride)
    channels = squares.permute(2, 4, 0, 1, 3).flatten(0, 1)[None]
    size = (latent_frames, height // stride, width // stride)
    return functional.interpolate(channels, size=size, mode="nearest-exact")[0]


DEFAULT_NEGATIVE_PROMPT = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，"
    "丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，"
    "静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走"
)
"""sample_neg_prompt of Wan's configs; ComfyUI's Wan templates have the same text"""

_NAMES = {"": "the empty prompt", DEFAULT_NEGATIVE_PROMPT: "the negative prompt"}


def name_of(prompt: str) -> str:
    """Returns the text that progress shows for a prompt."""
    return _NAMES.get(prompt, prompt[:60])
