"""What is adapted, and how much."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..errors import ConfigError
from ..patterns import check_patterns

__all__ = ["DEFAULT_TARGETS", "LoraConfig"]

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

    rank: int = 16
    alpha: float = 0.0
    """0 means alpha = rank, a scale of 1"""
    dropout: float = 0.0
    """share of the adapter's inputs dropped in training"""
    targets: tuple[str, ...] = DEFAULT_TARGETS
    """regular expressions for module names, original Wan names"""
    start_from: str = ""
    """a LoRA file (root:relative) whose weights are the starting point"""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= 1024:
            raise ConfigError(f"rank {self.rank} is out of range. Use 1 to 1024; 16 or 32 is usual.")
        if self.alpha < 0:
            raise ConfigError(f"alpha {self.alpha} is negative. Use 0 for alpha = rank.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"lora dropout {self.dropout} is out of range. Use 0 up to 0.9.")
        check_patterns([*self.targets, self.pattern], (), "LoRA target", whole=True)

    @property
    def effective_alpha(self) -> float:
        return self.alpha or float(self.rank)

    @property
    def scale(self) -> float:
        return self.effective_alpha / self.rank

    @property
    def pattern(self) -> str:
        """One expression for a full match on a module name."""
        return "|".join(f"(?:{t})" for t in self.targets)
