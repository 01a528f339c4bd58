"""Conditioning: the model inputs besides noised latent, timestep and text; their kinds and their required shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from ..accelerator import backend_of
from ..errors import ConfigError
from .latents import WAN21_LATENTS
from .shape import FACE_SIDE, FRAMES_BEFORE, WHISPER_WINDOW, WanShape


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns `tensor` (any shape) on `device`; a copy to a GPU does not block the host.

    A copy to the CPU must block: the host would otherwise read the values before they have arrived.
    """
    return tensor.to(device, non_blocking=backend_of(device).late_copies)


MOST_STREAMS = 10
"""context streams of a clip: source video, reference video, eight reference images"""
STREAMS = tuple(f"context.{number}" for number in range(1, MOST_STREAMS + 1))
"""names of a clip's context streams in a cache, by rotary id; a clip has the first ones"""
_CONTEXT_FILES = ("source", "refvideo", *(f"ref{number}" for number in range(1, 9)))
"""the clip's files that the streams encode, in stream order"""
WHOLE_CONTEXT = (
    "Clips with context streams (Bernini-R) cannot be combined with split tokens, context_parallel or tread_routes, "
    "because their streams differ in size. Use split blocks, set context_parallel to 1, and leave tread_routes empty."
)


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Tensors of one batch, any float dtype; a field that the variant does not read stays None.

    Shapes: B batch, F latent frames, H and W latent height and width.
    """

    channels: Tensor | None = None
    """(B, C, F, H, W), concatenated after the latent's channels. I2V, FLF2V: 4 mask channels, 16 of encoded frames"""
    image_tokens: Tensor | None = None
    """(B, 257, 1280) CLIP vision tokens of the first frame; FLF2V (B, 514, 1280), first frame then last"""
    vace: Tensor | None = None
    """(B, 96, F, H, W): 16 inactive latent, 16 reactive latent, 64 mask"""
    vace_strength: float = 1.0
    """factor of VACE's hints"""
    reference: Tensor | None = None
    """(B, 16, H, W) latent of a reference image (Fun models with `ref_conv`, S2V); optional: it adds one frame"""
    camera: Tensor | None = None
    """(B, 24, F, 8 H, 8 W) Pluecker rays at pixel size, four frames folded into channels (Fun-Control-Camera)"""
    context: tuple[Tensor, ...] = ()
    """clean latents (B, C, F_i, H_i, W_i), even sides, whose tokens follow those of the video (Bernini-R): source
    video, reference video, reference images; the place in the tuple, from 1, is the rotary id"""

    def each(self, change: Callable[[Tensor], Tensor]) -> Conditioning:
        """Returns a copy with `change` applied to every tensor."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        changed = {name: change(value) for name, value in values if isinstance(value, Tensor)}
        return replace(self, **changed, context=tuple(map(change, self.context)))

    references: Tensor | None = None
    """(B, C, R, H, W) latents of reference images (SCAIL: the primary one first; HuMo)"""
    pose_stream: Tensor | None = None
    """(B, C, F, H/2, W/2) latent of a pose video of half the size (SCAIL)"""
    reference_masks: Tensor | None = None
    """(B, 28, R, H, W) identity masks of the references: which character each place shows (SCAIL-2)"""
    pose_masks: Tensor | None = None
    """(B, 28, F, H/2, W/2) identity masks of the pose video (SCAIL-2)"""
    replaces: bool = False
    """True: the reference's character replaces one in the pose video; False: it moves in its own scene (SCAIL-2)"""
    pose: Tensor | None = None
    """(B, 16, F - 1, H, W) latent of a pose video (Animate); the first of the F frames, the reference, has no pose"""
    face: Tensor | None = None
    """(B, 3, 4 F - 7, 512, 512) pixels of a face video in [-1, 1], as many frames as the clip (Animate)"""
    whisper: Tensor | None = None
    """(B, F, 8, 5, 1280) features of the sound (HuMo): 8 frames around each latent frame, 5 groups of encoder layers"""
    sound: Tensor | None = None
    """(B, layers, C, 4 F) features of the sound from each layer of its encoder, 4 per latent frame (S2V); optional"""
    pose_video: Tensor | None = None
    """(B, 16, F, H, W) latent of a pose video, added to the clip's tokens; without one, zeros (S2V); optional"""
    frames_before: Tensor | None = None
    """(B, 16, 19, H, W) latent of the frames before the clip, zeros before the first one (S2V); optional"""

    def to(self, device: torch.device) -> Conditioning:
        """Returns the same tensors on `device`."""
        return self.each(partial(sent, device=device))

    def only(self, places: Tensor) -> Conditioning:
        """Returns the clips with indices `places` (K,) int64 of the batch."""
        return self.each(lambda tensor: tensor.index_select(0, places))

    def negative(self) -> Conditioning:
        """Returns what the negative pass of a guided prediction reads, as ComfyUI's nodes give it: HuMo silence and an
        empty reference image, S2V silence, other models the same."""
        if self.sound is not None:
            return replace(self, sound=torch.zeros_like(self.sound))
        if self.references is None or self.whisper is None:
            return self
        empty = WAN21_LATENTS.normalise(torch.zeros_like(self.references))
        return replace(self, references=empty, whisper=torch.zeros_like(self.whisper))

    def doubled(self) -> Conditioning:
        """Returns every tensor, followed by that of `negative` along the batch, for two predictions in one pass."""
        others: list[Tensor] = []
        self.negative().each(lambda tensor: others.append(tensor) or tensor)
        return self.each(lambda tensor: torch.cat([tensor, others.pop(0)]))


@dataclass(frozen=True)
class ConditionKind:
    """One kind of conditioning: the tensors a model reads, and the files they are encoded from."""

    name: str
    """key in cache sets and datasets: never change one"""
    tensors: tuple[str, ...] = ()
    """required fields of Conditioning, or names in `STREAMS`"""
    latents: int = 0
    """number of latents concatenated in `channels` or `vace`"""
    mask: int = 0
    """number of mask channels in `channels` or `vace`"""
    frames: tuple[int, ...] = ()
    """pixel frames of the clip itself that the model is given: 0 the first, -1 the last"""
    files: tuple[str, ...] = ()
    """required files of every clip: "control" (video), "mask", "camera" (camera poses), and `ROLES`"""
    optional_files: tuple[str, ...] = ()
    """files a clip may have; a clip of kind "context" needs at least one"""
    masked: str = ""
    """the kind that replaces this one if the clips have masks (Fun-InP then inpaints inside them)"""
    fits: tuple[str, ...] = ()
    """further kinds whose cached tensors can be read as this kind"""
    optional: tuple[str, ...] = ()
    """optional tensors"""

    @property
    def leading_frames(self) -> int:
        """Latent frames of the reference image, which come before the clip's and are denoised with them."""
        return int("pose" in self.tensors)

    @property
    def vision(self) -> bool:
        """True when the given frames also go through a CLIP vision encoder."""
        return "image_tokens" in self.tensors

    @property
    def halves(self) -> bool:
        """True if a video of half the size is encoded too; the clip's sides must then be multiples of twice as much."""
        return "pose_stream" in self.tensors

    @property
    def vae_passes(self) -> int:
        """Number of videos that the VAE encodes for the conditioning of one clip."""
        return 2 if {"vace", "pose"} & {*self.tensors} else int(bool(self.tensors))

    @property
    def of_graph(self) -> bool:
        """True if only the nodes of a graph make the tensors, neither the clip's frames nor files next to it (HuMo,
        S2V)."""
        return bool(self.tensors) and not (self.frames or self.files or self.optional_files)

    @property
    def in_context(self) -> bool:
        """True when clips have context streams, whose number and sizes differ (Bernini-R)."""
        return STREAMS[0] in self.tensors

    def channels_of(self, latent: int) -> int:
        """Number of conditioning channels for a latent of `latent` channels."""
        return self.latents * latent + self.mask

    def reads(self, file: str) -> bool:
        """True if the model reads `file`: "control", "mask", "camera" or a role."""
        return file in (*self.files, *self.optional_files)

    def given_whole(self, num_frames: int) -> bool:
        """True if a clip of `num_frames` frames consists of given frames only: a single image."""
        return bool(self.frames) and not self.files and num_frames == 1


_CHANNELS, _WITH_VISION = ("channels",), ("channels", "image_tokens")
_ANIMATE = ("channels", "image_tokens", "pose", "face")
_DRIVEN = ("image_tokens", "references", "pose_stream")
_MASKED = (*_DRIVEN, "reference_masks", "pose_masks", "replaces")
_KINDS = (
    ConditionKind("none"),
    ConditionKind("first", _CHANNELS, latents=1, mask=4, frames=(0,), masked="inpaint", fits=("first_last",)),
    ConditionKind("first_vision", _WITH_VISION, latents=1, mask=4, frames=(0,), masked="inpaint_vision"),
    ConditionKind("first_last", _CHANNELS, latents=1, mask=4, frames=(0, -1)),
    ConditionKind("first_last_vision", _WITH_VISION, latents=1, mask=4, frames=(0, -1)),
    ConditionKind("vace", ("vace",), latents=2, mask=64, files=("control",), optional_files=("mask",)),
    ConditionKind("control", _CHANNELS, latents=2, files=("control",)),
    ConditionKind("camera", ("channels", "camera"), latents=1, mask=4, frames=(0,), files=("camera",)),
    ConditionKind("inpaint", _CHANNELS, latents=1, mask=4, frames=(0,), files=("mask",)),
    ConditionKind("inpaint_vision", _WITH_VISION, latents=1, mask=4, frames=(0,), files=("mask",)),
    ConditionKind("control_mask", _CHANNELS, latents=2, mask=4, files=("control",), fits=("control",)),
    ConditionKind("control_vision", _WITH_VISION, latents=2, frames=(0,), files=("control",), fits=("control",)),
    ConditionKind("driven", _DRIVEN, files=("pose", "ref1")),
    ConditionKind("driven_masked", _MASKED, files=("pose", "ref1", "pose_mask", "ref1_mask")),
    ConditionKind("camera_vision", (*_WITH_VISION, "camera"), latents=1, frames=(0,), files=("camera",)),
    ConditionKind("context", STREAMS[:1], optional=STREAMS[1:], optional_files=_CONTEXT_FILES),
    ConditionKind("animate", _ANIMATE, latents=1, mask=4, files=("ref1", "pose", "face")),
    ConditionKind("humo", ("references", "whisper")),
    ConditionKind("s2v", ("sound", "pose_video"), optional=("reference", "frames_before")),
)
CONDITION_KINDS = {kind.name: kind for kind in _KINDS}
"""The index of a kind is part of the cache keys of synthetic entries: append new kinds at the end."""


def condition_named(name: str) -> ConditionKind:
    """Returns the kind called `name`; ConfigError if there is none."""
    if name not in CONDITION_KINDS:
        kinds = ", ".join(CONDITION_KINDS)
        raise ConfigError(f'Conditioning "{name[:100]}" is unknown. Known: {kinds}.')
    return CONDITION_KINDS[name]


def condition_kind(name: str, shape: WanShape) -> ConditionKind:
    """Returns the variant of the kind `name` that a model of these sizes reads.

    Variants add a mask between control and start image (Fun-Control 2.2), or CLIP vision tokens (Wan 2.1).
    """
    masked = CONDITION_KINDS.get(f"{name}_mask")
    if masked is not None and masked.channels_of(shape.out_channels) == shape.condition_channels:
        return masked
    with_vision = CONDITION_KINDS.get(f"{name}_vision")
    return with_vision if with_vision is not None and shape.image_dim else condition_named(name)


def check_conditioning(shape: WanShape, latent: Tensor, timestep: Tensor, text: Tensor, given: Conditioning) -> None:
    """Raises ConfigError if an input of the model is missing, superfluous or of the wrong shape. Reads no values.

    One superfluous input is allowed: an image-to-video model without `img_emb` (2.2) ignores CLIP tokens, as official
    Wan does, so that one dataset serves 2.1 and 2.2.
    """
    if latent.ndim != 5 or latent.shape[1] != shape.out_channels or latent.shape[3] % 2 or latent.shape[4] % 2:
        raise ConfigError(
            f"The latent is {_sizes(latent)}; this model needs (B, {shape.out_channels}, F, H, W) with even H and W. "
            "Encode the clips with the VAE that belongs to the model."
        )
    batch, _, frames, height, width = latent.shape
    if tuple(timestep.shape) not in ((batch,), (batch, frames)):
        raise ConfigError(
            f"The timestep is {_sizes(timestep)}; give one per clip, ({batch},), "
            f"or one per latent frame, ({batch}, {frames})."
        )
    if text.ndim != 3 or text.shape[0] != batch or text.shape[2] != shape.text_dim:
        raise ConfigError(
            f"The text is {_sizes(text)}; this model needs ({batch}, 512, {shape.text_dim}), zeros after the prompt."
        )
    clip, small, ray = (frames, height, width), (frames, height // 2, width // 2), shape.camera_stride
    own, image, side = shape.out_channels, (height, width), FACE_SIDE if shape.face_layers else 0
    animated = frames - 1 if shape.pose_channels else 0
    driven, heard, spoken = bool(shape.pose_stream_channels), bool(shape.whisper_channels), bool(shape.sound_channels)
    count = 1 if given.references is None else max(given.references.shape[2:3], default=1)
    wanted = {
        "channels": (shape.condition_channels, *clip),
        "vace": (shape.vace_channels if shape.vace_layers else 0, *clip),
        "camera": (shape.camera_channels, frames, height * ray, width * ray),
        "pose": (shape.pose_channels, animated, *image),
        "face": (3 if side else 0, 4 * animated - 3, side, side),
        "whisper": (frames * heard, *WHISPER_WINDOW, shape.whisper_channels),
        "references": (own * (driven or heard), count, *image),
        "pose_stream": (own * driven, *small),
        "reference_masks": (shape.identity_channels, count, *image),
        "pose_masks": (shape.identity_channels, *small),
        "reference": (own if spoken else shape.reference_channels, *image),
        "sound": (shape.sound_depth, shape.sound_channels, 4 * frames),
        "pose_video": (own * spoken, *clip),
        "frames_before": (own * spoken, FRAMES_BEFORE, *image),
    }
    if spoken and given.frames_before is not None and (height % 8 or width % 8):
        raise ConfigError(
            f"The latent is {_sizes(latent)}; S2V packs the frames before a clip by 8, so H and W must be multiples of "
            "8. Use clips whose width and height are multiples of 64, or leave frames_before out."
        )
    if driven and (height % 4 or width % 4):
        raise ConfigError(
            f"The latent is {_sizes(latent)}; SCAIL halves it for the pose video, so H and W must be multiples of 4. "
            "Use clips whose width and height are multiples of 32."
        )
    if (driven or heard or spoken) and timestep.ndim == 2:
        name = "SCAIL" if driven else "HuMo" if heard else "S2V"
        raise ConfigError(f"{name} has one timestep for a clip, not one per latent frame. Give no first frame.")
    for name, sizes in wanted.items():
        if name not in _OPTIONAL or getattr(given, name) is not None:
            _expect(name, getattr(given, name), (batch, *sizes))
    _check_image_tokens(shape, batch, given.image_tokens)
    _check_context(shape, batch, timestep, given.context)


_OPTIONAL = ("reference", "sound", "pose_video", "frames_before")
_WHAT = {
    "channels": "condition channels (mask and encoded frames, or a control video)",
    "vace": "VACE frames and masks",
    "camera": "camera rays",
    "reference": "a reference image",
    "references": "latents of reference images",
    "pose_stream": "the latent of a pose video of half the size",
    "reference_masks": "identity masks of the reference images",
    "pose_masks": "identity masks of the pose video",
    "pose": "a pose video",
    "face": "a face video",
    "whisper": "features of the sound",
    "sound": "features of sound",
    "pose_video": "the latent of a pose video",
    "frames_before": "the latent of the frames before the clip",
}


def _expect(name: str, given: Tensor | None, wanted: tuple[int, ...]) -> None:
    """Raises ConfigError if `given` is not of shape `wanted`; it must be None if the model reads 0 channels of it."""
    if wanted[1] == 0:
        if given is not None:
            raise ConfigError(f"The data has {_WHAT[name]}, which this model does not read. Leave {name} out.")
    elif given is None:
        raise ConfigError(f"This model needs {_WHAT[name]} and the data has none. Give {name} as {wanted}.")
    elif tuple(given.shape) != wanted:
        raise ConfigError(f"Conditioning {name} is {_sizes(given)}; this model and this latent need {wanted}.")


def _check_image_tokens(shape: WanShape, batch: int, tokens: Tensor | None) -> None:
    if not shape.image_dim:
        if tokens is not None and not shape.condition_channels:
            raise ConfigError("The data has CLIP image tokens, which this model does not read. Leave image_tokens out.")
        return
    if tokens is None:
        raise ConfigError(
            "This model needs CLIP vision tokens of the first frame and the data has none. Wire a CLIP_VISION model "
            "into Cache Latents + Captions and encode again, or choose a Wan 2.2 image-to-video model."
        )
    if tokens.ndim != 3 or tokens.shape[0] != batch or tokens.shape[2] != shape.image_dim or not tokens.shape[1]:
        raise ConfigError(
            f"The image tokens are {_sizes(tokens)}; this model needs ({batch}, rows, {shape.image_dim}). "
            "Encode the images with CLIP ViT-H (clip_vision_h.safetensors)."
        )
    if 0 < shape.image_positions < tokens.shape[1]:
        raise ConfigError(
            f"There are {tokens.shape[1]} image tokens and this model knows {shape.image_positions} positions. "
            "Give the first and the last frame only."
        )


def _check_context(shape: WanShape, batch: int, timestep: Tensor, context: tuple[Tensor, ...]) -> None:
    # A model that reads context streams has no inputs besides latent and text.
    others = (shape.condition_channels, shape.image_dim, shape.vace_layers, shape.reference_channels)
    more = (shape.whisper_channels, shape.sound_channels, shape.camera_channels, shape.pose_stream_channels)
    if context and any((*others, *more)):
        raise ConfigError("The data has context streams, which this model does not read. Leave context out.")
    if context and timestep.ndim == 2 and timestep.shape[1] > 1:
        raise ConfigError("Context streams need one timestep per clip; a given first frame has its own. Leave one out.")
    if len(context) > MOST_STREAMS:
        raise ConfigError(f"The data has {len(context)} context streams. Give at most {MOST_STREAMS}.")
    for number, stream in enumerate(context, 1):
        fits = stream.ndim == 5 and stream.shape[:2] == (batch, shape.out_channels)
        if not fits or any(side % 2 for side in stream.shape[3:]):
            raise ConfigError(
                f"Context stream {number} is {_sizes(stream)}; this model needs ({batch}, {shape.out_channels}, F, H, "
                "W) with even H and W."
            )


def _sizes(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
