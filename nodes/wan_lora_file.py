"""Wan LoRA File: a LoRA for previews, or for a separate column in Validate Video."""

from __future__ import annotations

from comfy_api.latest import io

from ..wan_core.lora import FrozenLora
from .bridge.loras import NONE, frozen_lora, lora_marks, lora_widgets
from .bridge.types import CATEGORY, WanLoras
from .bridge.widgets import judged_when_it_runs, searched_as


class WanLoraFile(io.ComfyNode):
    """Names a file; nothing is loaded. Several can be chained."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanLoraFile",
            display_name="Wan LoRA File",
            category=CATEGORY,
            **searched_as("lora loader", "compare lora", "lightning", "lightx2v", "few-step lora", "4-step"),
            description="Selects a LoRA from any trainer: to use in previews (such as a 4-step LoRA), or to compare "
            "with the trained one in a grid.",
            inputs=[
                WanLoras.Input("loras", optional=True, tooltip="From another Wan LoRA File, to add to its LoRAs."),
                *lora_widgets(),
            ],
            outputs=[
                WanLoras.Output(
                    display_name="loras",
                    tooltip="For Wan Preview Settings, which applies all of them, and Validate Video, which renders "
                    "one column for each.",
                )
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, lora: str = NONE, low_noise_lora: str = NONE, **_: object) -> list[object]:
        return lora_marks(lora, low_noise_lora)

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls,
        loras: tuple[FrozenLora, ...] = (),
        lora: str = NONE,
        strength: float = 1.0,
        low_noise_lora: str = NONE,
        strength_low_noise: float = 1.0,
        only_what_fits: bool = False,
    ) -> io.NodeOutput:
        added = frozen_lora(lora, strength, low_noise_lora, strength_low_noise, only_what_fits)
        return io.NodeOutput((*loras, added))
