"""Self- and cross-attention of a Wan block. B batch, N tokens, M context rows, D width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ..kernels import (
    Attention,
    RingSeat,
    attention_kernel,
    fused_rms_rotate,
    made_together,
    rms_norm,
    rotate,
    rotation_fuses,
)
from .heads import TokenSeat
from .names import each_named, naming
from .shape import Numerics, WanShape
from .texts import repeated


def together(linears: Sequence[nn.Module], x: Tensor, names: Sequence[str] = ()) -> tuple[Tensor, ...]:
    """Returns the outputs (..., out) of several linears for one input x (..., in); `names`: activation names, in order.

    If the first linear has a method `together`, that method runs all of them as one matrix product.
    """
    runs = [partial(linear, x) for linear in linears]
    own = getattr(linears[0], "together", None)
    found = None if own is None else own(linears, x, names)
    return each_named(runs, names) if found is None else found


class WanRMSNorm(nn.Module):
    """RMS norm over the complete model width (not per head), with a learned scale."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x (..., D) normalised in `dtype`, returned in x's dtype."""
        return rms_norm(x, self.weight, self.eps, dtype)


class WanAttention(nn.Module):
    """Base class of self- and cross-attention: q, k, v, o linears, and RMS norm of queries and keys."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.num_heads, self.numerics = shape.num_heads, numerics
        self.kernel = attention_kernel("sdpa")
        self.q, self.k, self.v, self.o = (nn.Linear(shape.dim, shape.dim) for _ in range(4))
        self.norm_q, self.norm_k = WanRMSNorm(shape.dim, shape.eps), WanRMSNorm(shape.dim, shape.eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, kernel: Attention | None = None) -> Tensor:
        """(B, N, heads, head_dim) each -> (B, N, D), all in the compute dtype. `kernel`: None uses `self.kernel`."""
        inside = self.numerics.attention or self.numerics.compute
        attended = (kernel or self.kernel)(query.to(inside), key.to(inside), value.to(inside))
        return attended.to(self.numerics.compute).flatten(2)


class WanSelfAttention(WanAttention):
    """Self-attention of the video tokens, with rotary position embedding (RoPE)."""

    seat: TokenSeat | RingSeat | None = None
    """exchange of queries, keys and values with the other copies or ranks, where the tokens are split"""

    def forward(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor) -> Tensor:
        """x (B, N, D) in the compute dtype -> same shape and dtype; `rope_of` makes the two tables."""
        seat = self.seat if self.seat is not None and self.seat.joined else None
        if isinstance(seat, TokenSeat):
            attended = self._attend_together(seat, x, rope_cos, rope_sin)
        else:
            attended = self._attend_alone(x, rope_cos, rope_sin, None if seat is None else seat.attend)
        with naming("self_attn"):
            return self.o(attended)

    def _attend_alone(self, x: Tensor, rope_cos: Tensor, rope_sin: Tensor, kernel: Attention | None) -> Tensor:
        query, key, value = together((self.q, self.k, self.v), x, ("query_proj", "key_proj", "value_proj"))
        with naming("xq_out"):
            query = self._placed(query, self.norm_q, rope_cos, rope_sin)
        with naming("xk_out"):
            key = self._placed(key, self.norm_k, rope_cos, rope_sin)
        with naming("attn_output"):
            return self._attend(query, key, self._heads(value), kernel)

    def _attend_together(self, seat: TokenSeat, x: Tensor, rope_cos: Tensor, rope_sin: Tensor) -> Tensor:
        """Returns the attention of own tokens x (B, n, D) to the tokens of all copies.

        Copying overlaps with computing. Values are copied while queries and keys are computed, queries while keys are
        computed. In the backward pass, gradients of queries and values are copied during the key linear's backward.
        """
        with naming("value_proj"):
            value = self.v(x)
        value = seat.send(self._heads(value))
        with naming("query_proj"):
            query = self.q(x)
        with naming("xq_out"):
            query = self._placed(query, self.norm_q, rope_cos, rope_sin)
        sent = seat.send(query)
        with naming("key_proj"):
            key = self.k(x)
        with naming("xk_out"):
            key = self._placed(key, self.norm_k, rope_cos, rope_sin)
        last = seat.send(key)
        all_values, queries, keys = seat.receive(value), seat.receive(sent), seat.receive(last)
        with naming("attn_output"):
            # A card may have no head. Its empty sum keeps queries, keys and values in the graph, so that its backward
            # pass still takes part in every exchange.
            some = queries.shape[2] > 0
            attended = self._attend(queries, keys, all_values) if some else (queries + keys + all_values).flatten(2)
        return seat.to_tokens(attended.unflatten(-1, queries.shape[2:]), last).flatten(2)

    def _placed(self, x: Tensor, norm: WanRMSNorm, rope_cos: Tensor, rope_sin: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, heads, head_dim) in x's dtype, after RMS norm and RoPE."""
        dtype = self.numerics.qk_norm
        if rotation_fuses(x, norm.weight, rope_cos, dtype):
            return self._heads(fused_rms_rotate(x, norm.weight, norm.eps, rope_cos, rope_sin))
        return rotate(self._heads(norm(x, dtype)), rope_cos, rope_sin)


class WanCrossAttention(WanAttention):
    """Attention of the video tokens to the text tokens, and to image tokens where the variant has them."""

    text_rows = 0
    """number of text rows that attention reads; the last row is repeated up to it (`texts.repeated`). 0: no
    repetition"""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__(shape, numerics)
        self.reads_images = shape.image_dim > 0
        if self.reads_images:
            self.k_img, self.v_img = nn.Linear(shape.dim, shape.dim), nn.Linear(shape.dim, shape.dim)
            self.norm_k_img = WanRMSNorm(shape.dim, shape.eps)

    def context(self, text: Tensor, image: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns keys and values of `text` (B, L, D), then of `image` (B, M, D) where the variant has image tokens.

        Inputs and outputs are in the compute dtype. Outputs are (B, rows, heads, head_dim); text keys and values have
        `text_rows` rows if L is smaller.
        """
        dtype = self.numerics.qk_norm
        key, value = together((self.k, self.v), text)
        found = tuple(self._heads(repeated(rows, self.text_rows)) for rows in (self.norm_k(key, dtype), value))
        if not self.reads_images:
            return found
        assert image is not None
        key, value = together((self.k_img, self.v_img), image)
        return *found, self._heads(self.norm_k_img(key, dtype)), self._heads(value)

    def forward(self, x: Tensor, context: tuple[Tensor, ...]) -> Tensor:
        """x (B, N, D) in the compute dtype -> (B, N, D). `context`: the result of the method `context`."""
        with made_together((self.q, self.o), x.dtype):
            query = self._heads(self.norm_q(self.q(x), self.numerics.qk_norm))
            key, value, *image = context
            attended = self._attend(query, key, value)
            if self.reads_images:
                attended = attended + self._attend(query, image[0], image[1])
            return self.o(attended)
