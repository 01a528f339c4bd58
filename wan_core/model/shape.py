"""The sizes of a Wan transformer, the dtype each of its parts computes in, and which of its names lie in a block.

Data and names only; the presets of dtypes and their reasons live in the precision room.
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
from ..errors import ConfigError
from ..families import BLOCK_LISTS

FACE_SIDE = 512
"""height and width of a face video in pixels (Animate)"""
_BLOCK = re.compile(rf"({'|'.join(BLOCK_LISTS)})\.(\d{{1,4}})(?:\.(.+))?", re.ASCII)


class InBlock(NamedTuple):
    """The place of a weight or module that is a block, or lies in one."""

    stream: str
    """its list: one of BLOCK_LISTS"""
    number: int
    """of the block in that list"""
    inside: str
    """its name within the block, for example self_attn.q.weight; "" for the block itself"""


@lru_cache(maxsize=1 << 14)  # a plan asks for each weight of a model hundreds of times
def block_of(name: str) -> InBlock | None:
    """Returns where the weight or module `name` (original Wan name) lies; None outside the blocks.

    The one place that says what a block is: loading, quantization, adapters, placement and the count of arithmetic ask.
    """
    found = _BLOCK.fullmatch(name)
    return None if found is None else InBlock(found[1], int(found[2]), found[3] or "")


@dataclass(frozen=True, kw_only=True)
class WanShape(Config):
    """Sizes of one transformer; a size of 0 means that the variant lacks the part."""

    dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    in_channels: int = 16
    """of the patch embedding: the latent's and those of `Conditioning.channels`"""
    out_channels: int = 16
    """the latent's"""
    text_dim: int = 4096
    freq_dim: int = 256
    eps: float = 1e-6
    image_dim: int = 0
    """width of CLIP vision tokens: `img_emb` and `cross_attn.k_img` exist (2.1 I2V, FLF2V, Fun; 1280)"""
    image_positions: int = 0
    """rows of `img_emb.emb_pos` (FLF2V; 514)"""
    vace_layers: tuple[int, ...] = ()
    """blocks that a hint is added behind, rising; one `vace_blocks` entry each"""
    vace_channels: int = 96
    """of `vace_patch_embedding`; read only where there are `vace_layers`"""
    reference_channels: int = 0
    """of `ref_conv` (Fun V1.1 and 2.2 control models; 16, or 48 for 5B)"""
    camera_channels: int = 0
    """of the rays that `control_adapter` reads (Fun camera models; 24)"""
    camera_stride: int = 8
    """pixels per latent row that `control_adapter` folds into channels: the VAE's stride (5B: 16)"""
    pose_channels: int = 0
    """of `pose_patch_embedding` (Animate; 16)"""
    face_layers: tuple[int, ...] = ()
    """blocks whose tokens then attend to the face, rising (Animate; every fifth)"""

    pose_stream_channels: int = 0
    """of `patch_embedding_pose` (SCAIL; 20: a latent of the pose video, then flags)"""
    identity_channels: int = 0
    """of `patch_embedding_mask` (SCAIL-2; 28: seven colours of four frames)"""

    def __post_init__(self) -> None:
        for name, layers in (("vace_layers", self.vace_layers), ("face_layers", self.face_layers)):
            if any(not 0 <= layer < self.num_layers for layer in layers) or list(layers) != sorted(set(layers)):
                raise ConfigError(
                    f"{name} {list(layers)} must be rising block numbers below {self.num_layers}. "
                    "Choose an unmodified Wan file."
                )

    @property
    def condition_channels(self) -> int:
        """Channels of `Conditioning.channels`: what the patch embedding reads besides the latent."""
        return self.in_channels - self.out_channels - self.flag_channels

    @property
    def flag_channels(self) -> int:
        """Channels behind a latent that say whether it is given, which the model fills itself (SCAIL; 4)."""
        return max(self.pose_stream_channels - self.out_channels, 0)


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Explicit dtypes of a forward pass. Nothing in the model reads ambient autocast state."""

    compute: torch.dtype = torch.float32
    """linears and attention"""
    residual: torch.dtype = torch.float32
    """the token stream between blocks; the largest single source of bf16 error"""
    norm: torch.dtype = torch.float32
    """the three norms of a block and the head's, with their scale and shift"""
    qk_norm: torch.dtype = torch.float32
    """RMS norm of queries and keys"""
    time: torch.dtype = torch.float32
    """time embedding and its projection"""
    modulation: torch.dtype = torch.float32
    """modulation tables, their sum with the time projection, and gates"""
    head: torch.dtype = torch.float32
    """the output projection"""
    rope: torch.dtype = torch.float32
    """the rotation product, and what the table is rounded to before it"""
    rope_table: torch.dtype = torch.float64
    """the angles of the rotation and their cosine and sine"""
    attention: torch.dtype | None = None
    """softmax(Q K) V of both attentions; None is the compute dtype"""
    adapter: torch.dtype | None = None
    """LoRA matmuls; None follows the layer's input. LoRA weights themselves are always float32"""
    matmul: torch.dtype | None = None
    """float8_e4m3fn or int8: products with frozen weights of that dtype; None unpacks them into the compute dtype"""
    float32_products: str = "highest"
    """of a training step: highest, high (TF32) or medium (bf16), as `torch.set_float32_matmul_precision` has it"""
    plain_attention: bool = False
    """for predictions: attention makes its scores (B, heads, N, N), as where no fused kernel can run"""

    def on(self, devices: Iterable[torch.device]) -> Numerics:
        """Returns what devices compute in: the rotation in float32 instead of float64 where one of them lacks that.

        The table stays in `rope_table`: `rope.rope_table` has the CPU build it.
        """
        lacking = self.rope == torch.float64 and not all(map(has_float64, devices))
        return replace(self, rope=torch.float32) if lacking else self
