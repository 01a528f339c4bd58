"""The Wan diffusion transformer, written for training: explicit dtypes, few casts, one row of modulation per frame.

Shapes: B batch, C channels, F latent frames, H and W latent height and width, N tokens = F * H/2 * W/2, L text rows
(always 512), D model width, T time rows (1, or F when every latent frame has its own timestep).
Module names equal the official ones, so state dicts and LoRA keys need no translation. Source of the maths:
Wan2.1 / Wan2.2 model.py; golden vectors in tests/fixtures.

No autocast here, ever: each cast is written down, so that gradient recompute sees the dtypes of the first pass.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .numerics import Numerics
from .rope import rope_table, rotate
from .shape import WanShape

__all__ = ["TEXT_ROWS", "Carrier", "Constants", "WanBlock", "WanTransformer"]

TEXT_ROWS = 512
"""Text is always padded with zero rows to this length, and the padding takes part in attention (official Wan)."""
PATCH = (1, 2, 2)


class Constants(NamedTuple):
    """What every block reads besides the token stream."""

    time_rows: Tensor
    """(B, T, 6, D) modulation dtype"""
    text: Tensor
    """(B, L, D) compute dtype"""
    rope_cos: Tensor
    """(N, 1, head_dim / 2)"""
    rope_sin: Tensor


class Carrier(Protocol):
    """Brings tensors to the device of the module that needs them next; the identity on one device."""

    def to_block(self, index: int, tokens: Tensor, constants: Constants) -> tuple[Tensor, Constants]: ...

    def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]: ...


class _StayHere:
    """The carrier of a model that lives on one device."""

    def to_block(self, index: int, tokens: Tensor, constants: Constants) -> tuple[Tensor, Constants]:
        return tokens, constants

    def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        return tokens, time


def _linear(layer: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A frozen linear computed in `dtype`, whatever its weight is stored in."""
    assert isinstance(layer, nn.Linear)
    # torchao's tensors keep their own dtype under `.to`; outside the blocks they are rare and small, so unpack them.
    weight = layer.weight.dequantize() if hasattr(layer.weight, "qdata") else layer.weight
    return functional.linear(x.to(dtype), weight.to(dtype), layer.bias.to(dtype))


def _shift_and_scale(x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """LayerNorm(x) * (1 + scale) + shift in `dtype`; x (B, N, D), shift and scale (B, T, D), N a multiple of T."""
    normed = functional.layer_norm(x.to(dtype), (x.shape[-1],), eps=eps)
    if shift.shape[1] == 1:
        return torch.addcmul(shift.to(dtype), normed, 1 + scale.to(dtype))
    rows = normed.unflatten(1, (shift.shape[1], -1))
    return torch.addcmul(shift.to(dtype).unsqueeze(2), rows, 1 + scale.to(dtype).unsqueeze(2)).flatten(1, 2)


def _gated_add(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """x + update * gate in the wider of x's and gate's dtype, stored in x's; gate (B, T, D)."""
    wide = torch.promote_types(x.dtype, gate.dtype)
    if gate.shape[1] == 1:
        return torch.addcmul(x.to(wide), update.to(wide), gate.to(wide)).to(x.dtype)
    rows = update.to(wide).unflatten(1, (gate.shape[1], -1)) * gate.to(wide).unsqueeze(2)
    return (x.to(wide) + rows.flatten(1, 2)).to(x.dtype)


class WanRMSNorm(nn.Module):
    """RMS norm over the whole model width (not per head), with a learned scale."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x (..., D) normalised in `dtype`, returned in x's dtype."""
        return functional.rms_norm(x.to(dtype), self.weight.shape, self.weight.to(dtype), self.eps).to(x.dtype)


class WanAttention(nn.Module):
    """Self- or cross-attention: q, k, v, o linears, RMS-normed q and k."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.num_heads, self.numerics = shape.num_heads, numerics
        self.q, self.k, self.v, self.o = (nn.Linear(shape.dim, shape.dim) for _ in range(4))
        self.norm_q, self.norm_k = WanRMSNorm(shape.dim, shape.eps), WanRMSNorm(shape.dim, shape.eps)

    def forward(self, x: Tensor, context: Tensor, rope: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """x (B, N, D) attends to context (B, M, D), both in the compute dtype; rope only for self-attention."""
        heads = (self.num_heads, -1)
        dtype = self.numerics.qk_norm
        query = self.norm_q(self.q(x), dtype).unflatten(-1, heads)
        key = self.norm_k(self.k(context), dtype).unflatten(-1, heads)
        value = self.v(context).unflatten(-1, heads)
        if rope is not None:
            query, key = rotate(query, *rope), rotate(key, *rope)
        inside = self.numerics.attention or query.dtype
        query, key, value = (rows.transpose(1, 2).to(inside) for rows in (query, key, value))
        attended = functional.scaled_dot_product_attention(query, key, value)
        return self.o(attended.transpose(1, 2).flatten(2).to(x.dtype))


class WanBlock(nn.Module):
    """One transformer layer: modulated self-attention, plain cross-attention, modulated feed-forward."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.eps, self.numerics = shape.eps, numerics
        self.self_attn = WanAttention(shape, numerics)
        self.norm3 = nn.LayerNorm(shape.dim, shape.eps)
        self.cross_attn = WanAttention(shape, numerics)
        self.ffn = nn.Sequential(
            nn.Linear(shape.dim, shape.ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(shape.ffn_dim, shape.dim)
        )
        self.modulation = nn.Parameter(torch.empty(1, 6, shape.dim))

    def forward(self, tokens: Tensor, time_rows: Tensor, text: Tensor, rope_cos: Tensor, rope_sin: Tensor) -> Tensor:
        """tokens (B, N, D) in the residual dtype -> the same; the rest are the fields of Constants."""
        numerics = self.numerics
        rows = self.modulation.to(numerics.modulation).unsqueeze(1) + time_rows
        shift1, scale1, gate1, shift2, scale2, gate2 = rows.unbind(2)

        x = _shift_and_scale(tokens, shift1, scale1, self.eps, numerics.norm).to(numerics.compute)
        tokens = _gated_add(tokens, self.self_attn(x, x, (rope_cos, rope_sin)), gate1)

        x = functional.layer_norm(
            tokens.to(numerics.norm),
            (tokens.shape[-1],),
            self.norm3.weight.to(numerics.norm),
            self.norm3.bias.to(numerics.norm),
            self.eps,
        ).to(numerics.compute)
        tokens = tokens + self.cross_attn(x, text).to(tokens.dtype)

        x = _shift_and_scale(tokens, shift2, scale2, self.eps, numerics.norm).to(numerics.compute)
        return _gated_add(tokens, self.ffn(x), gate2)


class WanHead(nn.Module):
    """Final modulated norm and projection to patches."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.eps, self.numerics = shape.eps, numerics
        self.head = nn.Linear(shape.dim, shape.out_channels * PATCH[0] * PATCH[1] * PATCH[2])
        self.modulation = nn.Parameter(torch.empty(1, 2, shape.dim))

    def forward(self, tokens: Tensor, time: Tensor) -> Tensor:
        """tokens (B, N, D), time (B, T, D) -> (B, N, C * 4) in the head dtype."""
        rows = self.modulation.to(self.numerics.modulation).unsqueeze(1) + time.to(self.numerics.modulation).unsqueeze(
            2
        )
        shift, scale = rows.unbind(2)
        return _linear(
            self.head, _shift_and_scale(tokens, shift, scale, self.eps, self.numerics.norm), self.numerics.head
        )


class WanTransformer(nn.Module):
    """The denoiser. Build it on `torch.device("meta")` and fill it with `load.materialize`."""

    def __init__(self, shape: WanShape, numerics: Numerics | None = None) -> None:
        super().__init__()
        self.shape, self.numerics = shape, numerics or Numerics()
        self.carrier: Carrier = _StayHere()
        self.checkpoint_blocks = False
        """recompute each block in the backward pass instead of keeping its activations"""
        self.checkpoint_keeps_rng = False
        """needed only when blocks draw random numbers (LoRA dropout)"""
        dim = shape.dim
        self.patch_embedding = nn.Conv3d(shape.in_channels, dim, kernel_size=PATCH, stride=PATCH)
        self.text_embedding = nn.Sequential(
            nn.Linear(shape.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(nn.Linear(shape.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(WanBlock(shape, self.numerics) for _ in range(shape.num_layers))
        self.head = WanHead(shape, self.numerics)

    def forward(self, latent: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        """Predict the velocity.

        latent (B, C_in, F, H, W) any float dtype, H and W even; timestep (B,) or (B, F), 0..1000, fractions allowed;
        text (B, 512, text_dim), zero rows after the prompt. Returns (B, C_out, F, H, W) float32. Ambient autocast is
        switched off inside, so the dtypes written down here are the ones that run; recompute sees the same.
        """
        kind = latent.device.type
        if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self._forward(latent, timestep, text)
        return self._forward(latent, timestep, text)

    def _forward(self, latent: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        grid = (latent.shape[2], latent.shape[3] // PATCH[1], latent.shape[4] // PATCH[2])
        tokens = self._embed_patches(latent)
        time, time_rows = self._embed_time(timestep)
        head_dim = self.shape.dim // self.shape.num_heads
        rope = rope_table(
            grid, head_dim, dtype=self.numerics.rope, device=tokens.device, built_in=self.numerics.rope_table
        )
        constants = Constants(time_rows, self._embed_text(text), *rope)
        for index, block in enumerate(self.blocks):
            tokens, here = self.carrier.to_block(index, tokens, constants)
            tokens = self._run_block(block, tokens, here)
        tokens, time = self.carrier.to_head(tokens, time)
        return self._unpatchify(self.head(tokens, time), grid)

    def _run_block(self, block: nn.Module, tokens: Tensor, constants: Constants) -> Tensor:
        if not (self.checkpoint_blocks and torch.is_grad_enabled()):
            return block(tokens, *constants)
        return checkpoint(block, tokens, *constants, use_reentrant=False, preserve_rng_state=self.checkpoint_keeps_rng)

    def _embed_patches(self, latent: Tensor) -> Tensor:
        layer, dtype = self.patch_embedding, self.numerics.compute
        bias = None if layer.bias is None else layer.bias.to(dtype)
        patches = functional.conv3d(latent.to(dtype), layer.weight.to(dtype), bias, stride=PATCH)
        return patches.flatten(2).transpose(1, 2).to(self.numerics.residual).contiguous()

    def _embed_time(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """time (B, T, D) and time_rows (B, T, 6, D); the sinusoid is float64 (Wan: sinusoidal_embedding_1d)."""
        per_row = timestep.unsqueeze(1) if timestep.ndim == 1 else timestep
        half = self.shape.freq_dim // 2
        powers = torch.arange(half, dtype=torch.float64, device=timestep.device) / half
        angles = per_row.double().unsqueeze(-1) * 10000.0**-powers
        wave = torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.numerics.time)
        first, last = self.time_embedding[0], self.time_embedding[2]
        time = _linear(last, functional.silu(_linear(first, wave, self.numerics.time)), self.numerics.time)
        rows = _linear(self.time_projection[1], functional.silu(time), self.numerics.time)
        return time, rows.unflatten(-1, (6, -1)).to(self.numerics.modulation)

    def _embed_text(self, text: Tensor) -> Tensor:
        first, gelu, last = self.text_embedding
        dtype = self.numerics.compute
        return _linear(last, gelu(_linear(first, text, dtype)), dtype)

    def _unpatchify(self, patches: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """(B, N, 4 * C), channel fastest, to (B, C, F, H, W) float32."""
        rows = patches.float().view(patches.shape[0], *grid, *PATCH, self.shape.out_channels)
        frames, height, width = (n * p for n, p in zip(grid, PATCH, strict=True))
        return rows.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(-1, self.shape.out_channels, frames, height, width)
