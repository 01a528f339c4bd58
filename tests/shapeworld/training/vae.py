"""Train the demo VAE: crops of the wide world first, whole frames last.

A crop of 32 pixels is a quarter of the work of a frame and mostly shape, where a frame is mostly background.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..wan_vae import TrainableVae
from .clips import any_clips
from .muon import ConvMuon


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One stretch of training; optimizers start afresh."""

    steps: int
    clips: int
    """per step, nine frames each"""
    size: int
    """pixels"""
    lr: float
    cosine_steps: int = 0
    """the learning rate follows the start of a cosine of this length; 0 = falls in a line to zero"""

    def rate(self, step: int) -> float:
        cosine, line = self.cosine_steps, 1 - step / self.steps
        left = 0.5 + 0.5 * math.cos(math.pi * step / cosine) if cosine else line
        return self.lr * min(1, (step + 1) / 50) * left + 1e-5


@dataclass(frozen=True, kw_only=True)
class VaeJob:
    """One training."""

    dim: int = 16
    legs: tuple[Leg, ...] = (
        Leg(steps=2750, clips=5, size=32, lr=2e-3, cosine_steps=6400),
        Leg(steps=500, clips=3, size=64, lr=1.2e-3),
    )
    noise: float = 0.1
    """standard deviation of what is added to the latent, so that the decoder forgives a generator's errors"""
    seed: int = 1


@torch.no_grad()
def new_vae(dim: int) -> TrainableVae:
    """Before training: residual branches nearly silent, and every change of size first of all hands its input on."""
    model = TrainableVae(dim)
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            value.zero_()
        elif value.ndim >= 4 and "gamma" not in name:
            value.normal_(0, value[0].numel() ** -0.5)
            if name.endswith(("residual.6.weight", "proj.weight")):
                value.mul_(0.1)
            if "resample" in name or "time_conv" in name or "shortcut" in name:
                value.mul_(0.3)
                for part in value.chunk(2) if "time_conv" in name and "decoder" in name else (value,):
                    _add_identity(part)
    return model


def _add_identity(weight: Tensor) -> None:
    """One at the kernel's centre, the newest frame in time, for every channel that has a partner."""
    centre = [size // 2 for size in weight.shape[2:]]
    if weight.ndim == 5 and weight.shape[2] == 3:
        centre[0] = 2
    for channel in range(min(weight.shape[:2])):
        weight[(channel, channel, *centre)] += 1


def train_vae(job: VaeJob, report: Callable[[int, float, TrainableVae], None]) -> TrainableVae:
    """bfloat16 arithmetic (autocast), float32 weights; `report` is told every step and its loss."""
    torch.manual_seed(job.seed)
    model = new_vae(job.dim)
    done = 0
    for number, leg in enumerate(job.legs):
        if number:
            torch.manual_seed(job.seed + number)

        def tell(step: int, loss: float, before: int = done) -> None:
            report(before + step, loss, model)

        train_leg(model, leg, job.noise, job.seed + number, tell)
        done += leg.steps
    return model


def train_leg(model: TrainableVae, leg: Leg, noise: float, seed: int, report: Callable[[int, float], None]) -> None:
    rng = random.Random(seed)
    convs = [weight for weight in model.parameters() if weight.ndim >= 4 and weight.shape[1] > 1]
    known = {id(weight) for weight in convs}
    rest = [weight for weight in model.parameters() if id(weight) not in known]
    optimizers = [ConvMuon(convs, leg.lr), torch.optim.AdamW(rest, lr=leg.lr, betas=(0.9, 0.95), weight_decay=0.0)]
    for step in range(leg.steps):
        clips = any_clips(rng, leg.clips, 9, leg.size)
        with torch.autocast("cpu", torch.bfloat16):
            latent = model.encode(clips)
            seen = model.decode(latent.float() + noise * torch.randn(latent.shape))
        error = seen.float() - clips
        loss = error.abs().mean() + error.square().mean() + 0.02 * _moments(latent.float())
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = leg.rate(step)
            optimizer.step()
        report(step + 1, float(loss.detach()))


def _moments(latent: Tensor) -> Tensor:
    """How far each channel of a normalised latent is from mean 0, std 1."""
    flat = latent.transpose(0, 1).flatten(1)
    return flat.mean(1).square().mean() + (flat.std(1) - 1).square().mean()


@torch.no_grad()
def psnr(model: TrainableVae, clips: Tensor) -> float:
    """Mean over clips (N, 3, T, H, W) of 10 log10(1 / mse), pixels in 0..1, in decibels."""
    seen = torch.cat([model.decode(model.encode(clip[None])).clamp(-1, 1) for clip in clips])
    errors = ((seen - clips) / 2).square().flatten(1).mean(1)
    return float((-10 * errors.log10()).mean())
