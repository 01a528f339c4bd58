"""Makes the RunConfig of a training from widgets of Train Wan LoRA, and that of a rendering without a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...wan_core.config import settings_of
from ...wan_core.files import atomic_write_json
from ...wan_core.job import (
    DataConfig,
    RunConfig,
    new_run_name,
    on_other_cards,
    trained_variant,
    untrained_run,
    with_model_values,
    with_partner_digest,
    with_scaled_loss,
)
from ...wan_core.load import ModelPlan
from ...wan_core.lora import LoraConfig
from ...wan_core.sampler import SampleConfig
from ...wan_core.train import EXPERTS, TrainConfig, expert_named
from ..bridge import folders
from ..bridge.types import ModelHandle, RunHandle, SettingsHandle
from ..bridge.widgets import check_menus, file_of
from .facts import short_digest

RESUME = ["auto", "new", "require"]
NONE = "none"
"""value of start_from_lora without a LoRA"""


@dataclass(frozen=True)
class RequestedJob:
    """One Train Wan LoRA: its inputs, and its widgets by name."""

    model: ModelHandle
    settings: SettingsHandle | None
    can_preview: bool
    widgets: Mapping[str, Any]

    @property
    def run_name(self) -> str:
        """The widget run_name, with the values of a sweep. Raises ConfigError for an invalid folder name."""
        return new_run_name((self.settings or SettingsHandle()).run_name(self.widgets["run_name"]))

    def config(self, data: DataConfig) -> RunConfig:
        """Returns the job on these clips, without previews. Raises a WanTrainerError for settings that do not fit."""
        widgets = self.widgets
        expert, start = widgets.get("expert", TrainConfig.expert), widgets.get("start_from_lora", NONE)
        plan = self.model.plan.of_expert(expert_named(expert), folders.roots())
        check_menus(TrainConfig, {"expert": expert})
        expert = expert_of(plan, expert)
        variant = trained_variant(plan, expert, folders.roots())
        train = train_config(self.settings, self.can_preview, {**widgets, "expert": expert})
        train = with_scaled_loss(with_model_values(train, variant), plan)
        # The start of the low-noise expert is the file of the same name, if it exists.
        sister = start.replace("high_noise", "low_noise")
        has_sister = expert == "both" and sister != start and sister in folders.file_names("loras")
        config = RunConfig(
            run_name=self.run_name,
            model=plan,
            partner=_partner(self.model.plan, train),
            data=data,
            lora=replace(
                lora_config(self.settings, widgets),
                start_from=start_reference(start),
                low_noise_start_from=start_reference(sister) if has_sister else "",
            ),
            train=train,
        )
        return with_partner_digest(config.with_digests(folders.roots()), folders.roots())

    def elsewhere(self, config: RunConfig) -> list[RunConfig]:
        """Returns the job with the dtypes that other cards choose; a run resumes in the dtypes it started with."""
        scaling = train_config(self.settings, self.can_preview, self.widgets).loss_scaling
        return on_other_cards(config, self.model.base_precision, scaling)


def train_config(settings: SettingsHandle | None, can_preview: bool, widgets: Mapping[str, Any]) -> TrainConfig:
    """Returns the settings of a training; without previews unless `can_preview`.

    Values come from Wan Train Settings, then from the node's `widgets`, then from a sweep; names that TrainConfig lacks
    are ignored.
    """
    given = settings or SettingsHandle()
    known, own = settings_of(TrainConfig), {**widgets, **dict(given.swept)}
    train = TrainConfig.from_dict({**dict(given.train), **{name: own[name] for name in own if name in known}})
    return train if can_preview else replace(train, preview_every_n_steps=0)


def lora_config(settings: SettingsHandle | None, widgets: Mapping[str, Any]) -> LoraConfig:
    """Returns the adapter of a training, with rank and alpha from TrainLoRA's widgets unless a sweep sets them."""
    given = settings or SettingsHandle()
    names = {"rank", "alpha"} - dict(given.swept).keys()
    return replace(given.lora, **{name: widgets.get(name, getattr(LoraConfig, name)) for name in names})


def expert_of(plan: ModelPlan, requested: str) -> str:
    """Returns the trained expert: both for a plan with two files."""
    return "both" if plan.low_noise_file else requested


def _partner(plan: ModelPlan, train: TrainConfig) -> ModelPlan | None:
    """Returns the untrained expert of a pair, with its own LoRAs, for previews; None if there is none."""
    if not plan.low_noise_file or train.expert_name not in EXPERTS or not train.preview_every_n_steps:
        return None
    return plan.of_expert(EXPERTS[1 - EXPERTS.index(train.expert_name)], folders.roots())


def start_reference(name: str) -> str:
    """Returns a LoRA file of the menu as a reference; "" for none. Raises ConfigError for a missing file."""
    if name == NONE:
        return ""
    file_of("start_from_lora", name, folders.file_names("loras"), "loras")
    return folders.model_reference("loras", name)


def folder_without_run(model: ModelHandle, preview: SampleConfig, vae_identity: str) -> RunHandle:
    """Creates and returns output/wan_trainer/_grids/<model>-<digest>, an untrained run for clips of LoRA files."""
    run = untrained_run(model.plan, preview, folders.cache(), folders.roots(), vae_identity=vae_identity)
    digest = short_digest({"job": run.job_id, "placement": run.model.placement.to_dict()})  # devices round differently
    name = Path(run.model.base_file.rpartition(":")[2]).stem
    # One folder deeper than runs, so that no list of runs shows it.
    directory = folders.runs_folder() / "_grids" / f"{name}-{digest}"
    atomic_write_json(directory / "run.json", run.to_dict(), directory.parent)
    return RunHandle(directory, 0, model.variant.fps)
