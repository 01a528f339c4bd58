"""Converts core LATENT and CONDITIONING to the engine's clips; raw latents are normalised here.

As in a sampler, image latents are normalised in groups of the VAE's channels, and masks are 1 for given frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...wan_core.checkpoint import WanVariant
from ...wan_core.errors import DatasetError
from ...wan_core.importers import TensorClip, checked_text
from ...wan_core.model import FRAMES_BEFORE, WHISPER_WINDOW, ConditionKind, condition_named
from ...wan_core.model.conditioning import STREAMS
from .sockets import ordinary

_MASK_CHANNELS = 4
_CONTEXT = "context_latents"
"""key of Bernini's context streams in a CONDITIONING"""


def kind_given(conditioning: Sequence[Any], variant: WanVariant) -> ConditionKind:
    """Returns the condition that `read_clips` reads: context streams if a clip for a text-to-video model has some."""
    given = any(values.get(_CONTEXT) for cond in conditioning for _, values in cond)
    return condition_named("context") if given and variant.family.context else variant.conditioning


def read_clips(latents: Sequence[Any], conditioning: Sequence[Any], variant: WanVariant) -> Iterator[TensorClip]:
    """Yields the clips of LATENTs with their text and conditions for `variant`, converted one at a time.

    There is either one CONDITIONING for each LATENT, with one prompt for the batch or one for each clip (as core
    ResolutionBucket groups them), or one CONDITIONING for each clip. Raises DatasetError for other numbers, before the
    first clip.
    """
    batches = [_samples(latent, number) for number, latent in enumerate(latents, 1)]
    raw = [clip for batch in batches for clip in batch]
    if len(conditioning) == len(batches):
        texts = [text for cond, batch in zip(conditioning, batches, strict=True) for text in _texts(cond, len(batch))]
    else:
        texts = [(cond, 0) for cond in conditioning]
    if not raw or len(texts) != len(raw):
        raise DatasetError(
            f"There are {len(raw)} latents and {len(conditioning)} texts. Connect one CONDITIONING for each latent, "
            "in the same order."
        )
    kind = kind_given(conditioning, variant)
    return (
        _clip(clip, cond, place, f"latent {number}", variant, kind)
        for number, (clip, (cond, place)) in enumerate(zip(raw, texts, strict=True), 1)
    )


def text_features(conditioning: Any, name: str) -> Tensor:
    """Returns features (L, 4096) float32 without padding. Raises DatasetError for features that umT5 cannot make."""
    tensor, values = _entry(conditioning, name)
    if values.get("pooled_output") is not None:
        raise DatasetError(
            f"The text of {name} was not encoded by umT5 (it has a pooled output). Set type of Load CLIP to wan and "
            "load umt5_xxl."
        )
    if tensor.ndim != 3 or len(tensor) != 1:
        raise DatasetError(f"The text of {name} has shape {list(tensor.shape)}; one prompt is (1, tokens, 4096).")
    return ordinary(checked_text(tensor, name))


def _texts(conditioning: Any, clips: int) -> list[tuple[Any, int]]:
    """Returns for each clip of a batch its CONDITIONING, and the clip's row in the CONDITIONING's tensors."""
    if len(conditioning) == clips > 1:
        return [([entry], 0) for entry in conditioning]
    return [(conditioning, place) for place in range(clips)]


def _samples(latent: Any, number: int) -> Tensor:
    samples = latent.get("samples") if isinstance(latent, dict) else None
    if not isinstance(samples, Tensor) or samples.ndim != 5:
        shape = list(samples.shape) if isinstance(samples, Tensor) else "none"
        raise DatasetError(
            f"LATENT {number} has shape {shape}; a Wan latent is (batch, channels, frames, height, width). Encode "
            "images with VAEEncode and a Wan VAE."
        )
    return samples


def _clip(
    raw: Tensor, conditioning: Any, place: int, name: str, variant: WanVariant, kind: ConditionKind
) -> TensorClip:
    space = variant.latents
    if raw.shape[0] != space.channels:
        raise DatasetError(
            f"{name} has {raw.shape[0]} channels, {variant.name} needs {space.channels}. Encode with the VAE that "
            "belongs to the model."
        )
    _, values = _entry(conditioning, name)
    streams = values.get(_CONTEXT) or ()
    _check_streams(streams, name, variant, kind)
    optional = [field for field in kind.optional if field in _OPTIONAL and values.get(_OPTIONAL[field]) is not None]
    fields = (*kind.tensors, *(kind.optional[: len(streams) - 1] if streams else optional))
    given = _Given(values, place, raw.shape[1:], name, variant)
    return TensorClip(
        latent=ordinary(space.normalise(raw.cpu())),
        text=text_features(conditioning, name),
        name=name,
        condition={field: ordinary(_READ[field](given)) for field in fields},
    )


def _entry(conditioning: Any, name: str) -> tuple[Tensor, dict[str, Any]]:
    if len(conditioning) != 1:
        raise DatasetError(
            f"The CONDITIONING of {name} holds {len(conditioning)} prompts. Use one prompt for each clip, without "
            "ConditioningCombine."
        )
    tensor, values = conditioning[0]
    return tensor, values


@dataclass(frozen=True)
class _Given:
    """The values of a CONDITIONING for one clip."""

    values: dict[str, Any]
    place: int
    """row of the clip in batches"""
    size: Sequence[int]
    """latent frames, height and width of the clip"""
    name: str
    variant: WanVariant

    @property
    def node(self) -> str:
        """The core node that makes the conditions of this model."""
        shape = self.variant.shape
        if shape.sound_channels or shape.whisper_channels:
            return "WanSoundImageToVideo" if shape.sound_channels else "WanHuMoImageToVideo"
        return "WanAnimateToVideo" if self.variant.conditioning.leading_frames else "WanSCAILToVideo"

    def needed(self, key: str, wired: str = "", node: str = "") -> Any:
        """Returns the value of a key, which the input `wired` of `node` sets. Raises DatasetError if it is missing."""
        if (found := self.values.get(key)) is None:
            remedy = f"Send it through {node or self.node}{f' with {wired}' if wired else ''}."
            raise DatasetError(
                f"The CONDITIONING of {self.name} has no {key}, and {self.variant.name} reads it. {remedy}"
            )
        return found

    def row(self, batch: Tensor) -> Tensor:
        """Returns the clip's row in float32 on the CPU; a batch of one applies to all clips."""
        return batch[self.place if len(batch) > self.place else -1].float().cpu()

    def latent(self, batch: Tensor) -> Tensor:
        """Returns the clip's row of raw latents, normalised; several images are concatenated along the channels."""
        images, step = self.row(batch), self.variant.latents.channels
        if images.shape[0] % step:
            raise DatasetError(f"Image latents have {images.shape[0]} channels; they must be a multiple of {step}.")
        return torch.cat([self.variant.latents.normalise(part) for part in images.split(step)])


def _channels(given: _Given) -> Tensor:
    """Returns the channels concatenated to the noised latent: a mask if the model has one, then image latents."""
    wanted = given.variant.shape.condition_channels
    image = given.needed("concat_latent_image", node="WanImageToVideo or the node of its kind")
    if given.values.get("concat_mask_index"):
        raise DatasetError(
            f"The CONDITIONING of {given.name} has its mask among the image latents. Use a node that outputs the mask "
            "separately."
        )
    image = given.latent(image)
    if image.shape[0] == wanted:
        return image
    if image.shape[0] + _MASK_CHANNELS != wanted:
        raise DatasetError(
            f"The image latents of {given.name} have {image.shape[0]} channels, {given.variant.name} reads {wanted}. "
            "Use the conditioning node made for this model."
        )
    return torch.cat([_mask(given, image), image])


def _mask(given: _Given, image: Tensor) -> Tensor:
    """Returns (4, F, h, w) for image latents (C, F, h, w), 1 where a frame is given."""
    mask = given.values.get("concat_mask")
    if mask is None:
        return torch.zeros(_MASK_CHANNELS, *image.shape[1:])
    kept = 1.0 - given.row(mask)  # ComfyUI's masks are 0 where a frame is given
    # ComfyUI's mask often has one channel in place of four, and fewer frames than the clip.
    if kept.shape[0] != _MASK_CHANNELS:
        kept = kept.mean(0, keepdim=True).expand(_MASK_CHANNELS, -1, -1, -1)
    missing = image.shape[1] - kept.shape[1]
    return torch.nn.functional.pad(kept, (0, 0, 0, 0, 0, missing)) if missing > 0 else kept


def _image_tokens(given: _Given) -> Tensor:
    wired = "clip_vision_output of CLIPVisionEncode"
    output = given.needed("clip_vision_output", wired, "the conditioning node")
    return given.row(output["penultimate_hidden_states"])


def _vace(given: _Given) -> Tensor:
    frames, masks = given.values.get("vace_frames") or [], given.values.get("vace_mask") or []
    if len(frames) != 1 or len(masks) != 1:
        raise DatasetError(
            f"The CONDITIONING of {given.name} holds {len(frames)} VACE inputs; only one is supported. Send it through "
            "WanVaceToVideo once."
        )
    return torch.cat([given.latent(frames[0]), given.row(masks[0])])


def _check_streams(streams: Sequence[Tensor], name: str, variant: WanVariant, kind: ConditionKind) -> None:
    """Refuses context streams (BerniniConditioning) that are missing, too many or not for this model."""
    if streams and not kind.in_context:
        raise DatasetError(
            f"The CONDITIONING of {name} has context streams (BerniniConditioning), which {variant.name} does not "
            "read. Choose a text-to-video model such as Bernini-R."
        )
    if kind.in_context and not streams:
        raise DatasetError(
            f"The CONDITIONING of {name} has no context streams, but other clips have some. Send every clip through "
            "BerniniConditioning with a source or a reference, or none."
        )
    if len(streams) > len(STREAMS):
        raise DatasetError(f"{name} has {len(streams)} context streams. Give at most {len(STREAMS)}.")
    for number, stream in enumerate(streams, 1):
        if stream.ndim != 5 or stream.shape[1] != variant.latents.channels:
            raise DatasetError(
                f"Context stream {number} of {name} has shape {list(stream.shape)}; {variant.name} reads "
                f"(batch, {variant.latents.channels}, frames, height, width). Use the VAE that belongs to the model."
            )


def _pose(given: _Given) -> Tensor:
    """Returns the latent of a pose video, (16, F, h, w); SCAIL's is of half the size."""
    return given.latent(given.needed("pose_video_latent", "pose_video"))


def _references(given: _Given) -> Tensor:
    hears = given.variant.shape.whisper_channels > 0
    images = given.needed("reference_latents", "ref_image" if hears else "reference_image")
    return torch.cat([given.latent(image) for image in (images[-1:] if hears else images)], dim=1)  # as ComfyUI's HuMo


def _sound_of(given: _Given, found: Tensor, wanted: list[int], encoder: str) -> Tensor:
    if list(found.shape) != wanted:
        raise DatasetError(
            f"The sound of {given.name} has shape {list(found.shape)}; {given.variant.name} reads {wanted}. Give "
            f"{given.node} the length of the clip and the output of AudioEncoderEncode with {encoder}."
        )
    return found


def _whisper(given: _Given) -> Tensor:
    """Returns the features of the sound around each latent frame, (F, 8, 5, 1280)."""
    found = given.row(given.needed("audio_embed", "audio_encoder_output"))
    if not found.any():
        found = found[: given.size[0]]  # without sound, the node gives a frame too many
    wanted = [given.size[0], *WHISPER_WINDOW, given.variant.shape.whisper_channels]
    return _sound_of(given, found, wanted, "whisper_large_v3")


def _sound(given: _Given) -> Tensor:
    """Returns the features of the sound, (layers, C, 4 F), without those after the end of the clip, as in ComfyUI."""
    shape, length = given.variant.shape, 4 * given.size[0]
    found = given.row(given.needed("audio_embed", "audio_encoder_output"))[..., :length]
    return _sound_of(given, found, [shape.sound_depth, shape.sound_channels, length], "wav2vec2_large")


def _reference(given: _Given) -> Tensor:
    """Returns the latent of the reference image, (16, h, w); of several images ComfyUI too reads the last."""
    image = given.latent(given.values["reference_latents"][-1])
    if image.shape[1] != 1:
        raise DatasetError(
            f"The reference of {given.name} has {image.shape[1]} latent frames. Give one image as ref_image."
        )
    return image[:, 0]


def _frames_before(given: _Given) -> Tensor:
    """Returns the latent of the frames before the clip, (16, 19, h, w), zeros before the first one."""
    if any(side % 8 for side in given.size[1:]):
        raise DatasetError(
            f"{given.name} has frames before it (ref_motion), whose width and height must be multiples of 64. Crop the "
            "clips to such a size, or leave ref_motion out."
        )
    found = given.latent(given.values["reference_motion"])[:, -FRAMES_BEFORE:]
    return torch.nn.functional.pad(found, (0, 0, 0, 0, FRAMES_BEFORE - found.shape[1], 0))


def _reference_masks(given: _Given) -> Tensor:
    """Returns the masks (28, R, h, w) of references, the primary one first; ComfyUI stores it last, zeros behind it."""
    masks = given.row(given.needed("ref_mask_28ch", "reference_image_mask"))
    return masks[: len(masks) - given.size[0]].roll(1, dims=0).movedim(1, 0)


_READ: dict[str, Callable[[_Given], Tensor]] = {
    "channels": _channels,
    "image_tokens": _image_tokens,
    "vace": _vace,
    "camera": lambda given: given.row(given.needed("camera_conditions", node="WanCameraImageToVideo")),
    "references": _references,
    "pose": _pose,
    "face": lambda given: given.row(given.needed("face_video_pixels", "face_video")),
    "whisper": _whisper,
    "sound": _sound,
    "pose_video": lambda given: given.latent(given.needed("control_video", "control_video")),
    "reference": _reference,
    "frames_before": _frames_before,
    "pose_stream": _pose,
    "reference_masks": _reference_masks,
    "pose_masks": lambda given: given.row(given.needed("driving_mask_28ch", "pose_video_mask")).movedim(1, 0),
    "replaces": lambda given: torch.tensor([float(not given.values.get("ref_mask_flag", True))]),
    **{name: lambda given, at=at: given.latent(given.values[_CONTEXT][at]) for at, name in enumerate(STREAMS)},
}
_OPTIONAL = {"reference": "reference_latents", "frames_before": "reference_motion"}
"""optional tensors and their keys in a CONDITIONING"""
