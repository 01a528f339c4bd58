"""Precision Policy (Wan): what each part of the model computes in, where a preset is not enough."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.precision import PRESETS, SWITCHES, PrecisionPolicy, dtype_name, switch_values
from .bridge.types import CATEGORY, ModelHandle, WanTrainModel
from .bridge.widgets import combo, one_of, searched_as

AS_LOADED, AS_PRESET = "as loaded", "as preset"
MEANING = {
    "residual": "The token stream between blocks. In bf16 the largest loss of precision by far.",
    "norm": "Layer norms of blocks and head, with their scale and shift.",
    "qk_norm": "RMS norm of queries and keys.",
    "time": "Time embedding and its projection.",
    "modulation": "Modulation tables and gates.",
    "head": "The output projection.",
    "rope_table": "Angles of the rotary position embedding, with their cosine and sine. bf16 is too coarse for them.",
    "rope": "The rotation of queries and keys by that table.",
    "attention": "The attention product. fp32 has no flash kernel, is slow and takes much memory.",
    "adapter": "The matmuls of the LoRA. Its weights are always fp32.",
}
assert tuple(MEANING) == SWITCHES


class WanPrecisionPolicy(io.ComfyNode):
    """Returns a new plan. PrecisionAudit measures what each switch costs."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanPrecisionPolicy",
            display_name="Precision Policy (Wan)",
            category=CATEGORY,
            **searched_as("bf16", "fp16", "float32", "mixed precision", "dtype"),
            description="Sets single precision switches of the training model. Most people need only the presets of "
            "LoadWanModel; PrecisionAudit measures what a switch costs on your model.",
            inputs=[
                WanTrainModel.Input("model", tooltip="From LoadWanModel, Fp8Quantize or SplitAcrossGPUs."),
                combo(
                    "preset",
                    [AS_LOADED, *PRESETS],
                    "The preset the switches below start from. as loaded: that of the model.",
                    AS_LOADED,
                ),
                *(
                    combo(part, [AS_PRESET, *switch_values(part)], f"{MEANING[part]} compute: as the linears.")
                    for part in SWITCHES
                ),
            ],
            outputs=[
                WanTrainModel.Output(display_name="model", tooltip="The plan with this policy."),
                io.String.Output(display_name="info", tooltip="The number format of every part."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        preset: str = AS_LOADED,
        residual: str = AS_PRESET,
        norm: str = AS_PRESET,
        qk_norm: str = AS_PRESET,
        time: str = AS_PRESET,
        modulation: str = AS_PRESET,
        head: str = AS_PRESET,
        rope_table: str = AS_PRESET,
        rope: str = AS_PRESET,
        attention: str = AS_PRESET,
        adapter: str = AS_PRESET,
    ) -> io.NodeOutput:
        one_of("preset", preset, (AS_LOADED, *PRESETS))
        asked = dict(
            residual=residual, norm=norm, qk_norm=qk_norm, time=time, modulation=modulation, head=head,
            rope_table=rope_table, rope=rope, attention=attention, adapter=adapter,
        )  # fmt: skip
        switches = {
            part: one_of(part, value, (AS_PRESET, *switch_values(part)))
            for part, value in asked.items()
            if value != AS_PRESET
        }
        base = model.plan.precision.to_dict() if preset == AS_LOADED else {"preset": preset}
        policy = PrecisionPolicy.from_dict({**base, **switches})
        handle = replace(model, plan=model.plan.with_precision(policy))
        return io.NodeOutput(handle, describe_policy(handle))


def describe_policy(handle: ModelHandle) -> str:
    """The policy in words, and the dtype of every part."""
    policy, numerics = handle.plan.precision, handle.plan.precision.numerics(handle.compute_dtype)
    parts = [f"{part}: {dtype_name(getattr(numerics, part))}" for part in ("compute", *SWITCHES)]
    return "\n".join([f"precision {policy.describe()}", *parts])
