"""The settings of a LoRA say which linears get an adapter, how large it is, and how strongly it acts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..config import Config, setting
from ..patterns import check_patterns

__all__ = [
    "LoraConfig",
]

DEFAULT_TARGETS = (
    r"blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)",
    r"blocks\.\d+\.cross_attn\.(k_img|v_img)",
    r"blocks\.\d+\.ffn\.(0|2)",
)
"""Every linear of every block, as musubi and diffusion-pipe: ten, twelve where CLIP image tokens are read.

VACE's second stream (vace_blocks) is left alone: such a LoRA also fits the text-to-video model of the same size.
"""


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Config):
    """A LoRA: W + (alpha / rank) * B @ A on every linear whose whole name matches one of `targets`."""

    rank: int = setting(
        16,
        "Size of the LoRA (network_dim). 16 or 32 is usual; more can learn more, and makes a larger file.",
        low=1,
        high=1024,
        refusal="{name} {value} is out of range. Use {low} to {high}; 16 or 32 is usual.",
    )
    alpha: float = setting(
        0.0,
        "The LoRA counts with alpha / rank (network_alpha). 0 = the same as rank, a scale of 1.",
        low=0,
        offered=(0.0, 1024.0),
        step=1.0,
        refusal="{name} {value} is negative. Use 0 for alpha = rank.",
    )
    dropout: float = setting(
        0.0,
        "Share of the LoRA's inputs (0 to 1) set to 0 in training. 0 = none.",
        low=0,
        high=math.nextafter(1, 0),
        offered=(0.0, 0.99),
        refusal="lora {name} {value} is out of range. Use 0 up to 0.9.",
    )
    """of 1, nothing would be left to train"""
    targets: tuple[str, ...] = setting(
        DEFAULT_TARGETS,
        "Regular expressions for the names of the layers that get a LoRA, one a line. Empty: attention and "
        "feed-forward.",
    )
    """original Wan names"""
    start_from: str = ""
    """a LoRA file (root:relative) whose weights are the starting point"""
    low_noise_start_from: str = ""
    """the same for the low noise expert where both are trained; empty: `start_from` is for both"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_patterns([*self.targets, self.pattern], (), "LoRA target", whole=True)

    @property
    def effective_alpha(self) -> float:
        return self.alpha or float(self.rank)

    @property
    def scale(self) -> float:
        return self.effective_alpha / self.rank

    def with_rank(self, rank: int) -> LoraConfig:
        """Returns the same of another rank, which counts as much: an alpha that was given follows the rank."""
        return replace(self, rank=rank, alpha=self.alpha * rank / self.rank)

    @property
    def pattern(self) -> str:
        """One expression for a full match on a module name."""
        return "|".join(f"(?:{t})" for t in self.targets)
