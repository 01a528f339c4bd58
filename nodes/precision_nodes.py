"""Fp8 / Int8 Quantize (Wan) and Precision Policy (Wan): number formats of the frozen base, and of each part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..wan_core.config import settings_of
from ..wan_core.job import check_quantize
from ..wan_core.precision import PRESETS, SWITCHES, PrecisionPolicy, QuantizeConfig, dtype_name, switch_values
from ..wan_core.words import logger
from .bridge.types import ModelHandle, WanTrainModel
from .bridge.widgets import advanced, check_menus, in_menu, judged_when_it_runs, one_of, widget, widgets

_log = logger(__name__)


class Fp8Quantize(io.ComfyNode):
    """Returns a new model plan; TrainLoRA quantizes the weights block by block when it loads the model."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Fp8Quantize",
            display_name="Fp8 / Int8 Quantize (Wan)",
            **in_menu("8 bit, quantization, low vram, save memory"),
            description="Quantizes the base model to 8 bits for training: about half the memory of bf16. Only frozen "
            "weights are quantized, not the LoRA. It works before or after Split Across GPUs. A file that is already "
            "quantized (fp8, GGUF) stays unchanged.",
            inputs=[
                WanTrainModel.Input("model", tooltip="From Load Wan Model or Split Across GPUs."),
                *widgets(QuantizeConfig, "scheme keep_high_precision"),
                *advanced(*widgets(QuantizeConfig, "include exclude")),
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


AS_LOADED, AS_PRESET = "as loaded", "as preset"


class WanPrecisionPolicy(io.ComfyNode):
    """Returns a new plan. PrecisionAudit measures the error of each switch."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        known = settings_of(PrecisionPolicy)
        return io.Schema(
            node_id="WanPrecisionPolicy",
            display_name="Precision Policy (Wan)",
            **in_menu("bf16, fp16, float32, mixed precision, dtype"),
            description="Sets single precision switches of the model to train. Most people need only the presets of "
            "Load Wan Model. Precision Audit measures what a switch costs on your model.",
            inputs=[
                WanTrainModel.Input("model", tooltip="From Load Wan Model, Fp8 / Int8 Quantize or Split Across GPUs."),
                widget(
                    PrecisionPolicy,
                    "preset",
                    default=AS_LOADED,
                    options=[AS_LOADED, *PRESETS],
                    tooltip=f"{known['preset'].sentence} as loaded: the model's own preset. Choose the nearest "
                    "one, then change single switches.",
                ),
                *advanced(
                    *(
                        widget(
                            PrecisionPolicy,
                            part,
                            default=AS_PRESET,
                            options=[AS_PRESET, *switch_values(part)],
                            tooltip=f"{known[part].sentence} compute: like the linear layers. Change it after "
                            "Precision Audit (Wan) has measured what it costs.",
                        )
                        for part in SWITCHES
                    )
                ),
                widget(PrecisionPolicy, "matmul"),
                *advanced(widget(PrecisionPolicy, "float32_matmul_precision")),
            ],
            outputs=[
                WanTrainModel.Output(display_name="model", tooltip="The plan with this policy."),
                io.String.Output(display_name="info", tooltip="The dtype of every part."),
            ],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        preset: str = AS_LOADED,
        matmul: str = PrecisionPolicy.matmul,
        float32_matmul_precision: str = PrecisionPolicy.float32_matmul_precision,
        **parts: str,
    ) -> io.NodeOutput:
        products = {"matmul": matmul, "float32_matmul_precision": float32_matmul_precision}
        check_menus(PrecisionPolicy, products)
        one_of("preset", preset, (AS_LOADED, *PRESETS))
        switches = {
            part: one_of(part, value, (AS_PRESET, *switch_values(part)))
            for part, value in parts.items()
            if value != AS_PRESET
        }
        # A chosen preset resets the switches of a policy node before this one.
        base = model.plan.precision.to_dict() if preset == AS_LOADED else {"preset": preset}
        policy = PrecisionPolicy.from_dict({**base, **switches, **products})
        handle = replace(model, plan=model.plan.with_precision(policy))
        numerics = policy.numerics(handle.compute_dtype)
        lines = [f"{part}: {dtype_name(getattr(numerics, part))}" for part in ("compute", *SWITCHES, "matmul")]
        return io.NodeOutput(handle, "\n".join([f"precision {policy.describe()}", *lines]))
