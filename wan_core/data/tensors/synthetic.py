"""A set of random tensors in the sizes of a model: measures training without a VAE, a text encoder or a single clip."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import Config
from ...errors import ConfigError
from ...model import LatentSpace
from ..cache import SYNTHETIC, TEXT_LENGTH, TEXT_WIDTH, CacheItem, CacheSet, synthetic_key
from ..conditioning import ConditionKind
from ..samples import DatasetConfig

__all__ = ["ENDLESS_ITEMS", "SyntheticConfig", "synthetic_set"]

ENDLESS_ITEMS = 64
"""clips in the list of an endless set, none of which is ever trained on: each batch draws its own in their place"""
MOST_ITEMS = 50_000


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig(Config):
    """How many clips, and how large."""

    count: int = 16
    """clips in an epoch, the same in every epoch; 0 = every batch draws new ones"""
    width: int = 832
    """pixels"""
    height: int = 480
    """pixels"""
    num_frames: int = 33
    """pixel frames, 4n+1; 1 = stills"""
    text_length: int = 64
    """tokens of each caption; the model pads them to 512"""
    seed: int = 0
    """other seeds draw other clips"""

    def __post_init__(self) -> None:
        if not 0 <= self.count <= MOST_ITEMS:
            raise ConfigError(f"count is {self.count}. Set it between 1 and {MOST_ITEMS}, or to 0 for endless.")
        if not 1 <= self.text_length <= TEXT_LENGTH:
            raise ConfigError(f"text_length is {self.text_length}. Set it between 1 and {TEXT_LENGTH}.")


def synthetic_set(
    config: SyntheticConfig,
    *,
    space: LatentSpace,
    size_multiple: int,
    kind: ConditionKind,
    condition_channels: int = 0,
    fps: float = 16.0,
) -> CacheSet:
    """The set of `config` for a model of that latent space and conditioning. Draws and writes nothing.

    `condition_channels`: of Conditioning.channels or Conditioning.vace, where the model reads one of them.
    """
    # Sizes are refused in the same words as those of real clips.
    DatasetConfig(
        width=config.width, height=config.height, num_frames=config.num_frames, fps=fps, size_multiple=size_multiple
    )
    frames = space.latent_frames(config.num_frames)
    size = (frames, config.height // space.spatial_stride, config.width // space.spatial_stride)
    endless = config.count == 0

    def item(number: int) -> CacheItem:
        text = (config.text_length, TEXT_WIDTH)
        given = synthetic_key(
            *("condition", (condition_channels, *size), config.seed, number), conditioning=kind.name, endless=endless
        )
        return CacheItem(
            latent_key=synthetic_key("latent", (space.channels, *size), config.seed, number, endless=endless),
            text_key=synthetic_key("text", text, config.seed, number, endless=endless),
            condition_key=given if kind.tensors else "",
            num_frames=config.num_frames,
            height=config.height,
            width=config.width,
            name=f"synthetic {number}",
        )

    return CacheSet(
        items=tuple(item(number) for number in range(config.count or ENDLESS_ITEMS)),
        empty_text_key=synthetic_key("text", (1, TEXT_WIDTH), config.seed, "empty", endless=False),
        negative_text_key=synthetic_key(
            "text", (config.text_length, TEXT_WIDTH), config.seed, "negative", endless=False
        ),
        latent_space=space.name,
        fps=fps,
        vae_identity=SYNTHETIC,
        text_identity=SYNTHETIC,
        conditioning=kind.name,
        vision_identity=SYNTHETIC if kind.vision else "",
    )
