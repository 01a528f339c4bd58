"""Which files are never trained but evaluated."""

from __future__ import annotations

from collections.abc import Callable

from .config import DatasetConfig
from .dataset import Dataset
from .sample import Sample

__all__ = ["held_out_digests"]


def held_out_digests(dataset: Dataset, digest_of: Callable[[Sample], str]) -> frozenset[str]:
    """SHA-256 of every content that a part of the dataset holds out: a copy under another name, or the same file in
    another part, is then held out with it. Asks for no digest where nothing is held out.
    """
    if not any(_holds_out(part.config) for part in dataset.parts):
        return frozenset()
    return frozenset(
        digest
        for part in dataset.parts
        if _holds_out(part.config)
        for sample in part.samples
        if _is_held_out(sample, digest := digest_of(sample), part.config)
    )


def _holds_out(config: DatasetConfig) -> bool:
    return bool(config.held_out or config.held_out_folder or config.held_out_ratio)


def _is_held_out(sample: Sample, content_digest: str, config: DatasetConfig) -> bool:
    """By name, by the folder it lies in, or by its content: a share decided by each file's own digest, so that adding
    or removing files never moves another one, and all samples of a file stay together.
    """
    if sample.path.name in config.held_out or sample.path.stem in config.held_out:
        return True
    if config.held_out_folder and sample.path.parent.name == config.held_out_folder:
        return True
    return int(content_digest[:8], 16) < config.held_out_ratio * 2**32
