"""What a clip is conditioned on: which frames are given, their mask, and the tensors of several clips as one batch.

Pure functions. Encoding is `encode`'s business, keeping the cache's; what the tensors mean to the model stands in
`model.Conditioning`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import CacheError, ConfigError
from ..model import Conditioning

__all__ = [
    "CONDITION_TENSORS",
    "ConditionKind",
    "condition_kind",
    "condition_misfits",
    "condition_named",
    "given_frames",
    "given_mask",
    "masked_kind",
    "stack_conditions",
    "with_mask",
]

CONDITION_TENSORS = tuple(
    field.name for field in dataclasses.fields(Conditioning) if field.name not in ("vace_strength",)
)
"""Names of the tensors a clip can be conditioned on: the fields of Conditioning, without the batch axis."""

MID_GREY = 0.5
"""zero in the VAE's [-1, 1]; what official Wan puts where no frame is given"""


@dataclass(frozen=True, kw_only=True)
class ConditionKind:
    """What one variant is conditioned on."""

    name: str
    tensors: tuple[str, ...] = ()
    """fields of Conditioning that every clip must have"""
    frames: tuple[int, ...] = ()
    """pixel frames of the clip itself that are given to the model: 0 the first, -1 the last"""
    files: tuple[str, ...] = ()
    """what must lie beside every clip: "control" a control video, "mask" a mask"""
    optional_files: tuple[str, ...] = ()
    """what is used where it lies beside a clip"""

    @property
    def vision(self) -> bool:
        """True when the given frames also go through a CLIP vision encoder."""
        return "image_tokens" in self.tensors

    @property
    def from_clip(self) -> bool:
        """True when the clip itself and encoders are enough."""
        return not self.files and (bool(self.frames) or not self.tensors)

    @property
    def vae_passes(self) -> int:
        """Clips that go through the VAE for what a clip is conditioned on."""
        return 2 if self.name == "vace" else int(bool(self.tensors))

    def reads(self, file: str) -> bool:
        """True when a "control" or "mask" beside a clip is part of what the model reads."""
        return file in (*self.files, *self.optional_files)

    @property
    def makeable(self) -> bool:
        """True when the clip, the files beside it and encoders are enough; otherwise the tensors come as data."""
        return self.from_clip or bool(self.files)


_KINDS = {
    kind.name: kind
    for kind in (
        ConditionKind(name="none"),
        ConditionKind(name="first", tensors=("channels",), frames=(0,)),
        ConditionKind(name="first_vision", tensors=("channels", "image_tokens"), frames=(0,)),
        ConditionKind(name="first_last", tensors=("channels",), frames=(0, -1)),
        ConditionKind(name="first_last_vision", tensors=("channels", "image_tokens"), frames=(0, -1)),
        ConditionKind(name="inpaint", tensors=("channels",), frames=(0,), files=("mask",)),
        ConditionKind(name="inpaint_vision", tensors=("channels", "image_tokens"), frames=(0,), files=("mask",)),
        ConditionKind(name="vace", tensors=("vace",), files=("control",), optional_files=("mask",)),
        ConditionKind(name="control", tensors=("channels",), files=("control",)),
        ConditionKind(name="control_mask", tensors=("channels",), files=("control",)),
        ConditionKind(name="control_vision", tensors=("channels", "image_tokens"), frames=(0,), files=("control",)),
        ConditionKind(name="camera", tensors=("channels", "camera")),
    )
}
_OF_TASK = {"i2v": "first", "flf2v": "first_last", "vace": "vace", "control": "control", "camera": "camera"}


def condition_named(name: str) -> ConditionKind:
    """The kind called `name`, as cache sets and datasets spell it."""
    if name not in _KINDS:
        raise ConfigError(f'Conditioning "{name[:100]}" is unknown. Known: {", ".join(_KINDS)}.')
    return _KINDS[name]


def condition_kind(task: str, image_dim: int, condition_channels: int = 0) -> ConditionKind:
    """What a variant of that task needs; `image_dim` > 0 when its file reads CLIP vision tokens (Wan 2.1).

    `condition_channels` of a Fun-Control file tell whether a mask stands between its control and its start image (2.2).
    TI2V-5B needs nothing: its first frame is the clip's own latent.
    """
    name = _OF_TASK.get(task, "none")
    if name == "control" and condition_channels in _WITH_MASK:
        name = "control_mask"
    return condition_named(f"{name}_vision" if image_dim and name in ("first", "first_last", "control") else name)


_WITH_MASK = (2 * 16 + 4, 2 * 48 + 4)
"""condition channels of Fun-Control 2.2: control latent, mask, start image latent"""


def masked_kind(kind: ConditionKind) -> ConditionKind:
    """`kind` when the clips' masks say what is given: a first-frame model (Fun-InP) then paints inside them."""
    return condition_named({"first": "inpaint", "first_vision": "inpaint_vision"}.get(kind.name, kind.name))


def given_mask(num_frames: int, frames: Sequence[int]) -> Tensor:
    """The mask (4, F) float32 of a clip of 4n+1 pixel frames: 1 where a frame is given.

    Official Wan repeats the first pixel frame four times and folds the rest by four, so channel c of latent frame j > 0
    stands for pixel frame 4 * (j - 1) + 1 + c.
    """
    flags = torch.zeros(num_frames)
    flags[list(frames)] = 1.0
    return torch.cat([flags[:1].expand(4), flags[1:]]).view(-1, 4).T.contiguous()


def given_frames(pixels: Tensor, frames: Sequence[int]) -> Tensor:
    """A clip (F, H, W, 3) in [0, 1] of which only `frames` are kept; the others are mid grey."""
    kept = torch.full_like(pixels, MID_GREY)
    kept[list(frames)] = pixels[list(frames)]
    return kept


def with_mask(latent: Tensor, num_frames: int, frames: Sequence[int]) -> Tensor:
    """`Conditioning.channels` of one clip: 4 channels of the mask, then the latent (C, F, h, w) of `given_frames`."""
    mask = given_mask(num_frames, frames).to(latent.dtype)
    return torch.cat([mask[:, :, None, None].expand(-1, -1, *latent.shape[2:]), latent])


def stack_conditions(clips: Sequence[Mapping[str, Tensor]]) -> Conditioning | None:
    """The tensors of several clips, by name, as one float32 batch; None when there are none."""
    names = set(clips[0])
    if any(set(clip) != names for clip in clips):
        raise CacheError("Clips of one batch are conditioned on different tensors. Queue CacheLatents again.")
    if not names:
        return None
    stacked = {name: torch.stack([clip[name] for clip in clips]).float() for name in names}
    return dataclasses.replace(Conditioning(), **stacked)


def condition_misfits(tensors: Mapping[str, Tensor], latent_shape: Sequence[int] | None) -> str:
    """What is wrong with the sizes of a clip's tensors, or "". `latent_shape` (C, F, h, w) is the clip's, if known."""
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if len(shape) != _AXES[name] or 0 in shape:
            return f"its {name} have shape {list(shape)}, not {_AXES[name]} axes"
        wanted = _size_of(name, shape, latent_shape) if latent_shape is not None else shape
        if shape != wanted:
            return f"its {name} have shape {list(shape)}, the clip needs {list(wanted)}"
    return ""


_AXES = {"channels": 4, "image_tokens": 2, "vace": 4, "reference": 3, "camera": 4}
assert set(_AXES) == set(CONDITION_TENSORS)


def _size_of(name: str, shape: tuple[int, ...], latent_shape: Sequence[int]) -> tuple[int, ...]:
    _, frames, height, width = latent_shape
    sizes = {
        "channels": (shape[0], frames, height, width),
        "vace": (shape[0], frames, height, width),
        "reference": (shape[0], height, width),
        "camera": (shape[0], frames, 8 * height, 8 * width),
    }
    return sizes.get(name, shape)
