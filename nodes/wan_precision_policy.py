"""Precision Policy (Wan): the compute dtype of each part of the model, for choices that no preset has."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.config import settings_of
from ..wan_core.precision import PRESETS, SWITCHES, PrecisionPolicy, dtype_name, switch_values
from .bridge.types import CATEGORY, ModelHandle, WanTrainModel
from .bridge.widgets import advanced, check_menus, judged_when_it_runs, one_of, searched_as, widget

AS_LOADED, AS_PRESET = "as loaded", "as preset"


class WanPrecisionPolicy(io.ComfyNode):
    """Returns a new plan. PrecisionAudit measures the error of each switch."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        known = settings_of(PrecisionPolicy)
        return io.Schema(
            node_id="WanPrecisionPolicy",
            display_name="Precision Policy (Wan)",
            category=CATEGORY,
            **searched_as("bf16", "fp16", "float32", "mixed precision", "dtype"),
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
        return io.NodeOutput(handle, _describe_policy(handle))


def _describe_policy(handle: ModelHandle) -> str:
    policy, numerics = handle.plan.precision, handle.plan.precision.numerics(handle.compute_dtype)
    parts = [f"{part}: {dtype_name(getattr(numerics, part))}" for part in ("compute", *SWITCHES, "matmul")]
    return "\n".join([f"precision {policy.describe()}", *parts])
