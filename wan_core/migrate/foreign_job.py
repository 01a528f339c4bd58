"""A job of another trainer: the widgets that the job sets, and the account of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import names_on_nodes, settings_of
from ..importers import Ledger
from ..load import ModelPlan
from ..lora import LoraConfig
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
_SHORT = {"preview": PREVIEW}
_ON_TRAINER = frozenset(
    ("run_name", "steps", "learning_rate", "rank", "alpha", "seed", "blocks_to_swap", "save_every_n_steps",
     "preview_every_n_steps", "start_from_lora", "expert")
)  # fmt: skip
_ADAPTER = {
    shown: name
    for shown, name in names_on_nodes(LoraConfig).items()
    if name not in ("rank", "alpha", "targets", "rank_patterns")
}
"""widget of Wan Train Settings -> field of LoraConfig"""


def place_of(at: str) -> tuple[str, str]:
    """Returns node id and widget of "LoadWanModel.attention" or "preview.seed"; a name alone is of Train Wan LoRA or
    Wan Train Settings."""
    node, _, widget = at.rpartition(".")
    return _SHORT.get(node, node) or (TRAINER if widget in _ON_TRAINER else SETTINGS), widget


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
    reading: tuple[str, str] = "", ""
    """(name, widget) of the key being read"""
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
        """Sets a widget; `at`: as in `place_of`."""
        node, widget = place_of(at)
        self.values.setdefault(node, {})[widget] = value

    def said(self, key: str) -> Any:
        """Returns the value of a top-level key; None for a missing one."""
        return self.ledger.get(key, object, None)

    def of(self, at: str) -> Any:
        """Returns the value of a widget; the default if the job does not set it."""
        node, widget = place_of(at)
        return self.values.get(node, {}).get(widget, default_of(at))

    @property
    def is_pair(self) -> bool:
        """Whether both experts of a pair are loaded."""
        return self.of(f"{LOADER}.low_noise_model") not in (None, "", "none")

    def lora(self) -> LoraConfig:
        settings = self.values.get(SETTINGS, {})
        targets = tuple(line.strip() for line in settings.get("lora_targets", "").splitlines() if line.strip())
        return LoraConfig(
            rank=self.of("rank"),
            alpha=self.of("alpha"),
            targets=targets or LoraConfig.targets,
            **{name: settings[shown] for shown, name in _ADAPTER.items() if shown in settings},
        )

    def train(self) -> TrainConfig:
        known = {**self.values.get(SETTINGS, {}), **self.values.get(TRAINER, {})}
        if listed := known.get("timestep_list"):
            known["timestep_list"] = [float(number) for number in listed.split(",")]
        return TrainConfig.from_dict({name: value for name, value in known.items() if name in settings_of(TrainConfig)})

    def account(self) -> Mapping[str, list[str]]:
        """Returns title -> sentences of the account, without empty titles."""
        titles = ("imported", "changed", "no counterpart here", "unknown, so not used")
        found: dict[str, list[str]] = dict(zip(titles, self.ledger.complete(), strict=True))
        found["corrected"], found["to do"] = self.mended, self.hints
        return {title: sentences for title, sentences in found.items() if sentences}


def default_of(at: str) -> Any:
    """Returns the default of a setting's widget; None for other widgets."""
    node, widget = place_of(at)
    for config in _CONFIGS.get(node, ()):
        if name := names_on_nodes(config).get(widget):
            return "" if widget == "lora_targets" else settings_of(config)[name].default
    return None
