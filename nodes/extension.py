"""The list of node classes."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .apply_wan_lora import ApplyWanLoRA
from .bridge.door import guarded
from .bridge.second_ids import TakenIds, loaded_before, second_of
from .cache_latents import CacheLatents
from .caption_nodes import WanClipFrames, WanSaveCaptions
from .dataset_folder import WanDatasetSettings, WanVideoDataset
from .frozen_loras import AddFrozenLora, WanLoraFile
from .load_wan_model import LoadWanModel
from .plan_memory import PlanMemory
from .precision_audit import PrecisionAudit
from .precision_nodes import Fp8Quantize, WanPrecisionPolicy
from .routes import register_routes
from .settings_nodes import WanSweepSettings, WanTrainSettings
from .split_across_gpus import SplitAcrossGPUs
from .train_lora import TrainLoRA
from .validate_video import ValidateVideo
from .wan_cache_from_latents import WanCacheFromLatents
from .wan_dataset_from_file import WanDatasetFromFile
from .wan_dataset_from_images import WanDatasetFromImages
from .wan_preview_settings import WanPreviewSettings
from .without_clips import WanSliderPrompts, WanSyntheticDataset

NODES: list[type[io.ComfyNode]] = [
    LoadWanModel,
    WanPrecisionPolicy,
    Fp8Quantize,
    SplitAcrossGPUs,
    AddFrozenLora,
    WanVideoDataset,
    WanDatasetSettings,
    WanDatasetFromFile,
    WanDatasetFromImages,
    WanClipFrames,
    WanSaveCaptions,
    CacheLatents,
    WanCacheFromLatents,
    WanSliderPrompts,
    WanSyntheticDataset,
    WanTrainSettings,
    WanSweepSettings,
    WanPreviewSettings,
    WanLoraFile,
    TrainLoRA,
    ValidateVideo,
    ApplyWanLoRA,
    PrecisionAudit,
    PlanMemory,
]


class WanTrainerExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        nodes = [guarded(node) for node in NODES]
        if loaded_before(nodes):
            return []
        taken = TakenIds(nodes)
        # Not in on_load, which ComfyUI 0.3.75 does not call. A second call adds nothing.
        register_routes(taken, {node.__name__: node for node in NODES})
        return [*taken.free(), *map(second_of, nodes)]
