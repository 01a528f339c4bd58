"""Held-out clips: the noise and timesteps they are always evaluated with. Something must be left to train."""

from __future__ import annotations

import hashlib
import json

import torch

from ..dataset import Dataset, file_names, files_below
from ..dataset.caption_names import in_one_form
from ..errors import DatasetError
from ..flow import EVALUATION_TIMESTEPS, draw_noise, seeded_generator
from .cache_set import CacheSet
from .latent_cache import LatentCache


def require_trained(dataset: Dataset, trained: int, held_out: int) -> None:
    """DatasetError when everything is held out, or when a name or folder of the settings holds nothing out."""
    if not trained:
        raise nothing_trained(held_out)
    for part in dataset.parts:
        paths = [sample.path for sample in part.samples]
        # Settings of another trainer are several parts with the same names: each name has to be in one of them.
        alike = [p for p in dataset.parts if p.config.held_out == part.config.held_out]
        known = {name for other in alike for sample in other.samples for name in file_names(sample)}
        if missing := [name for name in part.config.held_out if in_one_form(name) not in known]:
            raise DatasetError(
                f"held_out names {missing[0]!r}, which is no usable file of {part.config.folder!r}. Use names as they "
                f"are in the folder, such as {paths[0].name!r}."
            )
        folder = part.config.held_out_folder
        alike = [p for p in dataset.parts if p.config.held_out_folder == folder]
        if folder and not any(files_below(folder, other) for other in alike):
            raise DatasetError(
                f"held_out_folder {folder!r} holds no usable file of {part.config.folder!r}. Use the name of one of "
                "its subfolders and switch recursive on, or leave it empty."
            )


def nothing_trained(held_out: int) -> DatasetError:
    """Returns the error for a dataset whose usable files are all held out."""
    return DatasetError(
        "All {held_out} files are held out for evaluation, so nothing would be trained. Lower "
        "held_out_ratio, or name fewer files.",
        held_out=held_out,
    )


def evaluation_key(latent_key: str) -> str:
    """Name of the noise and timesteps of a held-out clip."""
    parts = {"kind": "evaluation", "latent": latent_key, "timesteps": EVALUATION_TIMESTEPS, "version": 1}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def write_evaluations(cache: LatentCache, cache_set: CacheSet) -> None:
    """Store what is missing of the noise (timesteps, C, F, h, w) float32 of the held-out clips: the very values that
    `Trainer.evaluate` would draw for them, kept so that no other torch can ever draw others.
    """
    for item in cache_set.held_out:
        shape = cache_set.latent_shape(item)
        if item.evaluation_key and not cache.holds("evaluation", item.evaluation_key, shape):
            draws = [
                draw_noise((1, *shape), seeded_generator("evaluation", item.latent_key, timestep))[0]
                for timestep in EVALUATION_TIMESTEPS
            ]
            tensors = {"noise": torch.stack(draws), "timesteps": torch.tensor(EVALUATION_TIMESTEPS)}
            cache.write_tensors("evaluation", item.evaluation_key, tensors, item.name)
