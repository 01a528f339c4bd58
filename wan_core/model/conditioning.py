"""Names each variant's inputs beside noised latent, timestep and text, and refuses those that do not fit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..errors import ConfigError
from .shape import WanShape


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns `tensor` (any shape) on `device`, without waiting where nobody can notice.

    Towards an accelerator the copy stands in the same queue as the work behind it; towards the CPU the values would be
    read before they are there.
    """
    return tensor.to(device, non_blocking=device.type != "cpu")


@dataclass(frozen=True, kw_only=True)
class Conditioning:
    """Tensors of one batch, any float dtype; a field that the variant does not read stays None.

    Shapes: B batch, F latent frames, H and W latent height and width.
    """

    channels: Tensor | None = None
    """(B, C, F, H, W), put behind the latent's channels. I2V and FLF2V: 4 of the mask, 16 of the encoded frames"""
    image_tokens: Tensor | None = None
    """(B, 257, 1280) CLIP vision tokens of the first frame; FLF2V (B, 514, 1280), first frame then last"""
    vace: Tensor | None = None
    """(B, 96, F, H, W): 16 inactive latent, 16 reactive latent, 64 mask"""
    vace_strength: float = 1.0
    """what the hints are multiplied with"""
    reference: Tensor | None = None
    """(B, 16, H, W) latent of a reference image (Fun models with `ref_conv`); optional, without it no frame is added"""
    camera: Tensor | None = None
    """(B, 24, F, 8 H, 8 W) Pluecker rays at pixel size, four frames folded into channels (Fun-Control-Camera)"""

    def to(self, device: torch.device) -> Conditioning:
        """Returns the same tensors on `device`."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: sent(value, device) for name, value in values if isinstance(value, Tensor)})

    def only(self, places: Tensor) -> Conditioning:
        """Returns the clips in those places (K,) int64 of the batch."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        chosen = {name: value.index_select(0, places) for name, value in values if isinstance(value, Tensor)}
        return replace(self, **chosen)

    def doubled(self) -> Conditioning:
        """Returns the same tensors twice along the batch, for two predictions in one pass."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: torch.cat([value] * 2) for name, value in values if isinstance(value, Tensor)})


def check_conditioning(shape: WanShape, latent: Tensor, timestep: Tensor, text: Tensor, given: Conditioning) -> None:
    """Raises ConfigError, in one sentence, when the model's inputs are missing, superfluous or of the wrong size.

    CLIP tokens for an image-to-video model without `img_emb` (2.2 I2V) are the one exception: it ignores them, as
    official Wan does, so that one data set serves 2.1 and 2.2. Looks at shapes only, never at values.
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
    ray = shape.camera_stride
    _expect("channels", given.channels, (batch, shape.condition_channels, frames, height, width))
    _expect("vace", given.vace, (batch, shape.vace_channels if shape.vace_layers else 0, frames, height, width))
    _expect("camera", given.camera, (batch, shape.camera_channels, frames, height * ray, width * ray))
    if given.reference is not None:
        _expect("reference", given.reference, (batch, shape.reference_channels, height, width))
    _check_image_tokens(shape, batch, given.image_tokens)


_WHAT = {
    "channels": "condition channels (mask and encoded frames, or a control video)",
    "vace": "VACE frames and masks",
    "camera": "camera rays",
    "reference": "a reference image",
}


def _expect(name: str, given: Tensor | None, wanted: tuple[int, ...]) -> None:
    """Refuses unless `given` exists exactly when the model has channels for it (`wanted[1]`), in exactly this size."""
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
            "This model needs CLIP vision tokens of the first frame and the data has none. "
            "Wire a CLIP_VISION model into Cache Latents + Captions and encode again, or choose a Wan 2.2 "
            "image-to-video model."
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


def _sizes(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
