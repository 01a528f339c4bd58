"""Add Frozen LoRA: applies a LoRA to the base model while another one is trained."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.load import inspect_model, inspect_pair
from .bridge import folders
from .bridge.loras import NONE, frozen_lora, lora_marks, lora_widgets
from .bridge.types import CATEGORY, ModelHandle, WanTrainModel
from .bridge.widgets import judged_when_it_runs, number, searched_as


class AddFrozenLora(io.ComfyNode):
    """Applies a distilled or style LoRA during training. The node follows LoadWanModel; several can be chained."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AddFrozenLora",
            display_name="Add Frozen LoRA (Training)",
            category=CATEGORY,
            **searched_as(
                "lora loader", "stack lora", "lightning", "lightx2v", "distilled lora", "base lora", "training adapter"
            ),
            description="Applies a LoRA to the base model during training. It stays frozen and is not part of the "
            "trained file: when you generate, add it to a LoRA loader too, unless preview_strength is 0.",
            inputs=[
                WanTrainModel.Input(
                    "model", tooltip="From Load Wan Model, or another node that outputs a model to train."
                ),
                *lora_widgets(),
                number(
                    "preview_strength",
                    1.0,
                    -100.0,
                    100.0,
                    "Strength in previews and validation clips, as a multiple of that in training: 1 = the same, 0 = "
                    "in training only. Set it to 0 for a training adapter, which undoes a distillation while a LoRA is "
                    "trained. For a speed LoRA in previews only, use Wan LoRA File with Wan Preview Settings instead.",
                ),
            ],
            outputs=[WanTrainModel.Output(display_name="model", tooltip="The plan with the LoRA added.")],
        )

    @classmethod
    def fingerprint_inputs(cls, lora: str = NONE, low_noise_lora: str = NONE, **_: object) -> list[object]:
        return lora_marks(lora, low_noise_lora)

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        lora: str = NONE,
        strength: float = 1.0,
        low_noise_lora: str = NONE,
        strength_low_noise: float = 1.0,
        only_what_fits: bool = False,
        preview_strength: float = 1.0,
    ) -> io.NodeOutput:
        added = frozen_lora(lora, strength, low_noise_lora, strength_low_noise, only_what_fits)
        added = replace(added, preview_strength=preview_strength)
        plan = replace(model.plan, loras=(*model.plan.loras, added))
        (inspect_pair if plan.low_noise_file else inspect_model)(
            plan, folders.roots()
        )  # raises for a LoRA of another model
        return io.NodeOutput(replace(model, plan=plan))
