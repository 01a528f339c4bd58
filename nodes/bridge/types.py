"""Socket types and their frozen handles. No handle holds a tensor or a loaded model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from comfy_api.latest import io

from ...wan_core.cache import CacheSet, EncodingReport
from ...wan_core.checkpoint import WanVariant
from ...wan_core.load import ModelPlan
from ...wan_core.lora import LoraConfig

WanTrainModel = io.Custom("WAN_TRAIN_MODEL")
WanDataset = io.Custom("WAN_DATASET")
WanDatasetSettingsType = io.Custom("WAN_DATASET_SETTINGS")
WanCache = io.Custom("WAN_CACHE")
WanSettings = io.Custom("WAN_SETTINGS")
WanValidation = io.Custom("WAN_VALIDATION")
WanLoras = io.Custom("WAN_LORAS")
WanRun = io.Custom("WAN_RUN")


@dataclass(frozen=True)
class ModelHandle:
    """A WAN_TRAIN_MODEL: the model plan, and facts from the file's header (for a pair, the high-noise file)."""

    plan: ModelPlan
    variant: WanVariant
    compute_dtype: torch.dtype
    quantization: str
    """quantization of the file's linears; "none": not quantized"""
    base_precision: str = "as in file"
    """the widget base_precision; the plan has the resolved value"""

    def __repr__(self) -> str:
        scheme = f", {self.plan.quantize.scheme}" if self.plan.quantize else ""
        pair = " and low noise" if self.plan.low_noise_file else ""
        return f"<Wan {self.variant.name}{pair}{scheme}, {self.plan.placement.mode}>"


@dataclass(frozen=True)
class CacheHandle:
    """A WAN_CACHE: a complete cache set on disk."""

    fingerprint: str
    cache_set: CacheSet
    report: EncodingReport
    prompt_id: str
    """id of the queue entry that encoded the set; in later queue entries, all its entries are cache hits"""

    def __repr__(self) -> str:  # short: core nodes such as Preview Any show it
        return f"<cache of {len(self.cache_set.items)} items, {self.fingerprint[:12]}>"


@dataclass(frozen=True)
class SettingsHandle:
    """A WAN_SETTINGS: settings of TrainConfig by name, and the LoRA settings without a widget on TrainLoRA."""

    train: tuple[tuple[str, object], ...] = ()
    lora: LoraConfig = LoraConfig()
    swept: tuple[tuple[str, object], ...] = ()
    """settings of a sweep, which override the widgets of TrainLoRA too"""

    def run_name(self, name: str) -> str:
        """Returns `name` followed by the values of a sweep."""
        words = [f"{key}_{value:g}" if isinstance(value, float) else f"{key}_{value}" for key, value in self.swept]
        return "_".join([name, *(word.replace("+", "") for word in words)])  # 1e+06 becomes 1e06


@dataclass(frozen=True)
class DatasetSettingsHandle:
    """A WAN_DATASET_SETTINGS: settings of DatasetConfig by name, without a widget on WanVideoDataset."""

    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class RunHandle:
    """A WAN_RUN: a run directory and its newest saved step."""

    directory: Path
    step: int
    fps: float

    def __repr__(self) -> str:
        return f"<run {self.directory.name}, step {self.step}>"
