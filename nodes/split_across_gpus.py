"""Split Across GPUs (Wan): one model over several cards, or one copy per card."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.placement import MODES, PlacementConfig, resolve_placement
from .bridge import folders
from .bridge.types import CATEGORY, ModelHandle, WanTrainModel
from .bridge.widgets import combo, one_of, searched_as, text
from .card_facts import asked_of, split_facts

AUTO = "auto"


class SplitAcrossGPUs(io.ComfyNode):
    """Returns a new plan; the blocks go to their devices when TrainLoRA builds the model.

    An output node, so that "run selected" draws the split without training.
    """

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="SplitAcrossGPUs",
            display_name="Split Across GPUs (Wan)",
            category=CATEGORY,
            **searched_as("multi gpu", "two gpus", "model parallel", "data parallel", "low vram"),
            description="Spreads the transformer blocks over several GPUs (for a model that does not fit on one), or "
            "trains one full copy per GPU (faster). Neither needs NCCL, so both work on Windows.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                WanTrainModel.Input("model", tooltip="From LoadWanModel or Fp8Quantize."),
                combo(
                    "mode",
                    [AUTO, *(mode for mode in MODES if mode != "one device")],
                    "auto: split blocks. split blocks: a part of the model on each GPU. copy per GPU: "
                    "a full model on each GPU, gradients averaged.",
                ),
                text(
                    "devices",
                    "all",
                    'all, or a list such as "cuda:0,cuda:1". The first also holds embeddings and head.',
                ),
                text(
                    "split_at",
                    AUTO,
                    'For split blocks: auto, or the number of the first block of each later GPU, such as "20" or '
                    '"14,28".',
                ),
            ],
            outputs=[WanTrainModel.Output(display_name="model", tooltip="The plan with the split added.")],
        )

    @classmethod
    def execute(cls, model: ModelHandle, mode: str = AUTO, devices: str = "all", split_at: str = AUTO) -> io.NodeOutput:
        one_of("mode", mode, (AUTO, *MODES))
        placement = PlacementConfig(
            mode="split blocks" if mode == AUTO else mode, devices=devices.strip(), split_at=split_at.strip()
        )
        if placement.mode == "copy per GPU":
            # How many copies train is part of the job; "all" is another number elsewhere.
            placement = replace(placement, devices=",".join(placement.device_names()))
        resolve_placement(placement, model.variant.shape.num_layers)  # refuses devices and numbers that do not exist
        split = replace(model, plan=model.plan.with_placement(placement))
        facts = {**split_facts(split, folders.roots()), "asked": asked_of(cls)}
        return io.NodeOutput(split, ui={"wan_split": [facts]})
