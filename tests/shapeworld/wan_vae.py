"""The Wan 2.1 VAE in the form that trains: whole clips at once, official state-dict names.

ComfyUI's class (and the official one) walks a clip in chunks and carries a cache of two frames through every causal
convolution. Over a whole clip that is the same as padding each convolution with two zero frames in front, which is
what stands here; tests/shapeworld/test_wan_vae.py holds both to each other. train_demo_models.py alone needs it:
users' VAEs are always ComfyUI's.

Shapes: B batch, T pixel frames (4n + 1), F = n + 1 latent frames, z = 16 latent channels.
Source of the maths: Wan2.1 vae.py.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

Z = 16
MULTIPLIERS = (1, 2, 4, 4)
SHRINKS_TIME = (False, True, True)

# Per-channel constants by which every Wan 2.1 latent is normalised (ComfyUI: latent_formats.Wan21).
LATENT_MEAN = (
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
    0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
)  # fmt: skip
LATENT_STD = (
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
)  # fmt: skip


def latent_shift_and_scale() -> tuple[Tensor, Tensor]:
    """mean and std, each (1, 16, 1, 1, 1)."""
    return tuple(torch.tensor(values).view(1, Z, 1, 1, 1) for values in (LATENT_MEAN, LATENT_STD))


class CausalConv(nn.Conv3d):
    """3-d convolution that sees only the past: `kernel - 1` zero frames in front."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int | tuple[int, int, int]) -> None:
        sizes = (kernel,) * 3 if isinstance(kernel, int) else kernel
        super().__init__(channels_in, channels_out, sizes, padding=(0, sizes[1] // 2, sizes[2] // 2))
        self.past = sizes[0] - 1

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.pad(x, (0, 0, 0, 0, self.past, 0)) if self.past else x)


class ChannelNorm(nn.Module):
    """x / rms(x over channels) * gamma."""

    def __init__(self, channels: int, ndim: int = 5) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *[1] * (ndim - 2)))

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-12) * self.gamma)


class Residual(nn.Module):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            ChannelNorm(channels_in), nn.SiLU(), CausalConv(channels_in, channels_out, 3),
            ChannelNorm(channels_out), nn.SiLU(), nn.Dropout(0.0), CausalConv(channels_out, channels_out, 3),
        )  # fmt: skip
        self.shortcut = nn.Identity() if channels_in == channels_out else CausalConv(channels_in, channels_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.residual(x)


class FrameAttention(nn.Module):
    """One head of self-attention inside each frame."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels, ndim=4)
        self.to_qkv = nn.Conv2d(channels, channels * 3, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, frames, height, width = x.shape
        flat = _frames_out(x)
        query, key, value = self.to_qkv(self.norm(flat)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, dim=-1)
        attended = functional.scaled_dot_product_attention(query, key, value)
        attended = attended.squeeze(1).transpose(1, 2).reshape(batch * frames, channels, height, width)
        return x + _frames_back(self.proj(attended), frames)


def _frames_out(x: Tensor) -> Tensor:
    """(B, C, T, H, W) -> (B * T, C, H, W)"""
    return x.transpose(1, 2).flatten(0, 1)


def _frames_back(x: Tensor, frames: int) -> Tensor:
    """(B * T, C, H, W) -> (B, C, T, H, W)"""
    return x.unflatten(0, (-1, frames)).transpose(1, 2)


class Shrink(nn.Module):
    """Half the height and width; with `time`, also 1 + 2n frames to 1 + n."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(channels, channels, 3, stride=2))
        if time:
            self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1))
        self.time = time

    def forward(self, x: Tensor) -> Tensor:
        x = _frames_back(self.resample(_frames_out(x)), x.shape[2])
        if not self.time or x.shape[2] == 1:
            return x
        return torch.cat([x[:, :, :1], self.time_conv(x)], dim=2)  # the first frame stays as it is


class Grow(nn.Module):
    """Twice the height and width, half the channels; with `time`, also 1 + n frames to 1 + 2n."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest-exact"), nn.Conv2d(channels, channels // 2, 3, padding=1)
        )
        if time:
            self.time_conv = CausalConv(channels, channels * 2, (3, 1, 1))
        self.time = time

    def forward(self, x: Tensor) -> Tensor:
        if self.time and x.shape[2] > 1:
            # The first frame neither grows nor is seen by the others here, exactly as with the official cache.
            pairs = self.time_conv(x[:, :, 1:]).unflatten(1, (2, -1))
            x = torch.cat([x[:, :, :1], torch.stack(pairs.unbind(1), dim=3).flatten(2, 3)], dim=2)
        return _frames_back(self.resample(_frames_out(x)), x.shape[2])


class Encoder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = [dim, *(dim * m for m in MULTIPLIERS)]
        self.conv1 = CausalConv(3, dim, 3)
        layers: list[nn.Module] = []
        for stage, (before, after) in enumerate(itertools.pairwise(widths)):
            layers += [Residual(before, after), Residual(after, after)]
            if stage < len(MULTIPLIERS) - 1:
                layers.append(Shrink(after, SHRINKS_TIME[stage]))
        self.downsamples = nn.Sequential(*layers)
        last = widths[-1]
        self.middle = nn.Sequential(Residual(last, last), FrameAttention(last), Residual(last, last))
        self.head = nn.Sequential(ChannelNorm(last), nn.SiLU(), CausalConv(last, Z * 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.downsamples(self.conv1(x))))


class Decoder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = [dim * m for m in (MULTIPLIERS[-1], *reversed(MULTIPLIERS))]
        grows_time = (*reversed(SHRINKS_TIME), False)
        first = widths[0]
        self.conv1 = CausalConv(Z, first, 3)
        self.middle = nn.Sequential(Residual(first, first), FrameAttention(first), Residual(first, first))
        layers: list[nn.Module] = []
        for stage, (before, after) in enumerate(itertools.pairwise(widths)):
            entering = before // 2 if stage else before
            layers += [Residual(entering, after), Residual(after, after), Residual(after, after)]
            if stage < len(MULTIPLIERS) - 1:
                layers.append(Grow(after, grows_time[stage]))
        self.upsamples = nn.Sequential(*layers)
        self.head = nn.Sequential(ChannelNorm(widths[-1]), nn.SiLU(), CausalConv(widths[-1], 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.upsamples(self.middle(self.conv1(x))))


class TrainableVae(nn.Module):
    """Encoder and decoder with the official names; no sampling of the posterior, its mean is the latent."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(dim), Decoder(dim)
        self.conv1, self.conv2 = CausalConv(Z * 2, Z * 2, 1), CausalConv(Z, Z, 1)
        mean, std = latent_shift_and_scale()
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def encode(self, video: Tensor) -> Tensor:
        """video (B, 3, T, H, W) in [-1, 1] -> normalised latent (B, 16, F, H/8, W/8)."""
        return (self.conv1(self.encoder(video))[:, :Z] - self.mean) / self.std

    def decode(self, latent: Tensor) -> Tensor:
        """The inverse of `encode`; not clamped."""
        return self.decoder(self.conv2(latent * self.std + self.mean))
