"""Makes the job of a run of what the widgets of Train Wan LoRA say: queued, or asked for by a page before that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...wan_core.job import (
    DataConfig,
    RunConfig,
    new_run_name,
    on_other_cards,
    trained_variant,
    with_model_values,
    with_partner_digest,
    with_scaled_loss,
)
from ...wan_core.load import ModelPlan
from ...wan_core.lora import LoraConfig
from ...wan_core.train import EXPERTS, TrainConfig, expert_named
from ..bridge import folders
from ..bridge.types import ModelHandle, SettingsHandle
from ..bridge.widgets import check_menus, file_of

RESUME = ["auto", "new", "require"]
NONE = "none"
"""of start_from_lora"""
TRAIN_WIDGETS = (
    "steps", "learning_rate", "expert", "save_every_n_steps", "preview_every_n_steps", "seed", "blocks_to_swap",
)  # fmt: skip
"""the widgets of Train Wan LoRA that are settings of a training"""


@dataclass(frozen=True)
class AskedJob:
    """One Train Wan LoRA: its wires, and its widgets by name."""

    model: ModelHandle
    settings: SettingsHandle | None
    can_preview: bool
    widgets: Mapping[str, Any]

    @property
    def run_name(self) -> str:
        """As the widget and a sweep say it; TrainLoRA checks it before it is queued."""
        given = self.settings or SettingsHandle((), LoraConfig())
        return new_run_name(given.run_name(self.widgets["run_name"]))

    def config(self, data: DataConfig) -> RunConfig:
        """Returns the job on these clips, without previews and with the steps of its widget; reads headers and digests.

        Raises a WanTrainerError where there can be no such job.
        """
        given, widgets = self.settings or SettingsHandle((), LoraConfig()), self.widgets
        base, swept = given.lora, dict(given.swept)
        expert, start = widgets.get("expert", TrainConfig.expert), widgets.get("start_from_lora", NONE)
        plan = self.model.plan.of_expert(expert_named(expert), folders.roots())
        check_menus(TrainConfig, {"expert": expert})
        expert = expert_of(plan, expert)
        variant = trained_variant(plan, expert, folders.roots())
        train = with_scaled_loss(with_model_values(self._train(expert), variant), plan)
        config = RunConfig(
            run_name=self.run_name,
            model=plan,
            partner=_partner(self.model.plan, train),
            data=data,
            lora=replace(
                base,
                rank=base.rank if "rank" in swept else widgets.get("rank", LoraConfig.rank),
                alpha=base.alpha if "alpha" in swept else widgets.get("alpha", LoraConfig.alpha),
                start_from=start_reference(start),
                low_noise_start_from=_low_noise_start(start) if expert == "both" else "",
            ),
            train=train,
        )
        return with_partner_digest(config.with_digests(folders.roots()), folders.roots())

    def elsewhere(self, config: RunConfig) -> list[RunConfig]:
        """Returns the same job as other cards compute it: a run that began on one resumes in its dtypes."""
        scaling = self._train(config.train.expert).loss_scaling
        return on_other_cards(config, self.model.asked_precision, scaling)

    def _train(self, expert: str) -> TrainConfig:
        given = {name: self.widgets[name] for name in TRAIN_WIDGETS if name in self.widgets}
        return train_config(self.settings, self.can_preview, {**given, "expert": expert})


def train_config(settings: SettingsHandle | None, can_preview: bool, widgets: dict[str, Any]) -> TrainConfig:
    train = TrainConfig.from_dict(settings.over(widgets) if settings is not None else widgets)
    return train if can_preview else replace(train, preview_every_n_steps=0)


def expert_of(plan: ModelPlan, asked: str) -> str:
    """Returns what is trained: of a plan that is still a pair both."""
    return "both" if plan.low_noise_file else asked


def _partner(plan: ModelPlan, train: TrainConfig) -> ModelPlan | None:
    """Returns what previews go through besides: of two chosen files the one that is not trained, with its own LoRAs."""
    if not plan.low_noise_file or train.expert_name not in EXPERTS or not train.preview_every_n_steps:
        return None
    return plan.of_expert(EXPERTS[1 - EXPERTS.index(train.expert_name)], folders.roots())


def _low_noise_start(name: str) -> str:
    """Returns the LoRA the low noise expert starts from, where the one chosen has a sister for it; else ""."""
    sister = name.replace("high_noise", "low_noise")
    return start_reference(sister) if sister != name and sister in folders.file_names("loras") else ""


def start_reference(name: str) -> str:
    """Returns the LoRA file of a menu as a reference; "" for none. Raises ConfigError where there is no such file."""
    if name == NONE:
        return ""
    file_of("start_from_lora", name, folders.file_names("loras"), "loras")
    return folders.model_reference("loras", name)
