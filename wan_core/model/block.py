"""The transformer block, the VACE block, and the output head. B batch, N tokens, D width, T time rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..kernels import (
    HeldValues,
    cast_linear,
    gated_add,
    modulated_with,
    normed_with,
    remade,
    shift_and_scale,
    unread,
    values_held,
    without_autocast,
)
from .attention import WanCrossAttention, WanSelfAttention
from .face import FaceAttention
from .humo import SoundLayer
from .names import UNREAD, naming
from .s2v import SoundAttention
from .shape import Numerics, WanShape
from .stages import CHUNK_TOKENS, Shared, Stages, in_stages

PATCH = (1, 2, 2)
"""Latent frames, rows and columns that make one token."""


class Constants(NamedTuple):
    """The tensors that every block reads besides the token stream."""

    time_rows: Tensor
    """(B, T, 6, D) modulation dtype"""
    text: Tensor
    """(B, L, D) compute dtype"""
    rope_cos: Tensor
    """(N, 1, head_dim / 2)"""
    rope_sin: Tensor
    image: Tensor | None = None
    """(B, M, D) compute dtype; None for variants without image tokens"""
    of_frames: Tensor | None = None
    """(B, F, K, width) compute dtype: K tokens of each latent frame, of a face (Animate) or of sound (HuMo, S2V); or
    None"""

    def declared(self, numerics: Numerics) -> Constants:
        """Returns the tensors in the dtypes above; FSDP2 may have cast the inputs to others."""
        modulation, compute, rope = numerics.modulation, numerics.compute, numerics.rope
        dtypes = (modulation, compute, rope, rope, compute, compute)
        return self._make(None if one is None else one.to(to) for one, to in zip(self, dtypes, strict=True))

    def moved(self, move: Callable[[Tensor], Tensor]) -> Constants:
        """Returns a copy with `move` applied to every tensor."""
        return self._make(None if one is None else move(one) for one in self)


Recompute = Callable[..., Any]
"""Runs `function(*inputs)` with gradient checkpointing, as `torch.utils.checkpoint.checkpoint` does."""


class _Layer(nn.Module):
    """Base class of the blocks. Stage 1: modulated self-attention. Stage 2: cross-attention, attention to sound (HuMo),
    modulated feed-forward.

    Gradient checkpointing happens inside `forward`, below the module's hooks. FSDP2 casts inputs in its hooks, so it
    casts once and the recomputation sees the same inputs. Ambient autocast is switched off at the same place.
    """

    chunk_tokens = CHUNK_TOKENS
    """largest number of tokens in one chunk of stage 2; 0: one chunk"""
    holds_values = True
    """whether stage 2 keeps its dequantized weights from the first chunk to the last"""
    output_is_read = False
    """whether the backward pass of the layer reads the output of its feed-forward"""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.eps, self.numerics = shape.eps, numerics
        self.self_attn = WanSelfAttention(shape, numerics)
        self.norm3 = nn.LayerNorm(shape.dim, shape.eps)
        self.cross_attn = WanCrossAttention(shape, numerics)
        self.audio_cross_attn_wrapper = SoundLayer(shape, numerics) if shape.whisper_channels else None
        self.ffn = nn.Sequential(
            nn.Linear(shape.dim, shape.ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(shape.ffn_dim, shape.dim)
        )
        self.modulation = nn.Parameter(torch.empty(1, 6, shape.dim))
        self._of_pass = HeldValues()

    def mix(self, tokens: Tensor, constants: Constants) -> Tensor:
        """Runs stage 1: tokens (B, N, D) -> (B, N, D) in the residual dtype."""
        tokens = tokens.to(self.numerics.residual)
        return self.attend(tokens, constants.time_rows, constants.rope_cos, constants.rope_sin)

    def attend(self, tokens: Tensor, time_rows: Tensor, rope_cos: Tensor, rope_sin: Tensor) -> Tensor:
        """The compiled part of `mix`. Its arguments are only the constants that it reads, so that fewer graphs are
        compiled.
        """
        shift, scale, gate, *_ = self._rows(time_rows)
        tokens, x, make = self._modulated(tokens, None, shift, scale)
        with remade(x, make):
            attended = self.self_attn(x, rope_cos, rope_sin)
        return gated_add(tokens, attended, gate)

    def share(self, constants: Constants) -> Shared:
        """Returns keys and values of the cross-attention, which all tokens read."""
        return self.cross_attn.context(constants.text, constants.image)

    def rest(self, tokens: Tensor, constants: Constants, shared: Shared) -> Tensor:
        """Runs stage 2 on a chunk: tokens (B, n, D) in the residual dtype -> same shape and dtype."""
        return self.treat(tokens, constants.time_rows, shared, self._sound(constants))

    def rest_again(self, tokens: Tensor, constants: Constants, shared: Shared) -> Tensor:
        """Recomputes `rest` for the backward pass: the result has the graph of `rest`, but undefined values."""
        return self.treat(tokens, constants.time_rows, shared, self._sound(constants), read=False)

    def _sound(self, constants: Constants) -> Tensor | None:
        return None if self.audio_cross_attn_wrapper is None else constants.of_frames

    def treat(
        self, tokens: Tensor, time_rows: Tensor, shared: Shared, sound: Tensor | None = None, *, read: bool = True
    ) -> Tensor:
        """The compiled part of `rest` and, with `read` False, of `rest_again`: cross-attention, then feed-forward.

        Without gradients it may overwrite `tokens` and return them.
        """
        *_, shift, scale, gate = self._rows(time_rows)
        given = tokens
        tokens, x, make = self._normed(tokens, overwrites=not read)
        with naming("cross_attn"), remade(x, make):
            attended = self.cross_attn(x, shared)
        if self.audio_cross_attn_wrapper is not None:
            tokens, attended = self.audio_cross_attn_wrapper(tokens, attended, sound)

        tokens, x, make = self._modulated(tokens, attended, shift, scale)
        first, gelu, last = self.ffn
        with naming("ffn_activation"):
            with remade(x, make):
                x = first(x)
            make = partial(gelu, x)
            x = make()
        # The gradient of a trained gate needs the feed-forward's output.
        needed = self.output_is_read or gate.requires_grad
        with naming("hidden_states" if needed else UNREAD):
            with remade(x, make):
                x = last(x) if read or needed else unread(last, x)
            return gated_add(tokens, x, gate, read=read or needed, into=given)

    def hold(self) -> AbstractContextManager[None]:
        """Inside, stage 2 dequantizes each of its weights once."""
        parts = (self.cross_attn, self.audio_cross_attn_wrapper, self.ffn)
        return values_held([part for part in parts if part is not None] if self.holds_values else ())

    def keep(self) -> AbstractContextManager[None]:
        """Inside, both stages cast their norm weights and add up their modulation once."""
        return values_held((), self._of_pass)

    def _rows(self, time_rows: Tensor) -> tuple[Tensor, ...]:
        """Returns shift, scale, gate of stage 1, then of the feed-forward: (B, T, D) each."""
        own, dtype = self.modulation.unsqueeze(1), self.numerics.modulation
        # Adding mixed dtypes promotes to the wider one, so no separate cast is needed.
        own = own if torch.promote_types(own.dtype, dtype) == dtype else own.to(dtype)
        if own.requires_grad or time_rows.requires_grad or torch.compiler.is_compiling():
            return (own + time_rows).unbind(2)
        rows = f"rows {time_rows.storage_offset()} {time_rows.shape[1]}"  # a chunk may have a slice of the time rows
        return self._of_pass.of(rows, lambda: own + time_rows).unbind(2)

    def _modulated(
        self, tokens: Tensor, update: Tensor | None, shift: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
        """Returns the sum of tokens and `update`, its modulated norm in the compute dtype, and a function that
        recomputes that norm."""
        numerics = self.numerics
        how = (shift, scale, self.eps, numerics.norm, numerics.compute)
        tokens, x = modulated_with(tokens, update, *how)
        kept = tokens
        return tokens, x, lambda: modulated_with(kept, None, *how)[1]

    def _normed(self, tokens: Tensor, *, overwrites: bool) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
        """Returns the same three as `_modulated`, for the norm before the cross-attention, which adds no update.

        `overwrites`: the backward pass may write the gradient of `tokens` into their memory.
        """
        how = (self.norm3, self.numerics.norm, self.numerics.compute, self._of_pass)
        tokens, x = normed_with(tokens, *how, overwrites=overwrites)
        kept = tokens
        return tokens, x, lambda: normed_with(kept, *how)[1]


class WanBlock(_Layer):
    """A block of the main stream."""

    def __init__(self, shape: WanShape, numerics: Numerics, number: int = 0) -> None:
        """`number`: says whether attention to a face or to sound follows the feed-forward."""
        super().__init__(shape, numerics)
        self.output_is_read = number in shape.attending_layers
        self.face = FaceAttention(shape, numerics) if number in shape.face_layers else None
        self.sound = SoundAttention(shape, numerics) if number in shape.sound_layers else None

    def rest(self, tokens: Tensor, constants: Constants, shared: Shared) -> Tensor:
        """Runs stage 2, then attention to the face or the sound where the block has it."""
        return self._attend_by_frame(super().rest(tokens, constants, shared), constants)

    def rest_again(self, tokens: Tensor, constants: Constants, shared: Shared) -> Tensor:
        """Recomputes `rest` for the backward pass: the result has the graph of `rest`, but undefined values."""
        return self._attend_by_frame(super().rest_again(tokens, constants, shared), constants)

    def _attend_by_frame(self, tokens: Tensor, constants: Constants) -> Tensor:
        if self.sound is not None:
            return self.sound(tokens, constants.of_frames, constants.time_rows.shape[1])
        return tokens if self.face is None else self.face(tokens, constants.of_frames)

    def forward(
        self,
        tokens: Tensor,
        time_rows: Tensor,
        text: Tensor,
        rope_cos: Tensor,
        rope_sin: Tensor,
        image: Tensor | None = None,
        of_frames: Tensor | None = None,
        recompute: Recompute | None = None,
    ) -> Tensor:
        """tokens (B, N, D) in the residual dtype -> same shape and dtype; the other tensors: fields of Constants."""
        if self.face is None and self.sound is None and self.audio_cross_attn_wrapper is None:
            of_frames = None  # a chunk may then end inside a frame
        stages = Stages(self, self.mix, self.share, self.rest, self.chunk_tokens, self.hold, self.rest_again, self.keep)
        run = partial(in_stages if recompute is None else recompute, stages)
        constants = Constants(time_rows, text, rope_cos, rope_sin, image, of_frames).declared(self.numerics)
        return cast(Tensor, without_autocast(tokens.device.type, run, tokens, constants))


class VaceBlock(_Layer):
    """A block of VACE's control stream: it returns the stream and a hint, which is added to the main stream."""

    output_is_read = True  # The gradient of `after_proj`'s LoRA needs it.

    def __init__(self, shape: WanShape, numerics: Numerics, *, first: bool) -> None:
        super().__init__(shape, numerics)
        self.first = first
        if first:
            self.before_proj = nn.Linear(shape.dim, shape.dim)
        self.after_proj = nn.Linear(shape.dim, shape.dim)

    def forward(
        self,
        control: Tensor,
        tokens: Tensor,
        time_rows: Tensor,
        text: Tensor,
        rope_cos: Tensor,
        rope_sin: Tensor,
        image: Tensor | None = None,
        _of_frames: Tensor | None = None,
        recompute: Recompute | None = None,
    ) -> tuple[Tensor, Tensor]:
        """control (B, N, D) in the residual dtype -> control, same dtype, and the hint (B, N, D) in the compute dtype.

        tokens (B, N, D): the main stream before its first block; only the first VACE block reads it.
        """
        constants = Constants(time_rows, text, rope_cos, rope_sin, image).declared(self.numerics)
        stages = Stages(
            self, self.mix_control, self.share, self.give_hint, self.chunk_tokens, self.hold, keep=self.keep
        )
        run = partial(in_stages if recompute is None else recompute, stages)
        streams = (control, tokens) if self.first else (control,)
        return cast("tuple[Tensor, Tensor]", without_autocast(control.device.type, run, *streams, constants))

    def mix_control(self, control: Tensor, *rest: Any) -> Tensor:
        """Runs stage 1 on control (B, N, D); the first VACE block adds the main stream (B, N, D) before."""
        *tokens, constants = rest
        if self.first:
            compute, residual = self.numerics.compute, self.numerics.residual
            control = self.before_proj(control.to(compute)).to(residual) + tokens[0].to(residual)
        return self.mix(control, constants)

    def give_hint(self, tokens: Tensor, constants: Constants, shared: Shared) -> tuple[Tensor, Tensor]:
        """Runs stage 2 on a chunk; returns control and its hint, in the dtypes of `forward`."""
        control = self.rest(tokens, constants, shared)
        return control, self.after_proj(control.to(self.numerics.compute))


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
        return cast_linear(
            self.head, shift_and_scale(tokens, shift, scale, self.eps, self.numerics.norm), self.numerics.head
        )
