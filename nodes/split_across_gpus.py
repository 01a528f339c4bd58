"""Split Across GPUs (Wan): splits one model over several cards, or trains a copy on each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from comfy_api.latest import io

from ..wan_core.abilities import abilities_of
from ..wan_core.accelerator import is_gpu
from ..wan_core.config import settings_of
from ..wan_core.files import Roots
from ..wan_core.footprint import placements_of, planned_weights
from ..wan_core.placement import MODES, PlacementConfig, resolve_placement, total_bytes
from .bridge import folders
from .bridge.types import CATEGORY, ModelHandle, WanTrainModel
from .bridge.widgets import advanced, judged_when_it_runs, one_of, searched_as, widget, widget_values

AUTO = "auto"


class SplitAcrossGPUs(io.ComfyNode):
    """Returns a new model plan; TrainLoRA places the blocks when it loads the model. Output node for "run selected"."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SplitAcrossGPUs",
            display_name="Split Across GPUs (Wan)",
            category=CATEGORY,
            **searched_as("multi gpu", "two gpus", "model parallel", "data parallel", "low vram"),
            description="Uses several GPUs: splits the transformer blocks over them (for a model that does not fit on "
            "one), trains one full copy per GPU, or splits the tokens of each clip (both faster). No mode needs NCCL, "
            "so all work on Windows.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                WanTrainModel.Input("model", tooltip="From Load Wan Model or Fp8 / Int8 Quantize."),
                widget(
                    PlacementConfig,
                    "mode",
                    default=AUTO,
                    options=[AUTO, *(mode for mode in MODES if mode not in (PlacementConfig.mode, AUTO))],
                    tooltip=settings_of(PlacementConfig)["mode"].sentence,
                ),
                widget(PlacementConfig, "devices", default="all"),
                *advanced(widget(PlacementConfig, "split_at")),
            ],
            outputs=[WanTrainModel.Output(display_name="model", tooltip="The plan with the split added.")],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls, model: ModelHandle, mode: str = AUTO, devices: str = "all", split_at: str = PlacementConfig.split_at
    ) -> io.NodeOutput:
        one_of("mode", mode, MODES)
        placement = PlacementConfig(mode=mode, devices=devices.strip(), split_at=split_at.strip())
        if placement.mode == "copy per GPU":
            # A job's identity contains the number of copies, and "all" differs between machines.
            placement = replace(placement, devices=",".join(placement.device_names()))
        resolve_placement(placement, model.variant.shape.num_layers)  # refuses devices and numbers that do not exist
        split = replace(model, plan=model.plan.with_placement(placement))
        facts = {**_split_facts(split, folders.roots()), "asked": widget_values(cls)}
        return io.NodeOutput(split, ui={"wan_split": [facts]})


def _split_facts(model: ModelHandle, roots: Roots) -> dict[str, Any]:
    """Returns the bytes of weights by device, and `copies`: for each model copy the device index of every block."""
    shape = model.variant.shape
    placements = placements_of(model.plan, shape.num_layers)
    devices = list(dict.fromkeys(device for placement in placements for device in placement.devices))
    weights = planned_weights(model.plan, roots)
    return {
        "version": 1,
        "model": model.variant.name,
        "mode": model.plan.placement.mode,
        "control_blocks": len(shape.vace_layers),
        "devices": [{"name": str(device), "title": _title(device)} for device in devices],
        "copies": [[devices.index(device) for device in placement.block_devices] for placement in placements],
        "memory": {str(device): {"weights": weights[str(device)], "total": _total(device)} for device in devices},
    }


def _title(device: torch.device) -> str:
    """Returns the vendor's name of the device; "" for the CPU."""
    return abilities_of(device).name if is_gpu(device) else ""


def _total(device: torch.device) -> int | None:
    """Returns the bytes of the device; None if they are not known."""
    total = total_bytes(device)
    return total if total < 1 << 60 else None
