"""Split Across GPUs (Wan): splits one model over several cards, or trains a copy on each."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.abilities import abilities_of
from ..wan_core.accelerator import is_gpu
from ..wan_core.config import settings_of
from ..wan_core.footprint import placements_of, planned_weights
from ..wan_core.placement import MODES, PlacementConfig, resolve_placement, total_bytes
from .bridge import folders
from .bridge.types import ModelHandle, WanTrainModel
from .bridge.widgets import advanced, in_menu, judged_when_it_runs, one_of, widget, widget_values

AUTO = "auto"


class SplitAcrossGPUs(io.ComfyNode):
    """Returns a new model plan; TrainLoRA places the blocks when it loads the model. Output node for "run selected"."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SplitAcrossGPUs",
            display_name="Split Across GPUs (Wan)",
            **in_menu("multi gpu, two gpus, model parallel, data parallel, low vram"),
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
        shape = model.variant.shape
        placements = placements_of(split.plan, shape.num_layers)
        cards = list(dict.fromkeys(device for one in placements for device in one.devices))
        weights, totals = planned_weights(split.plan, folders.roots()), {card: total_bytes(card) for card in cards}
        facts = {
            "version": 1,
            "model": model.variant.name,
            "mode": split.plan.placement.mode,
            "control_blocks": len(shape.vace_layers),
            "devices": [
                {"name": str(card), "title": abilities_of(card).name if is_gpu(card) else ""} for card in cards
            ],
            # for each model copy, the device index of every block
            "copies": [[cards.index(device) for device in one.block_devices] for one in placements],
            "memory": {
                str(card): {"weights": weights[str(card)], "total": total if total < 1 << 60 else None}  # None: unknown
                for card, total in totals.items()
            },
            "asked": widget_values(cls),
        }
        return io.NodeOutput(split, ui={"wan_split": [facts]})
