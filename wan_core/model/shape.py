"""The sizes of a Wan transformer, the dtypes of its parts, and the module names of its blocks.

The room `precision` holds the dtype presets and their reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from ..accelerator import has_float64
from ..config import Config
from ..families import BLOCK_LISTS

FACE_SIDE = 512
"""height and width of a face video in pixels (Animate)"""
WHISPER_WINDOW = (8, 5)
"""frames around a latent frame, and groups of the encoder's layers, whose features it reads (HuMo)"""
FRAMES_BEFORE = 19
"""latent frames before the clip that a model reads (S2V)"""
_BLOCK = re.compile(rf"({'|'.join(BLOCK_LISTS)})\.(\d{{1,4}})(?:\.(.+))?", re.ASCII)


class InBlock(NamedTuple):
    """A parsed module or weight name inside a block."""

    stream: str
    """the block's list, one of BLOCK_LISTS"""
    number: int
    """index of the block in that list"""
    inside: str
    """name within the block, for example self_attn.q.weight; "" for the block itself"""


@lru_cache(maxsize=1 << 14)  # a plan calls it hundreds of times for each weight of a model
def block_of(name: str) -> InBlock | None:
    """Parses the original Wan name of a weight or module; returns None if it lies outside the blocks."""
    found = _BLOCK.fullmatch(name)
    return None if found is None else InBlock(found[1], int(found[2]), found[3] or "")


@dataclass(frozen=True, kw_only=True)
class WanShape(Config):
    """Sizes of one transformer; 0 means that the variant lacks this part."""

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    in_channels: int = 16
    """input channels of the patch embedding: latent, then `Conditioning.channels`"""
    out_channels: int = 16
    """channels of the latent"""
    text_dim: int = 4096
    freq_dim: int = 256
    eps: float = 1e-6
    image_dim: int = 0
    """width of CLIP vision tokens: `img_emb` and `cross_attn.k_img` exist (2.1 I2V, FLF2V, Fun; 1280)"""
    image_positions: int = 0
    """rows of `img_emb.emb_pos` (FLF2V; 514)"""
    vace_layers: tuple[int, ...] = ()
    """ascending numbers of blocks after which a VACE hint is added; `vace_blocks` has one block for each"""
    vace_channels: int = 96
    """input channels of `vace_patch_embedding`; unused without `vace_layers`"""
    reference_channels: int = 0
    """input channels of `ref_conv` (Fun V1.1 and 2.2 control models; 16, or 48 for 5B)"""
    camera_channels: int = 0
    """channels of the rays that `control_adapter` reads (Fun camera models; 24)"""
    camera_stride: int = 8
    """pixels per latent row that `control_adapter` folds into channels: the VAE's stride (5B: 16)"""
    pose_channels: int = 0
    """input channels of `pose_patch_embedding` (Animate; 16)"""
    face_layers: tuple[int, ...] = ()
    """ascending numbers of blocks that attention to the face follows (Animate; every fifth)"""

    sound_channels: int = 0
    """width of the sound features (S2V; 1024)"""
    sound_depth: int = 0
    """layers of the sound encoder whose features are mixed (S2V; 25)"""
    sound_layers: tuple[int, ...] = ()
    """ascending numbers of blocks that attention to the sound follows (S2V; 12 of 40)"""

    pose_stream_channels: int = 0
    """input channels of `patch_embedding_pose` (SCAIL; 20: latent of the pose video, then flags)"""
    identity_channels: int = 0
    """input channels of `patch_embedding_mask` (SCAIL-2; 28: seven colours of four frames)"""
    whisper_channels: int = 0
    """width of the audio encoder's features (HuMo; 1280: Whisper large v3)"""
    audio_width: int = 0
    """width of the tokens that `audio_proj` makes of them (HuMo; 1536)"""

    @property
    def attending_layers(self) -> tuple[int, ...]:
        """Numbers of the blocks that attention to tokens of their latent frame follows: of a face, or of sound."""
        return self.face_layers or self.sound_layers

    def shortened(self, layers: int, vace: int, attending: Iterable[int] = ()) -> WanShape:
        """Returns the shape with `layers` blocks, `vace` of them with a VACE hint, and these `attending_layers`."""
        name = "sound_layers" if self.sound_channels else "face_layers"
        return replace(self, num_layers=layers, vace_layers=tuple(range(vace)), **{name: tuple(attending)})

    @property
    def condition_channels(self) -> int:
        """Number of channels of `Conditioning.channels`."""
        return self.in_channels - self.out_channels - self.flag_channels

    @property
    def flag_channels(self) -> int:
        """Number of channels after a latent that the model fills itself: 1 for a given latent (SCAIL; 4), a mask and a
        black video (HuMo-17B; 20)."""
        own = self.in_channels if self.whisper_channels else self.pose_stream_channels
        return max(own - self.out_channels, 0)


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Explicit dtypes of a forward pass; the model ignores ambient autocast."""

    compute: torch.dtype = torch.float32
    """linears and attention"""
    residual: torch.dtype = torch.float32
    """the token stream between blocks: in bf16 it is the largest source of error"""
    norm: torch.dtype = torch.float32
    """layer norms of blocks and head, with their scale and shift"""
    qk_norm: torch.dtype = torch.float32
    """RMS norm of queries and keys"""
    time: torch.dtype = torch.float32
    """time embedding and its projection"""
    modulation: torch.dtype = torch.float32
    """modulation parameters, their sum with the time projection, and gates"""
    head: torch.dtype = torch.float32
    """the output projection"""
    rope: torch.dtype = torch.float32
    """RoPE's multiplication; cosine and sine are rounded to it before"""
    rope_table: torch.dtype = torch.float64
    """RoPE's angles, cosine and sine"""
    attention: torch.dtype | None = None
    """softmax(Q K) V of self- and cross-attention; None: the compute dtype"""
    adapter: torch.dtype | None = None
    """LoRA matmuls; None: the dtype of the layer's input. LoRA weights are always float32"""
    matmul: torch.dtype | None = None
    """float8_e4m3fn or int8: multiplies frozen weights of this dtype directly; None: casts them to the compute dtype"""
    float32_products: str = "highest"
    """argument of `torch.set_float32_matmul_precision` in a training step: highest, high (TF32) or medium (bf16)"""
    plain_attention: bool = False
    """used by memory estimates: attention materialises its scores (B, heads, N, N), without a fused kernel"""

    def on(self, devices: Iterable[torch.device]) -> Numerics:
        """Returns the numerics for these devices: RoPE's product in float32 instead of float64 if one lacks float64.

        The table stays in `rope_table`: the CPU builds it for such a device (`kernels.rope_of`).
        """
        lacking = self.rope == torch.float64 and not all(map(has_float64, devices))
        return replace(self, rope=torch.float32) if lacking else self
