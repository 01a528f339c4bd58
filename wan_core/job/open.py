"""Opens the files of a run.json: the base file's header, the cache and the cache set. Reads no weights.

The header is read only here; loading and prediction use `OpenRun.file`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..cache import CacheSet, LatentCache
from ..checkpoint import WanVariant
from ..errors import ConfigError
from ..families import FIRST_LATENT
from ..files import Roots
from ..load import WanFile, inspect_model
from ..lora import LoraConfig, adapted_modules
from ..model import model_without_values
from ..placement import EXPERT_PER_GPU
from ..train import Levels, TrainConfig, check_rates, state_bytes
from .checks import check_files, with_expert, with_model_values
from .config import RunConfig, read_run


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run's settings with their opened files.

    Properties may raise: they are computed on first use, so that memory can be planned for a run that cannot train.
    """

    directory: Path
    config: RunConfig
    roots: Roots
    file: WanFile
    """the base file, by its header"""
    cache: LatentCache
    cache_set: CacheSet
    both: bool = False
    """whether this is one expert of a run that trains both"""
    apart: bool = False
    """whether the other expert trains at the same time, on a device of its own"""
    has_partner: bool = False
    """whether the run trains only one expert of a pair, and previews use both"""
    trained: bool = True
    """False for a partner, which only renders and is in no saved step"""

    @cached_property
    def variant(self) -> WanVariant:
        """The file's variant, narrowed to the trained expert. Raises ConfigError if the expert is unknown."""
        return with_expert(self.file.variant, self.config.train.expert)

    @property
    def settings(self) -> TrainConfig:
        """The train settings with the model's defaults filled in."""
        return with_model_values(self.config.train, self.variant)

    @property
    def first_frame_share(self) -> float:
        """Share of clips trained with a given first latent frame (TI2V-5B); 0 for models with condition channels."""
        starts = self.variant.family.starts_from == FIRST_LATENT
        return self.config.train.first_frame_conditioning_p if starts else 0.0

    def adapters(self, *, with_start: bool) -> LoraConfig:
        """Returns the adapter settings; without `with_start`, without the start LoRA, which saved steps contain."""
        return self.config.lora if with_start else replace(self.config.lora, start_from="")

    def check(self, *, with_start: bool) -> None:
        """Raises CheckpointError for a replaced base or (`with_start`) start LoRA, CacheError for a set cached for
        another model, ConfigError for settings that cannot train, DependencyError for a missing optimizer package.
        """
        variant = self.variant
        state_bytes(self.config.train)  # raises for an unusable optimizer
        if self.config.train.lr_patterns:
            check_rates(self.config.train, adapted_modules(model_without_values(variant.shape), self.config.lora))
        levels = Levels(self.settings, variant.sigma_range())
        for height, width in {self.cache_set.latent_shape(item)[-2:] for item in self.cache_set.items}:
            levels.require_draws((height, width))
        check_files(self.config, self.roots, with_start=with_start)
        self.cache_set.require_fit(variant.name, variant.latents, variant.conditioning)
        if self.cache_set.prior_share == 1:
            raise ConfigError(
                f"All {len(self.cache_set.items)} clips are of datasets with prior_preservation, which keep what the "
                "model knows, so nothing new would be trained. Connect a dataset with new content too, or set it to 0."
            )


def open_run(directory: Path, roots: Roots, config: RunConfig | None = None) -> OpenRun:
    """Open the run in `directory`; `config`: its run.json, if read already.

    Raises ConfigError if there is no run, CheckpointError for an untrainable base file, CacheError without the set.
    """
    config = config or read_run(directory)
    file = inspect_model(config.model, roots)
    cache = LatentCache(roots.first("cache"))
    cache_set = cache.read_set(config.data.fingerprint)
    return OpenRun(directory=directory, config=config, roots=roots, file=file, cache=cache, cache_set=cache_set)


def open_experts(directory: Path, roots: Roots, config: RunConfig | None = None) -> tuple[OpenRun, ...]:
    """Open each model that the run in `directory` trains, as a run of one model; high noise first.

    Raises what `open_run` does.
    """
    config = config or read_run(directory)
    runs = [open_run(directory, roots, config.of_expert(expert, roots)) for expert in config.train.experts]
    places = {run.config.model.placement.devices for run in runs}
    apart = config.model.placement.mode == EXPERT_PER_GPU and len(places) > 1
    return tuple(replace(run, both=len(runs) > 1, apart=apart) for run in runs)
