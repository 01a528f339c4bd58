"""Classifier-free guidance, CFG-Zero* and skip-layer guidance."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConfigError
from ..flow import shift_sigma
from ..model import Conditioning, WanTransformer, lengthened


@dataclass(frozen=True)
class Guidance:
    """Settings of the negative pass and of skip-layer guidance."""

    batched: bool = False
    """True computes both passes in one batch: weights are read once, activations take twice the memory"""

    zero_star: bool = False
    """True for CFG-Zero*, which replaces the negative prediction by the positive one's projection onto it"""

    skip_layers: tuple[int, ...] = ()
    """blocks that skip-layer guidance skips; empty: no skip-layer guidance"""

    skip_in_negative: bool = False
    """True: blocks are skipped in the negative pass; False: in a third pass, with the prompt"""
    skip_scale: float = 3.0
    """weight of the third pass"""
    skip_from: float = 0.01
    skip_to: float = 0.15
    """blocks are skipped between these fractions (0 to 1) of the unshifted schedule"""

    def require_blocks(self, count: int) -> None:
        """Raises ConfigError for a block beyond the model's `count`."""
        if strange := sorted(number for number in self.skip_layers if number >= count):
            raise ConfigError(
                f"skip_layers {strange[0]}: this model has {count} blocks, 0 to {count - 1}. Name others."
            )

    def skips_at(self, sigma: float, shift: float) -> bool:
        """Returns whether blocks are skipped at this sigma; ComfyUI's percent_to_sigma converts the range."""
        return bool(self.skip_layers) and _level(self.skip_to, shift) <= sigma <= _level(self.skip_from, shift)


@dataclass(frozen=True)
class ModelInputs:
    """Model inputs and guidance, on the first device of the model."""

    text: Tensor
    """(B, L, D)"""
    negative_text: Tensor
    """(B, M, D)"""
    conditioning: Conditioning | None
    scale: float
    """guidance scale; 1 omits the negative pass"""
    shift: float
    guidance: Guidance


def guided_velocity(
    model: WanTransformer, latent: Tensor, timestep: Tensor, sigma: float, inputs: ModelInputs
) -> Tensor:
    """Returns the guided velocity (B, C, F, H, W) float32; latent (B, C, F, H, W), timestep (B,) or (B, F)."""
    guidance, conditioning = inputs.guidance, inputs.conditioning
    skips = guidance.skips_at(sigma, inputs.shift)
    in_negative = skips and guidance.skip_in_negative
    positive = velocity = None
    if inputs.scale == 1.0:
        positive = velocity = model(latent, timestep, inputs.text, conditioning)
    else:
        if guidance.batched and not in_negative:
            rows = max(inputs.text.shape[1], inputs.negative_text.shape[1])
            both = torch.cat([lengthened(text, rows) for text in (inputs.text, inputs.negative_text)])
            twice = conditioning.doubled() if conditioning is not None else None
            positive, negative = model(torch.cat([latent] * 2), torch.cat([timestep] * 2), both, twice).chunk(2)
        else:
            positive = model(latent, timestep, inputs.text, conditioning)
            with model.without_blocks(guidance.skip_layers) if in_negative else nullcontext():
                negative = model(latent, timestep, inputs.negative_text, conditioning and conditioning.silent())
        velocity = negative + inputs.scale * (positive - negative)
        if guidance.zero_star:
            velocity = velocity - _zero_star(latent, positive, negative, sigma, inputs.scale)
    if skips and not in_negative:
        with model.without_blocks(guidance.skip_layers):
            without = model(latent, timestep, inputs.text, conditioning)
        velocity = velocity + guidance.skip_scale * (positive - without)
    return velocity


def _zero_star(latent: Tensor, positive: Tensor, negative: Tensor, sigma: float, scale: float) -> Tensor:
    """Returns the correction of CFG-Zero* (Fan et al. 2025), as ComfyUI's node computes it.

    s* = <v+, v-> / |v-|^2 for each clip.
    """
    flat_positive, flat_negative = positive.flatten(1), negative.flatten(1)
    share = (flat_positive * flat_negative).sum(1) / (flat_negative.square().sum(1) + 1e-8 / sigma**2)
    share = share.view(-1, *([1] * (latent.ndim - 1)))
    # The paper scales the negative velocity v-; ComfyUI scales its clean clip latent - sigma v-.
    clean = latent - sigma * negative
    return (share - 1) * (1 - scale) * clean / sigma


def _level(share: float, shift: float) -> float:
    return float(shift_sigma(torch.tensor(1 - share, dtype=torch.float64), shift))
