"""Converts core LATENT and CONDITIONING to the engine's clips; raw latents are normalised here.

As in a sampler, image latents are normalised in groups of the VAE's channels, and masks are 1 for given frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
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
            f"The text of {name} was not encoded by umT5 (it has a pooled output). Set type of "
            "Load CLIP to "
            "wan and load umt5_xxl."
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
    return TensorClip(
        latent=ordinary(space.normalise(raw.cpu())),
        text=text_features(conditioning, name),
        name=name,
        condition={field: _READ[field](values, place, raw, name, variant) for field in fields},
    )


def _entry(conditioning: Any, name: str) -> tuple[Tensor, dict[str, Any]]:
    if len(conditioning) != 1:
        raise DatasetError(
            f"The CONDITIONING of {name} holds {len(conditioning)} prompts. Use one prompt for each clip, without "
            "ConditioningCombine."
        )
    tensor, values = conditioning[0]
    return tensor, values


def _channels(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the channels concatenated to the noised latent: a mask if the model has one, then image latents."""
    wanted = variant.shape.condition_channels
    image = values.get("concat_latent_image")
    if image is None:
        raise DatasetError(
            f"The CONDITIONING of {name} has no image latents (concat_latent_image), and {variant.name} reads them. "
            "Send it through WanImageToVideo or the node of its kind first."
        )
    if values.get("concat_mask_index"):
        raise DatasetError(
            f"The CONDITIONING of {name} has its mask among the image latents. Use a node that outputs the mask "
            "separately."
        )
    image = _normalised(_one(image, place), variant)
    if image.shape[0] == wanted:
        return ordinary(image)
    if image.shape[0] + _MASK_CHANNELS != wanted:
        raise DatasetError(
            f"The image latents of {name} have {image.shape[0]} channels, {variant.name} reads {wanted}. Use the "
            "conditioning node made for this model."
        )
    return ordinary(torch.cat([_mask(values.get("concat_mask"), place, image), image]))


def _mask(mask: Tensor | None, place: int, image: Tensor) -> Tensor:
    """Returns (4, F, h, w) for image latents (C, F, h, w), 1 where a frame is given."""
    if mask is None:
        return torch.zeros(_MASK_CHANNELS, *image.shape[1:])
    given = 1.0 - _one(mask, place).float().cpu()  # ComfyUI's masks are 0 where a frame is given
    # ComfyUI's mask often has one channel in place of four, and fewer frames than the clip.
    if given.shape[0] != _MASK_CHANNELS:
        given = given.mean(0, keepdim=True).expand(_MASK_CHANNELS, -1, -1, -1)
    missing = image.shape[1] - given.shape[1]
    return torch.nn.functional.pad(given, (0, 0, 0, 0, 0, missing)) if missing > 0 else given


def _image_tokens(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    output = values.get("clip_vision_output")
    if output is None:
        raise DatasetError(
            f"The CONDITIONING of {name} has no CLIP vision output, and {variant.name} reads it. Connect "
            "CLIPVisionEncode to the conditioning node."
        )
    return ordinary(_one(output["penultimate_hidden_states"], place))


def _vace(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    frames, masks = values.get("vace_frames") or [], values.get("vace_mask") or []
    if len(frames) != 1 or len(masks) != 1:
        raise DatasetError(
            f"The CONDITIONING of {name} holds {len(frames)} VACE inputs; only one is supported. Send it through "
            "WanVaceToVideo once."
        )
    return ordinary(torch.cat([_normalised(_one(frames[0], place), variant), _one(masks[0], place).float().cpu()]))


def _camera(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    rays = values.get("camera_conditions")
    if rays is None:
        raise DatasetError(
            f"The CONDITIONING of {name} has no camera path, and {variant.name} reads one. Send it through "
            "WanCameraImageToVideo."
        )
    return ordinary(_one(rays, place))


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


def _stream(index: int, values: dict[str, Any], place: int, _raw: Tensor, _name: str, variant: WanVariant) -> Tensor:
    return ordinary(_normalised(_one(values[_CONTEXT][index], place), variant))


def _pose(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the latent of a pose video, (16, F, h, w); SCAIL's is of half the size."""
    return ordinary(_normalised(_one(_wired(values, "pose_video_latent", "pose_video", name, variant), place), variant))


def _face(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the pixels of the face video, (3, T, 512, 512) in [-1, 1]."""
    return ordinary(_one(_wired(values, "face_video_pixels", "face_video", name, variant), place))


def _references(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    hears = variant.shape.whisper_channels > 0
    images = _wired(values, "reference_latents", "ref_image" if hears else "reference_image", name, variant)
    images = images[-1:] if hears else images  # as ComfyUI's HuMo reads them
    return ordinary(torch.cat([_normalised(_one(image, place), variant) for image in images], dim=1))


def _whisper(values: dict[str, Any], place: int, raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the features of the sound around each latent frame, (F, 8, 5, 1280)."""
    found = _one(_wired(values, "audio_embed", "audio_encoder_output", name, variant), place)
    if not found.any():
        found = found[: raw.shape[1]]  # without sound, the node gives a frame too many
    wanted = (raw.shape[1], *WHISPER_WINDOW, variant.shape.whisper_channels)
    if tuple(found.shape) != wanted:
        raise DatasetError(
            f"The sound of {name} has shape {list(found.shape)}; {variant.name} reads {list(wanted)}. Give "
            "WanHuMoImageToVideo the length of the clip and the output of AudioEncoderEncode with whisper_large_v3."
        )
    return ordinary(found)


def _sound(values: dict[str, Any], place: int, raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the features of the sound, (layers, C, 4 F), without those after the end of the clip, as in ComfyUI."""
    found = _one(_wired(values, "audio_embed", "audio_encoder_output", name, variant), place)[..., : 4 * raw.shape[1]]
    wanted = [variant.shape.sound_depth, variant.shape.sound_channels, 4 * raw.shape[1]]
    if list(found.shape) != wanted:
        raise DatasetError(
            f"The sound of {name} has shape {list(found.shape)}; {variant.name} reads {wanted}. Give "
            "WanSoundImageToVideo the length of the clip and the output of AudioEncoderEncode with wav2vec2_large."
        )
    return ordinary(found.float().cpu())


def _pose_video(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    return ordinary(_normalised(_one(_wired(values, "control_video", "control_video", name, variant), place), variant))


def _reference(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the latent of the reference image, (16, h, w); of several images ComfyUI too reads the last."""
    image = _normalised(_one(values["reference_latents"][-1], place), variant)
    if image.shape[1] != 1:
        raise DatasetError(f"The reference of {name} has {image.shape[1]} latent frames. Give one image as ref_image.")
    return ordinary(image[:, 0])


def _frames_before(values: dict[str, Any], place: int, raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the latent of the frames before the clip, (16, 19, h, w), zeros before the first one."""
    if raw.shape[2] % 8 or raw.shape[3] % 8:
        raise DatasetError(
            f"{name} has frames before it (ref_motion), whose width and height must be multiples of 64. Crop the clips "
            "to such a size, or leave ref_motion out."
        )
    found = _normalised(_one(values["reference_motion"], place), variant)[:, -FRAMES_BEFORE:]
    return ordinary(torch.nn.functional.pad(found, (0, 0, 0, 0, FRAMES_BEFORE - found.shape[1], 0)))


def _reference_masks(values: dict[str, Any], place: int, raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    """Returns the masks (28, R, h, w) of references, the primary one first; ComfyUI stores it last, zeros behind it."""
    masks = _one(_wired(values, "ref_mask_28ch", "reference_image_mask", name, variant), place)
    return ordinary(masks[: len(masks) - raw.shape[1]].roll(1, dims=0).movedim(1, 0).float().cpu())


def _pose_masks(values: dict[str, Any], place: int, _raw: Tensor, name: str, variant: WanVariant) -> Tensor:
    masks = _one(_wired(values, "driving_mask_28ch", "pose_video_mask", name, variant), place)
    return ordinary(masks.movedim(1, 0).float().cpu())


def _replaces(values: dict[str, Any], _place: int, _raw: Tensor, _name: str, _variant: WanVariant) -> Tensor:
    return torch.tensor([float(not values.get("ref_mask_flag", True))])


def _wired(values: dict[str, Any], key: str, wired: str, name: str, variant: WanVariant) -> Any:
    found = values.get(key)
    if found is None:
        node = "WanAnimateToVideo" if variant.conditioning.leading_frames else "WanSCAILToVideo"
        node = "WanHuMoImageToVideo" if variant.shape.whisper_channels else node
        node = "WanSoundImageToVideo" if variant.shape.sound_channels else node
        raise DatasetError(
            f"The CONDITIONING of {name} has no {key}, and {variant.name} reads it. Send it through {node} "
            f"with {wired}."
        )
    return found


_READ = {
    "channels": _channels,
    "image_tokens": _image_tokens,
    "vace": _vace,
    "camera": _camera,
    "references": _references,
    "pose": _pose,
    "face": _face,
    "whisper": _whisper,
    "sound": _sound,
    "pose_video": _pose_video,
    "reference": _reference,
    "frames_before": _frames_before,
    "pose_stream": _pose,
    "reference_masks": _reference_masks,
    "pose_masks": _pose_masks,
    "replaces": _replaces,
    **{stream: partial(_stream, index) for index, stream in enumerate(STREAMS)},
}
_OPTIONAL = {"reference": "reference_latents", "frames_before": "reference_motion"}
"""optional tensors and their keys in a CONDITIONING"""


def _one(batch: Tensor, place: int) -> Tensor:
    """Returns the row of the clip at `place`; a batch of one applies to all clips."""
    return batch[place if len(batch) > place else -1]


def _normalised(images: Tensor, variant: WanVariant) -> Tensor:
    """Normalises raw latents of several images that are concatenated along the channels."""
    step = variant.latents.channels
    if images.shape[0] % step:
        raise DatasetError(f"Image latents have {images.shape[0]} channels; they must be a multiple of {step}.")
    return torch.cat([variant.latents.normalise(part) for part in images.float().cpu().split(step)])
