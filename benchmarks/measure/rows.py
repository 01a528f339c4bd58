"""The rows of a measurement: training steps with published figures of other programs, the most important first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from wan_core.errors import ConfigError
from wan_core.model import WAN21_LATENTS, WAN22_LATENTS, LatentSpace, WanShape
from wan_core.train import TrainConfig

SHAPES = {
    "tiny": WanShape(dim=256, ffn_dim=512, num_heads=2, num_layers=4),
    "1.3B": WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30),
    "5B": WanShape(dim=3072, ffn_dim=14336, num_heads=24, num_layers=30, in_channels=48, out_channels=48),
    "14B": WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40),
    "1.3B-4": WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=4),
    "1.3B-12": WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=12),
    "14B-4": WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=4),
    "14B-12": WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=12),
}
"""shapes of real models; a number after the dash is the number of blocks"""
_AS_NAMED: dict[str, Any] = {
    "memory": "manual",
    "checkpointing_policy": "full",
    "offload_activations": "off",
    "blocks_to_swap": 0,
}
"""default settings of a row without a plan: checkpointing of every block, no offloading"""


class Size(NamedTuple):
    """Size of a clip in pixels and frames."""

    width: int
    height: int
    frames: int

    @classmethod
    def of(cls, text: str) -> Size:
        """Returns the size for a text such as 832x480x49."""
        return cls(*(int(number) for number in text.split("x")))

    def latent(self, shape: WanShape) -> tuple[int, int, int, int]:
        """Returns the shape (channels, frames, height, width) of the latent for a model."""
        space = space_of(shape)
        stride = space.spatial_stride
        frames = space.latent_frames(self.frames) + bool(shape.pose_channels)
        return space.channels, frames, self.height // stride, self.width // stride

    def tokens(self, shape: WanShape) -> int:
        """Returns the tokens of one clip."""
        _, frames, rows, columns = self.latent(shape)
        return frames * (rows // 2) * (columns // 2)


def space_of(shape: WanShape) -> LatentSpace:
    """Returns the latent space of a model."""
    return WAN22_LATENTS if shape.out_channels == WAN22_LATENTS.channels else WAN21_LATENTS


@dataclass(frozen=True)
class Published:
    """Published figures of another program; None for a missing figure."""

    card: str
    seconds: float | None
    gib: float | None
    """peak of device memory"""

    way: str
    """the program, and its settings"""


@dataclass(frozen=True)
class Row:
    """One run: model shape, clip size and settings."""

    name: str
    shape: str
    size: Size
    steps: int = 6
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of TrainConfig that differ from _AS_NAMED, or from the defaults if `as_planned`"""

    as_planned: bool = False
    """True for the settings of a new run, in which the plan decides offloading and checkpointing"""
    quantize: str = ""
    base_precision: str = "as in file"
    preset: str = "balanced"
    matmul: str = "compute"
    rank: int = 32
    published: tuple[Published, ...] = ()

    @property
    def tiny(self) -> Row:
        """The row with the same settings and a tiny model."""
        return replace(self, shape="tiny", size=Size(64, 64, 5), steps=3)

    def train(self) -> TrainConfig:
        """Returns the training settings."""
        steps = self.steps + 1  # one step more, for profiling
        alone: dict[str, Any] = {
            "preview_every_n_steps": 0,
            "eval_items": 0,
            "steps": steps,
            "save_every_n_steps": steps,
        }
        return TrainConfig(**(({} if self.as_planned else _AS_NAMED) | alone | dict(self.settings)))


_SMALL, _SQUARE, _LONG = Size(480, 480, 81), Size(832, 480, 49), Size(1280, 704, 121)
_ST = "SimpleTuner bc8e6ab, bf16, RamTorch, every block"
_LARGE = (Published("H100 80 GB", 7.162, 16.28, _ST), Published("L40S 48 GB", 21.77, 16.23, _ST))
_LITTLE = (Published("H100 80 GB", 2.099, 4.73, _ST), Published("L40S 48 GB", 4.459, 4.68, _ST))
_PLAIN = (Published("H100 80 GB", 1.407, 71.90, "SimpleTuner bc8e6ab, no checkpointing"),)
_FP8 = tuple(
    Published(card, seconds, gib, "SimpleTuner bc8e6ab, fp8-torchao")
    for card, seconds, gib in (("H100 80 GB", 2.607, 5.98), ("L40S 48 GB", 4.888, 5.93))
)
_INT8 = tuple(
    Published(card, seconds, gib, "SimpleTuner bc8e6ab, int8-sdnq-hadamard")
    for card, seconds, gib in (("H100 80 GB", 2.790, 4.70), ("L40S 48 GB", 4.989, 4.65))
)
_ONE_5090 = (Published("RTX 5090", 44.73, None, "DiffSynth PR #1436, fp8, encoders in the step"),)
_37, _121_OF_2, _121_OF_4 = (
    (Published("a card not stated", None, gb * 1e9 / 2**30, "Wan-Video/Wan2.2 PR 354, FSDP2 and checkpointing"),)
    for gb in (40.7, 51.1, 69.8)
)
_ONE_CLIP, _FOUR_CLIPS = (
    (Published("RTX 4090", seconds, None, "SimpleTuner's quickstart, frames not stated"),) for seconds in (2.0, 11.0)
)
_SWAPPED = {"blocks_to_swap": 40}

ROWS = (
    Row("1.3B 480x480x81, every block", "1.3B", _SMALL, rank=16, published=_LITTLE),
    Row(
        "14B 480x480x81, blocks and inputs in host memory",
        "14B",
        _SMALL,
        4,
        {**_SWAPPED, "offload_activations": "on"},
        rank=16,
        published=_LARGE,
    ),
    Row("14B 480x480x81, as planned", "14B", _SMALL, 4, as_planned=True, rank=16, published=_LARGE),
    Row(
        "14B 832x480x49 fp8, as planned",
        "14B",
        _SQUARE,
        4,
        as_planned=True,
        quantize="fp8_e4m3fn",
        published=_ONE_5090,
    ),
    Row(
        "1.3B 480x480x81, no checkpointing",
        "1.3B",
        _SMALL,
        settings={"gradient_checkpointing": False},
        rank=16,
        published=_PLAIN,
    ),
    Row("1.3B 832x480x1, as planned", "1.3B", Size(832, 480, 1), 8, as_planned=True),
    Row("14B 832x480x33 fp8, as planned", "14B", Size(832, 480, 33), 4, as_planned=True, quantize="fp8_e4m3fn"),
    Row(
        "5B 1280x704x37, micro batch 2, as planned",
        "5B",
        Size(1280, 704, 37),
        4,
        {"batch_size": 2},
        as_planned=True,
        published=_37,
    ),
    Row("5B 1280x704x121, as planned", "5B", _LONG, 4, as_planned=True),
    Row("14B 480x480x81, 40 blocks in host memory", "14B", _SMALL, 4, _SWAPPED, rank=16, published=_LARGE),
    Row("14B 480x480x81, all of it on the card", "14B", _SMALL, 4, rank=16, published=_LARGE),
    Row(
        "1.3B 480x480x81, 30 blocks in host memory",
        "1.3B",
        _SMALL,
        settings={"blocks_to_swap": 30},
        rank=16,
        published=_LITTLE,
    ),
    Row("1.3B 480x480x81, fp8", "1.3B", _SMALL, rank=16, quantize="fp8_e4m3fn", published=_FP8),
    Row("1.3B 480x480x81, int8", "1.3B", _SMALL, rank=16, quantize="int8", published=_INT8),
    Row("14B 832x480x49 fp8, every block", "14B", _SQUARE, 4, quantize="fp8_e4m3fn", published=_ONE_5090),
    Row(
        "14B 832x480x49 fp8, inputs in host memory",
        "14B",
        _SQUARE,
        4,
        {"offload_activations": "on"},
        quantize="fp8_e4m3fn",
        published=_ONE_5090,
    ),
    Row("5B 1280x704x121, micro batch 2", "5B", _LONG, 3, {"batch_size": 2}, as_planned=True, published=_121_OF_2),
    Row("5B 1280x704x121, micro batch 4", "5B", _LONG, 3, {"batch_size": 4}, as_planned=True, published=_121_OF_4),
    Row("1.3B 832x480x33", "1.3B", Size(832, 480, 33), as_planned=True, rank=16, published=_ONE_CLIP),
    Row(
        "1.3B 832x480x33, batch 4",
        "1.3B",
        Size(832, 480, 33),
        settings={"batch_size": 4},
        as_planned=True,
        rank=16,
        published=_FOUR_CLIPS,
    ),
)


def rows_numbered(wanted: str) -> tuple[Row, ...]:
    """Returns the rows with these comma-separated numbers, from 1; all rows for ""."""
    try:
        numbers = [int(part) for part in wanted.split(",") if part.strip()]
    except ValueError:
        numbers = [0]
    if any(not 1 <= number <= len(ROWS) for number in numbers):
        raise ConfigError(f'--rows "{wanted[:40]}" is no list of numbers from 1 to {len(ROWS)}, such as 1,3.')
    return tuple(ROWS[number - 1] for number in numbers) or ROWS
