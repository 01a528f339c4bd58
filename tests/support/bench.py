"""A folder of clips, a cache and encoders of the right shapes, which remember what was requested."""

from __future__ import annotations

import torch

from wan_core.cache import CacheSet, Encoders, LatentCache, encode_missing, plan_encoding
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.model.latents import WAN21_LATENTS, LatentSpace


class PoolingCodec:
    """A codec of the right shape: mean colours over 8x8 squares, first frame and groups of four."""

    identity = "pooling"
    space: LatentSpace = WAN21_LATENTS

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append(pixels)
        frames = torch.cat([pixels[:1], pixels[1:].unflatten(0, (-1, 4)).mean(1)])
        small = torch.nn.functional.avg_pool2d(frames.permute(0, 3, 1, 2), 8)
        return small.mean(1, keepdim=True).expand(-1, 16, -1, -1).permute(1, 0, 2, 3)

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class CountingText:
    """Text features that hold the number of characters."""

    identity = "counting"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def encode(self, text: str) -> torch.Tensor:
        self.seen.append(text)
        return torch.full((min(len(text), 511) + 1, 4096), float(len(text)))


class MeanVision:
    """Image tokens that hold the mean colour."""

    identity = "mean"

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen.append(pixels)
        return pixels.mean().expand(257, 1280)


class Bench:
    """A folder, a cache and encoders that remember what they were asked."""

    def __init__(self, folder, cache_root, video, **settings) -> None:
        self.folder, self.video = folder, video
        self.cache_root = cache_root
        self.settings = {"width": 64, "height": 48, "num_frames": 9, **settings}

    def run(self, should_stop=None, **changes):
        """One queue of the whole data side in a fresh cache object; returns report and encoders."""
        cache = LatentCache(self.cache_root)
        codec, text, self.vision = PoolingCodec(), CountingText(), MeanVision()
        self.codec = codec
        config = DatasetConfig(**{**self.settings, **changes})
        dataset = Dataset((scan_folder(config, self.folder, ScanContext(self.video)),))
        plan = self.plan(dataset, cache)
        self.told = []
        report = encode_missing(
            plan,
            cache,
            Encoders(
                codec=codec,
                text_encoder=text,
                image_encoder=self.vision,
                video=self.video,
                progress=lambda _done, _total, name: self.told.append(name),
                should_stop=should_stop,
            ),
        )
        return report, codec, text

    def plan(self, dataset, cache, **options):
        return plan_encoding(
            dataset,
            cache,
            vae_identity="pooling",
            text_identity="counting",
            space=WAN21_LATENTS,
            **{"vision_identity": "mean", **options},
        )


def counts(report) -> tuple[int, int, int, int]:
    return (
        report.latents_encoded,
        report.latents_reused,
        report.texts_encoded,
        report.texts_reused,
    )


def given_counts(report) -> tuple[int, int]:
    return (report.conditions_encoded, report.conditions_reused)


def set_of(bench: Bench, report) -> CacheSet:
    return LatentCache(bench.cache_root).read_set(report.fingerprint)
