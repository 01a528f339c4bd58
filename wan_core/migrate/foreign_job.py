"""A job of another trainer: the widgets that the job sets, and the account of its settings."""

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
from ..words import filled

LOADER, QUANTIZE, SPLIT, DATA = "LoadWanModel", "Fp8Quantize", "SplitAcrossGPUs", "WanDatasetFromFile"
FROZEN, CUTTING, SLIDER = "AddFrozenLora", "WanDatasetSettings", "WanSliderPrompts"
SETTINGS, PREVIEW, TRAINER = "WanTrainSettings", "WanPreviewSettings", "TrainLoRA"
UNKNOWN_MODEL = "choose a model"
"""placeholder for a file that the settings do not name. No such file exists, so the user has to choose one"""
_CONFIGS = {
    LOADER: (ModelPlan,),
    QUANTIZE: (QuantizeConfig,),
    SETTINGS: (TrainConfig, LoraConfig),
    PREVIEW: (SampleConfig,),
    TRAINER: (TrainConfig, LoraConfig),
}
"""node id -> configs with the defaults of the widgets"""
_ADAPTER = {
    shown: name
    for shown, name in names_on_nodes(LoraConfig).items()
    if name not in ("rank", "alpha", "targets", "rank_patterns")
}
"""widget of Wan Train Settings -> field of LoraConfig"""


@dataclass(frozen=True)
class Kind:
    """A published Wan model and its files in ComfyUI."""

    name: str
    file: str
    low_noise_file: str = ""
    vae: str = "wan_2.1_vae.safetensors"
    reads_clip: bool = False
    """whether the model reads CLIP image tokens"""


@dataclass
class ForeignJob:
    """An incomplete job; `settle` completes it."""

    trainer: str
    """display name"""
    source: str
    """name of the settings file"""
    ledger: Ledger
    """account of the complete file"""
    now: Ledger = field(init=False)
    """account of the section being read"""
    values: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """node id -> widget -> value; other widgets keep their defaults"""

    data: str = ""
    """path of the dataset settings, as written in the settings"""
    frozen: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    """frozen LoRAs: file, strength"""
    in_previews: dict[str, float] = field(default_factory=dict[str, float])
    """frozen LoRA -> its strength in previews, as a multiple of that in training, if different"""
    kind: Kind | None = None
    expert: str = ""
    """the trained expert: "high", "low" or "both"; "" if unknown"""

    unset: dict[str, str] = field(default_factory=dict[str, str])
    """key -> text of a value that the file does not define"""

    huge_rank: int = 0
    """the rank of the settings if it is above 1024, else 0"""

    epochs: tuple[str, int] | None = None
    """(key, epochs), if the length of the run is in epochs"""

    every_epochs: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """widget -> (key, epochs), for intervals in epochs"""
    clips: int = 0
    """clips per epoch, repeats included; 0: unknown"""
    mended: list[str] = field(default_factory=list[str])
    """the corrected settings, as sentences"""

    hints: list[str] = field(default_factory=list[str])
    """the remaining tasks of the user, as sentences"""

    def __post_init__(self) -> None:
        self.now = self.ledger

    def mend(self, template: str, **values: object) -> None:
        self.mended.append(filled(template, **values))

    def hint(self, template: str, **values: object) -> None:
        self.hints.append(filled(template, **values))

    def put(self, at: str, value: Any) -> None:
        """Sets a widget; `at`: such as "TrainLoRA.rank"."""
        node, _, widget = at.partition(".")
        self.values.setdefault(node, {})[widget] = value

    def said(self, key: str) -> Any:
        """Returns the value of a top-level key; None for a missing one."""
        return self.ledger.get(key, object, None)

    def of(self, at: str) -> Any:
        """Returns the value of a widget; the default if the job does not set it."""
        node, _, widget = at.partition(".")
        return self.values.get(node, {}).get(widget, default_of(at))

    @property
    def is_pair(self) -> bool:
        """Whether both experts of a pair are loaded."""
        return self.of(f"{LOADER}.low_noise_model") not in (None, "", "none")

    def lora(self) -> LoraConfig:
        settings = self.values.get(SETTINGS, {})
        targets = tuple(line.strip() for line in settings.get("lora_targets", "").splitlines() if line.strip())
        return LoraConfig(
            rank=self.of("TrainLoRA.rank"),
            alpha=self.of("TrainLoRA.alpha"),
            targets=targets or LoraConfig.targets,
            **{name: settings[shown] for shown, name in _ADAPTER.items() if shown in settings},
        )

    def train(self) -> TrainConfig:
        known = {**self.values.get(SETTINGS, {}), **self.values.get(TRAINER, {})}
        if listed := known.get("timestep_list"):
            known["timestep_list"] = [float(number) for number in listed.split(",")]
        return TrainConfig.from_dict({name: value for name, value in known.items() if name in settings_of(TrainConfig)})

    def model(self, plan: ModelPlan) -> ModelPlan:
        """Returns `plan` with the job's settings, but the plan's own files and placement."""
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
                preview_strength=self.in_previews.get(file, 1.0),
            )
            for file, strength in self.frozen
        ]
        return replace(plan, **named, loras=(*plan.loras, *added))

    def account(self) -> Mapping[str, list[str]]:
        """Returns title -> sentences of the account, without empty titles."""
        titles = ("imported", "changed", "no counterpart here", "unknown, so not used")
        found: dict[str, list[str]] = dict(zip(titles, self.ledger.complete(), strict=True))
        found["corrected"], found["to do"] = self.mended, self.hints
        return {title: sentences for title, sentences in found.items() if sentences}


def default_of(at: str) -> Any:
    """Returns the default of a setting's widget; None for other widgets."""
    node, _, widget = at.partition(".")
    for config in _CONFIGS.get(node, ()):
        if name := names_on_nodes(config).get(widget):
            return "" if widget == "lora_targets" else settings_of(config)[name].default
    return None
