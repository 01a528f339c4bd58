"""What a variant reads besides the noised latent, the timestep and the text."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

__all__ = ["Conditioning"]


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
    reference: Tensor | None = None
    """(B, 16, H, W) latent of a reference image (Fun models with `ref_conv`)"""
    camera: Tensor | None = None
    """(B, 24, F, 8 H, 8 W) Pluecker rays at pixel size, four frames folded into channels (Fun-Control-Camera)"""

    def to(self, device: torch.device) -> Conditioning:
        """The same on `device`."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{name: value.to(device) for name, value in values if isinstance(value, Tensor)})
