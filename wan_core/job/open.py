"""A run with everything opened that its run.json names: the base file's header, the cache and the set it trains on.

The one place that reads them for a job. A job reads the header of its base file once, here, and hands what was found
(`OpenRun.file`) to whatever loads or predicts. No weight is read and nothing is written.
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
from ..train import Levels, TrainConfig, check_rates, state_bytes
from .checks import check_files, with_expert, with_model_values
from .config import RunConfig, read_run


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run's settings beside the files they mean.

    What is worked out of both is worked out when it is first asked for: a report of memory says what it can about a run
    that could not be trained.
    """

    directory: Path
    config: RunConfig
    roots: Roots
    file: WanFile
    """the base file, judged by its header"""
    cache: LatentCache
    cache_set: CacheSet
    both: bool = False
    """whether this is one expert of a run that trains both"""
    has_partner: bool = False
    """whether this is one of a pair of which the run trains one expert alone"""
    trained: bool = True
    """whether the run trains it; a partner only renders, and no saved step holds anything of it"""

    @cached_property
    def variant(self) -> WanVariant:
        """The file's variant, narrowed to the expert that is trained; ConfigError when nothing says which that is."""
        return with_expert(self.file.variant, self.config.train.expert)

    @property
    def settings(self) -> TrainConfig:
        """The train settings, with the model's own value where they leave one to the model."""
        return with_model_values(self.config.train, self.variant)

    @property
    def first_frame_share(self) -> float:
        """The share of clips that are given their first latent frame: only TI2V-5B is, other models read channels."""
        starts = self.variant.family.starts_from == FIRST_LATENT
        return self.config.train.first_frame_conditioning_p if starts else 0.0

    @property
    def prior_share(self) -> float:
        """The share of trained clips whose target the base model makes, in a forward pass more."""
        return self.cache_set.prior_share

    def adapters(self, *, with_start: bool) -> LoraConfig:
        """The run's adapters; without `with_start` those of a run that holds its start LoRA already, in what it saved.

        That file may be gone by then.
        """
        return self.config.lora if with_start else replace(self.config.lora, start_from="")

    def check(self, *, with_start: bool) -> None:
        """Refuse a run whose base, start LoRA (with `with_start`) or cached clips are not the ones it was made with.

        Raises ConfigError for an expert left open, CheckpointError for an exchanged file, CacheError for a set that was
        cached for another model. ConfigError or DependencyError: an optimizer that is not to be had.
        """
        variant = self.variant
        state_bytes(self.config.train)
        if self.config.train.lr_patterns:
            check_rates(self.config.train, adapted_modules(model_without_values(variant.shape), self.config.lora))
        levels = Levels(self.settings, variant.sigma_range())
        for height, width in {self.cache_set.latent_shape(item)[-2:] for item in self.cache_set.items}:
            levels.require_draws((height, width))
        check_files(self.config, self.roots, with_start=with_start)
        self.cache_set.require_fit(variant.name, variant.latents, variant.conditioning)
        if self.prior_share == 1:
            raise ConfigError(
                f"All {len(self.cache_set.items)} clips are of datasets with prior_preservation, which keep what the "
                "model knows, so nothing would be learnt. Connect what is to be learnt too, or set that to 0."
            )


def open_run(directory: Path, roots: Roots, config: RunConfig | None = None) -> OpenRun:
    """Open the run in `directory`; `config` where its run.json was read already, as before a lock was taken.

    Raises ConfigError for a directory that is no run, CheckpointError for a base file that cannot be trained, and
    CacheError for a set that is gone.
    """
    config = config or read_run(directory)
    file = inspect_model(config.model, roots)
    cache = LatentCache(roots.first("cache"))
    cache_set = cache.read_set(config.data.fingerprint)
    return OpenRun(directory=directory, config=config, roots=roots, file=file, cache=cache, cache_set=cache_set)


def open_experts(directory: Path, roots: Roots, config: RunConfig | None = None) -> tuple[OpenRun, ...]:
    """Open each model that the run in `directory` trains: of a run of both experts, each as a run of its own.

    The high noise expert comes first. Raises what `open_run` does.
    """
    config = config or read_run(directory)
    runs = [open_run(directory, roots, config.of_expert(expert, roots)) for expert in config.train.experts]
    return tuple(replace(run, both=len(runs) > 1) for run in runs)
