"""Flow matching: noise levels, noising, target, loss. Pure functions of tensors.

Convention (Wan and its trainers): `noised = (1 - sigma) * latent + sigma * noise`, target `noise - latent`, and the
model receives `timestep = 1000 * sigma`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from .errors import ConfigError

TIMESTEP_SAMPLINGS = ("uniform", "sigmoid", "shift", "flux_shift", "qwen_shift", "logsnr", "mode", "beta")
"""uniform: U(0, 1), shifted. sigmoid: sigmoid(scale * N(0, 1)). shift: sigmoid, shifted. flux_shift, qwen_shift:
sigmoid, shifted by `resolution_shift`. logsnr: normally distributed log signal-to-noise ratio. mode: mode sampling of
Stable Diffusion 3 (arXiv 2403.03206). beta: Beta(2, 2).
"""

TIMESTEP_RANGES = ("cut", "rescaled")
"""treatment of a range narrower than [0, 1]. cut: draws outside are repeated. rescaled: draws are scaled into it"""

_BY_RESOLUTION = {"flux_shift": (1.15, 4096), "qwen_shift": (0.9, 8192)}
"""(log shift, tokens per frame) of the upper end of a line; its lower end is (0.5, 256)"""

LOSSES = ("mse", "huber", "pseudo_huber", "l1")
LOSS_WEIGHTINGS = ("none", "bell", "sigma_sqrt", "cosmap", "min_snr")

EVALUATION_TIMESTEPS = (125.0, 375.0, 625.0, 875.0)
"""midpoints of four equal parts of the noise range; held-out clips store noise for these"""


def shift_sigma(sigma: Tensor, shift: float) -> Tensor:
    """Returns s*sigma / (1 + (s-1)*sigma) for shift s, which maps [0, 1] onto itself; shift 1 is the identity."""
    return shift * sigma / (1 + (shift - 1) * sigma)


def seeded_generator(*parts: int | float | str) -> torch.Generator:
    """Returns a CPU generator seeded by `parts`, for example (seed, "noise", micro_step).

    Every draw of a run has its own generator. So a run saves no random state, and its draws do not depend on previews,
    the number of devices or resuming.
    """
    digest = hashlib.sha256("\x1f".join(str(p) for p in parts).encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def resolution_shift(sampling: str, latent_height: int, latent_width: int) -> float | None:
    """Returns the shift of flux_shift and qwen_shift, from the tokens per frame; None for other samplings."""
    if sampling not in _BY_RESOLUTION:
        return None
    highest, most = _BY_RESOLUTION[sampling]
    tokens = (latent_height // 2) * (latent_width // 2)
    return math.exp(0.5 + (highest - 0.5) * (tokens - 256) / (most - 256))


LEAST_SHARE = 0.0005
"""smallest share of a distribution in the range of `draw_sigma`; a smaller one is refused"""


def draw_sigma(
    count: int,
    generator: torch.Generator,
    *,
    sampling: str,
    shift: float,
    sigmoid_scale: float = 1.0,
    logit_mean: float = 0.0,
    logit_std: float = 1.0,
    mode_scale: float = 1.29,
    sigma_min: float = 0.0,
    sigma_max: float = 1.0,
    parts: Tensor | None = None,
) -> Tensor:
    """Returns `count` noise levels (count,) float32 on the CPU in [sigma_min, sigma_max].

    A range narrower than [0, 1] (one expert of a pair) truncates the distribution: draws outside are repeated.
    `logit_mean`, `logit_std`: parameters of logsnr; `mode_scale`: of mode. `parts` (count,) float64 in [0, 1]:
    quantiles of the truncated distribution in place of random draws. Raises ConfigError if almost no draw is in the
    range.
    """
    if sampling not in TIMESTEP_SAMPLINGS:
        raise ConfigError(f'timestep_sampling "{sampling}" is unknown. Use one of: {", ".join(TIMESTEP_SAMPLINGS)}.')
    if not shift > 0:
        raise ConfigError(
            f"The training shift is {shift:g}. Set discrete_flow_shift above 0, or leave it to the model."
        )

    def made(number: Tensor) -> Tensor:
        if sampling in ("uniform", "mode", "beta"):
            return _from_uniform(number, sampling, shift, mode_scale)
        if sampling == "logsnr":  # arXiv 2411.14793
            return torch.sigmoid(-(logit_mean + logit_std * number) / 2)
        sigma = torch.sigmoid(sigmoid_scale * number)
        return sigma if sampling == "sigmoid" else shift_sigma(sigma, shift)

    drawn = torch.rand if sampling in ("uniform", "mode", "beta") else torch.randn
    if parts is not None:
        falls = sampling in ("mode", "logsnr")

        def at(part: Tensor) -> Tensor:
            part = 1 - part if falls else part
            return made(part if drawn is torch.rand else torch.special.ndtri(part))

        ends = [_part_below(at, sigma) for sigma in (sigma_min, sigma_max)]
        if ends[1] - ends[0] > _LEAST_QUANTILES:
            return at(ends[0] + (ends[1] - ends[0]) * parts.double()).clamp(sigma_min, sigma_max).float()
    kept = torch.empty(0)
    # If LEAST_SHARE of the draws are in range, all tries together fail with probability e^-48.
    for tries in range(2_500 if parts is None else 0):
        sigma = made(drawn(count if tries < 1_000 else 64 * count, generator=generator))
        kept = torch.cat([kept, sigma[is_in_range(sigma, (sigma_min, sigma_max))]])
        if len(kept) >= count:
            return kept[:count]
    raise ConfigError(
        f"timestep_sampling {sampling} with shift {shift} almost never falls into the range "
        f"{sigma_min * 1000:.0f}-{sigma_max * 1000:.0f}. Choose uniform, or another shift or logit_mean."
    )


_LEAST_QUANTILES = 1e-6
"""smallest share of a distribution in the range for draws by quantile"""


def _part_below(rising: Callable[[Tensor], Tensor], sigma: float) -> float:
    """Returns the share of a distribution below `sigma`, by bisection. `rising`: its quantile function, float64."""
    if sigma <= 0 or sigma >= 1:
        return float(sigma >= 1)
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if float(rising(torch.tensor(middle).double())) < sigma else (low, middle)
    return low


def _from_uniform(part: Tensor, sampling: str, shift: float, mode_scale: float) -> Tensor:
    """Returns the noise levels for uniform numbers `part` in [0, 1]."""
    if sampling == "uniform":
        return shift_sigma(part, shift)
    if sampling == "mode":  # arXiv 2403.03206
        return (1 - part - mode_scale * (torch.cos(math.pi * part / 2) ** 2 - 1 + part)).clamp(0, 1)
    return 0.5 - torch.sin(torch.asin(1 - 2 * part) / 3)  # the inverse of the Beta(2, 2) CDF 3 x^2 - 2 x^3


def is_in_range(sigma: Tensor, sigma_range: tuple[float, float]) -> Tensor:
    """Returns a mask (B,) bool of the `sigma` (B,) in the range. The boundary of a pair belongs to the high-noise
    expert (Wan: t >= boundary).
    """
    low, high = sigma_range
    return (sigma >= low) & ((sigma < high) if high < 1 else (sigma <= high))


def draw_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Returns standard normal noise, float32, on the CPU."""
    return torch.randn(shape, generator=generator)


def add_noise(latent: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """Returns the noised latent (B, C, F, H, W) for sigma (B,)."""
    level = sigma.view(-1, *([1] * (latent.ndim - 1)))
    return (1 - level) * latent + level * noise


def velocity_target(latent: Tensor, noise: Tensor) -> Tensor:
    """Returns the velocity noise - latent."""
    return noise - latent


def velocity_loss(
    prediction: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    kind: str = "mse",
    delta: float = 1.0,
    factor: Tensor | None = None,
) -> Tensor:
    """Returns the mean loss as a float32 scalar; `kind`: one of LOSSES.

    `weight`, broadcast to the target, makes it a weighted mean; weights of zero (a black mask) give 0 with zero
    gradients. `factor` (B,): result of `loss_factor`, multiplies each sample's errors without normalisation.
    """
    if kind == "mse" and weight is None and factor is None:  # fused: no tensor of elementwise errors
        return torch.nn.functional.mse_loss(prediction.float(), target.float())
    errors = _errors(prediction.float(), target.float(), kind, delta)
    if factor is not None:
        errors = errors * factor.float().view(-1, *([1] * (errors.ndim - 1)))
    if weight is None:
        return errors.mean()
    weights = weight.float().expand_as(target)
    return (errors * weights).sum() / weights.sum().clamp_min(1e-12)


def _errors(prediction: Tensor, target: Tensor, kind: str, delta: float) -> Tensor:
    """Returns elementwise errors. For errors below `delta`, both Huber forms are close to half the square."""
    difference = prediction - target
    if kind == "mse":
        return difference.square()
    if kind == "l1":
        return difference.abs()
    if kind == "huber":
        return torch.nn.functional.huber_loss(prediction, target, reduction="none", delta=delta)
    if kind == "pseudo_huber":  # Charbonnier et al.; its slope never exceeds delta either
        return delta * ((difference.square() + delta**2).sqrt() - delta)
    raise ConfigError(f'loss_type "{kind}" is unknown. Use one of: {", ".join(LOSSES)}.')


def loss_factor(sigma: Tensor, weighting: str) -> Tensor | None:
    """Returns loss factors (B,) for noise levels `sigma` (B,); None for no weighting. `weighting`: of LOSS_WEIGHTINGS.

    sigma_sqrt and cosmap are from Stable Diffusion 3 (arXiv 2403.03206). bell has mean 1 over all levels. min_snr is
    Min-SNR with gamma 5 (arXiv 2303.09556), sigma^2 * min(snr, 5) with snr = ((1 - sigma) / sigma)^2; sigma^2 turns
    squared errors of the velocity into those of the clean latent.
    """
    if weighting == "none":
        return None
    if weighting == "sigma_sqrt":
        return sigma.clamp_min(1e-3) ** -2.0  # clamped, because timestep 0 would have infinite weight
    if weighting == "cosmap":
        return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2))
    if weighting == "min_snr":
        return torch.minimum((1 - sigma) ** 2, 5 * sigma**2)
    if weighting == "bell":
        edge = math.exp(-0.5)
        mean = math.sqrt(math.pi / 2) * math.erf(math.sqrt(0.5)) - edge
        return (torch.exp(-2 * (sigma - 0.5) ** 2) - edge).clamp_min(0) / mean
    raise ConfigError(f'loss_weighting "{weighting}" is unknown. Use one of: {", ".join(LOSS_WEIGHTINGS)}.')


def simple_sigmas(steps: int, shift: float) -> Tensor:
    """Returns ComfyUI's `simple` schedule on Wan: (steps + 1,) float32 from 1 to 0.

    The schedule has every (1000/steps)-th entry, rounded down, of the shifted grid k/1000 (k = 1..1000) from the noisy
    end. If steps divides 1000, that is the shifted linspace(1, 0).
    """
    stride = 1000 / steps
    grid = torch.tensor([1000 - int(index * stride) for index in range(steps)], dtype=torch.float64) / 1000
    return torch.cat([shift_sigma(grid, shift), torch.zeros(1, dtype=torch.float64)]).float()
