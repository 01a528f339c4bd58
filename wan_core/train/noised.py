"""A batch with noise on it: the inputs of the model, and which of its answers count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cache import Batch
from ..flow import add_noise, velocity_target
from ..model import Conditioning, Passage, sent


@dataclass(frozen=True)
class NoisedBatch:
    """One micro-batch as the model sees it, on the model's first device."""

    latent: Tensor
    """(B, C, F, H, W) float32, clean"""
    noise: Tensor
    noised: Tensor
    sigma: Tensor
    """(B,)"""
    text: Tensor
    """(B, L, D)"""
    conditioning: Conditioning | None = None
    given: Tensor | None = None
    """(B,) bool: latent frame 0 is the clean one (TI2V image-to-video); None when it is for none"""
    loss_mask: Tensor | None = None
    """(B, 1, F, H, W) weights of the loss; None when every value counts alike"""
    passages: tuple[Passage, ...] = ()
    """where a share of the tokens passes by layers while it is trained"""
    prior: tuple[float, ...] = ()
    """of each clip that is trained towards what the base model predicts, its weight in the loss, 0 of the others; ()
    when none is
    """

    def only(self, rows: Sequence[int]) -> NoisedBatch:
        """Returns the clips in those places; the batch itself where that is all of them."""
        if len(rows) == len(self.latent):
            return self
        places = sent(torch.tensor(rows), self.latent.device)
        tensors = {
            name: value.index_select(0, places)
            for name in ("latent", "noise", "noised", "sigma", "text", "given", "loss_mask")
            if (value := getattr(self, name)) is not None
        }
        conditioning = None if self.conditioning is None else self.conditioning.only(places)
        prior = tuple(self.prior[row] for row in rows) if self.prior else ()
        return replace(self, **tensors, conditioning=conditioning, prior=prior)

    @property
    def timestep(self) -> Tensor:
        """(B,), or (B, F) with 0 for given frames: one timestep per latent frame, as TI2V-5B is trained."""
        timestep = self.sigma * 1000
        if self.given is None:
            return timestep
        rows = timestep[:, None].repeat(1, self.latent.shape[2])
        rows[:, 0] = torch.where(self.given, 0.0, timestep)
        return rows

    @property
    def time_rows(self) -> int:
        """How many timesteps a clip has."""
        return 1 if self.given is None else self.latent.shape[2]

    @property
    def text_rows(self) -> int:
        """How many rows of text are computed for a clip."""
        return self.text.shape[1]

    @property
    def image_rows(self) -> int:
        """How many CLIP tokens a clip has; 0 for a model that reads no image."""
        image = self.conditioning.image_tokens if self.conditioning is not None else None
        return 0 if image is None else image.shape[1]

    @property
    def trained(self) -> Tensor | None:
        """(B, 1, F, 1, 1): 1 for latent frames whose prediction counts, 0 for given ones; None when all count. With a
        loss mask (B, 1, F, H, W), its weights, and 0 for given frames.
        """
        if self.given is None:
            return self.loss_mask
        weight = torch.ones(*self.latent.shape[:3:2], device=self.latent.device)
        weight[:, 0] = torch.where(self.given, 0.0, 1.0)
        frames = weight[:, None, :, None, None]
        return frames if self.loss_mask is None else frames * self.loss_mask


TargetFunction = Callable[[NoisedBatch], Tensor]
"""What the model should predict for a batch, (B, C, F, H, W)."""


def true_velocity(batch: NoisedBatch) -> Tensor:
    """The flow-matching target noise - latent."""
    return velocity_target(batch.latent, batch.noise)


def noise_batch(
    batch: Batch,
    noise: Tensor,
    sigma: Tensor,
    texts: Tensor,
    device: torch.device,
    given: Tensor | None = None,
    passages: tuple[Passage, ...] = (),
) -> NoisedBatch:
    """Noise `batch` on `device`: noise (B, C, F, H, W), sigma (B,), texts (B, L, D) in place of the batch's own.

    `given` (B,) bool on the CPU keeps the first latent frame of those samples clean.
    """
    latent, noise, sigma, texts = (sent(t, device) for t in (batch.latents, noise, sigma, texts))
    noised = add_noise(latent, noise, sigma)
    if given is not None and not bool(given.any()):
        given = None
    if given is not None:
        given = sent(given, device)
        noised[:, :, 0] = torch.where(given[:, None, None, None], latent[:, :, 0], noised[:, :, 0])
    conditioning = batch.conditioning.to(device) if batch.conditioning is not None else None
    mask = sent(batch.loss_mask, device) if batch.loss_mask is not None else None
    passages = tuple(passage._replace(kept=sent(passage.kept, device)) for passage in passages)
    return NoisedBatch(latent, noise, noised, sigma, texts, conditioning, given, mask, passages, batch.prior)
