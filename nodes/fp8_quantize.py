"""Fp8 / Int8 Quantize (Wan): quantizes the frozen base to 8 bits, half the memory. The LoRA stays in full precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..wan_core.job import check_quantize
from ..wan_core.precision import QuantizeConfig
from ..wan_core.words import logger
from .bridge.types import CATEGORY, ModelHandle, WanTrainModel
from .bridge.widgets import advanced, check_menus, judged_when_it_runs, searched_as, widget

_log = logger(__name__)


class Fp8Quantize(io.ComfyNode):
    """Returns a new model plan; TrainLoRA quantizes the weights block by block when it loads the model."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Fp8Quantize",
            display_name="Fp8 / Int8 Quantize (Wan)",
            category=CATEGORY,
            **searched_as("8 bit", "quantization", "low vram", "save memory"),
            description="Quantizes the base model to 8 bits for training: about half the memory of bf16. Only frozen "
            "weights are quantized, not the LoRA. It works before or after Split Across GPUs. A file that is already "
            "quantized (fp8, GGUF) stays unchanged.",
            inputs=[
                WanTrainModel.Input("model", tooltip="From Load Wan Model or Split Across GPUs."),
                *(widget(QuantizeConfig, name) for name in ("scheme", "keep_high_precision")),
                *advanced(*(widget(QuantizeConfig, name) for name in ("include", "exclude"))),
            ],
            outputs=[WanTrainModel.Output(display_name="model", tooltip="The plan with quantization added.")],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(cls, model: ModelHandle, **values: Any) -> io.NodeOutput:
        check_menus(QuantizeConfig, values)
        quantize = QuantizeConfig(**values, vace_blocks=bool(model.variant.shape.vace_layers))
        check_quantize(quantize, model.variant.shape)
        if model.quantization != "none" and model.plan.base_precision == "as in file":
            note = (
                f"The model is stored quantized already ({model.quantization}), and Fp8 / Int8 Quantize does not "
                "change it. To quantize it again, set base_precision of Load Wan Model to bf16."
            )
            _log.warning("%s", note)
            return io.NodeOutput(model, ui={"text": [note]})
        return io.NodeOutput(replace(model, plan=model.plan.with_quantize(quantize)))
