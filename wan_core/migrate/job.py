"""A job that comes from another trainer: the widgets it sets, and what the reading of it has found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..config import names_on_nodes, settings_of
from ..importers import Ledger
from ..load import ModelPlan
from ..lora import FrozenLora, LoraConfig
from ..precision import QuantizeConfig
from ..sampler import SampleConfig
from ..train import TrainConfig

LOADER, QUANTIZE, SPLIT, DATA = "LoadWanModel", "Fp8Quantize", "SplitAcrossGPUs", "WanDatasetFromFile"
FROZEN, CUTTING = "AddFrozenLora", "WanDatasetSettings"
SETTINGS, PREVIEW, TRAINER = "WanTrainSettings", "WanPreviewSettings", "TrainLoRA"
ASKED = "choose a model"
"""stands in place of a file that the settings do not tell; no file is called so, so nothing is trained until one is
chosen"""
_CONFIGS = {
    LOADER: (ModelPlan,),
    QUANTIZE: (QuantizeConfig,),
    SETTINGS: (TrainConfig, LoraConfig),
    PREVIEW: (SampleConfig,),
    TRAINER: (TrainConfig, LoraConfig),
}
"""where the default of a node's widget stands"""
_ADAPTER = {
    shown: name
    for shown, name in names_on_nodes(LoraConfig).items()
    if name not in ("rank", "alpha", "targets", "rank_patterns")
}
"""widgets of Wan Train Settings -> settings of the adapter, as they are"""


@dataclass(frozen=True)
class Kind:
    """A published Wan model, and the files ComfyUI has it in."""

    name: str
    file: str
    low_noise_file: str = ""
    vae: str = "wan_2.1_vae.safetensors"
    reads_clip: bool = False
    """is given image tokens of CLIP"""


@dataclass
class Job:
    """The job as far as it is known; `settle` makes it whole."""

    trainer: str
    """its name, as people write it"""
    source: str
    """name of the settings file"""
    ledger: Ledger
    """the account of the whole file"""
    now: Ledger = field(init=False)
    """that of the section that is being read"""
    values: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """node id -> widget -> value; a node that is not here stays out of the graph, or as it is"""
    data: str = ""
    """the dataset settings that go with it, as the settings call them"""
    frozen: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    """LoRAs that act under the one that is trained: file, strength"""
    kind: Kind | None = None
    expert: str = ""
    """high or low, where one of a pair is trained and the settings show which; both"""
    unset: dict[str, str] = field(default_factory=dict[str, str])
    """key -> its value as it is written, where nothing in the file says what it stands for"""
    huge_rank: int = 0
    """above all ranks here, as it was stated"""
    epochs: tuple[str, int] | None = None
    """(key, epochs) where the length is given so"""
    every_epochs: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """widget -> (key, epochs) where something happens every so many epochs"""
    clips: int = 0
    """that an epoch sees, repeats included; 0: not known"""
    mended: list[str] = field(default_factory=list[str])
    """known mistakes that were put right, a sentence each"""
    hints: list[str] = field(default_factory=list[str])
    """what a person has to do or should know, a sentence each"""

    def __post_init__(self) -> None:
        self.now = self.ledger

    def put(self, at: str, value: Any) -> None:
        """Set a widget, named as "TrainLoRA.rank"."""
        node, _, widget = at.partition(".")
        self.values.setdefault(node, {})[widget] = value

    def said(self, key: str) -> Any:
        """Returns what the file says under a key of its first level; None where it says nothing."""
        return self.ledger.get(key, object, None)

    def of(self, at: str) -> Any:
        """The value of a widget; its default where nobody has set it."""
        node, _, widget = at.partition(".")
        return self.values.get(node, {}).get(widget, default_of(at))

    @property
    def is_pair(self) -> bool:
        """Whether both experts of a pair are loaded."""
        return self.of(f"{LOADER}.low_noise_model") not in (None, "", "none")

    def lora(self) -> LoraConfig:
        """Returns the LoRA as the nodes would make it."""
        settings = self.values.get(SETTINGS, {})
        targets = tuple(line.strip() for line in settings.get("lora_targets", "").splitlines() if line.strip())
        return LoraConfig(
            rank=self.of("TrainLoRA.rank"),
            alpha=self.of("TrainLoRA.alpha"),
            targets=targets or LoraConfig.targets,
            **{name: settings[shown] for shown, name in _ADAPTER.items() if shown in settings},
        )

    def train(self) -> TrainConfig:
        """Returns the training as the nodes would make it."""
        known = {**self.values.get(SETTINGS, {}), **self.values.get(TRAINER, {})}
        if listed := known.get("timestep_list"):
            known["timestep_list"] = [float(number) for number in listed.split(",")]
        return TrainConfig.from_dict({name: value for name, value in known.items() if name in settings_of(TrainConfig)})

    def model(self, plan: ModelPlan) -> ModelPlan:
        """Returns `plan`, whose files are chosen, as the nodes would make it; where its parts lie is left to it."""
        loader = self.values.get(LOADER, {})
        named: dict[str, Any] = {name: loader[name] for name in ("base_precision", "attention") if name in loader}
        if QUANTIZE in self.values:
            named["quantize"] = QuantizeConfig.from_dict(self.values[QUANTIZE])
        low = bool(plan.low_noise_file)
        added = [
            FrozenLora(
                file=f"loras:{file}",
                strength=strength,
                low_noise_file=f"loras:{file}" if low else "",
                low_noise_strength=strength,
            )
            for file, strength in self.frozen
        ]
        return replace(plan, **named, loras=(*plan.loras, *added))

    def account(self) -> Mapping[str, list[str]]:
        """Returns what became of every key, by titles; empty ones are left out."""
        titles = ("taken over", "changed", "no counterpart here", "not known, so not used")
        found: dict[str, list[str]] = dict(zip(titles, self.ledger.complete(), strict=True))
        found["put right"], found["to do"] = self.mended, self.hints
        return {title: sentences for title, sentences in found.items() if sentences}


def default_of(at: str) -> Any:
    """The default of a widget that stands for a setting; None for others."""
    node, _, widget = at.partition(".")
    for config in _CONFIGS.get(node, ()):
        if name := names_on_nodes(config).get(widget):
            return "" if widget == "lora_targets" else settings_of(config)[name].default
    return None
