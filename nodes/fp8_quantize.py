"""Fp8 / Int8 Quantize (Wan): the frozen base model in 8 bits, at half the memory. The LoRA stays in full precision."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.errors import WanTrainerError
from ..wan_core.precision import SCHEMES, QuantizeConfig, check_torchao, check_torchao_version
from ..wan_core.run import check_quantize
from ..wan_core.words import logger
from .bridge.types import CATEGORY, ModelHandle, WanTrainModel
from .bridge.widgets import combo, flag, one_of, searched_as, text

_log = logger(__name__)


class Fp8Quantize(io.ComfyNode):
    """Returns a new plan; the weights are quantized when TrainLoRA builds the model, block by block."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="Fp8Quantize",
            display_name="Fp8 / Int8 Quantize (Wan)",
            category=CATEGORY,
            **searched_as("8 bit", "quantization", "low vram", "save memory"),
            description="Trains on an 8-bit copy of the base model: about half the memory of bf16. Weights only; the "
            "LoRA is not quantized. May stand before or after SplitAcrossGPUs. A file that is fp8 already stays as it "
            "is.",
            inputs=[
                WanTrainModel.Input("model", tooltip="From LoadWanModel or SplitAcrossGPUs."),
                combo(
                    "scheme",
                    list(SCHEMES),
                    "fp8_e4m3fn: 8-bit float. int8: 8-bit integer, more exact, same size. One scale per output row.",
                ),
                flag(
                    "keep_high_precision",
                    True,
                    "Leave embeddings, time path, head and norms as they are. They are small and sensitive.",
                ),
                text("include", "", "Regular expression: only linears whose name matches become 8-bit. Empty: all."),
                text(
                    "exclude",
                    "",
                    'Regular expression: linears to leave alone, for example "blocks\\.0\\.". Empty: none.',
                ),
            ],
            outputs=[WanTrainModel.Output(display_name="model", tooltip="The plan with quantization added.")],
        )

    @classmethod
    def validate_inputs(cls, scheme: str | None = SCHEMES[0]) -> bool | str:
        """Refuses before clips are encoded for an hour what could not be quantized afterwards."""
        try:
            check_torchao_version()
            return scheme is None or bool(one_of("scheme", scheme, SCHEMES))
        except WanTrainerError as error:
            return str(error)

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        scheme: str = SCHEMES[0],
        keep_high_precision: bool = True,
        include: str = "",
        exclude: str = "",
    ) -> io.NodeOutput:
        check_torchao()
        quantize = QuantizeConfig(
            scheme=one_of("scheme", scheme, SCHEMES),
            keep_high_precision=keep_high_precision,
            include=include,
            exclude=exclude,
            vace_blocks=bool(model.variant.shape.vace_layers),
        )
        check_quantize(quantize, model.variant.shape)
        if model.quantization not in ("none", "gguf") and model.plan.base_precision == "as in file":
            note = (
                f"The model is stored quantized already ({model.quantization}); Fp8Quantize leaves it so. "
                "To quantize it anew, set base_precision of LoadWanModel to bf16."
            )
            _log.warning("%s", note)
            return io.NodeOutput(model, ui={"text": [note]})
        return io.NodeOutput(replace(model, plan=model.plan.with_quantize(quantize)))
