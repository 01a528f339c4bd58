"""Add Frozen LoRA: applies a LoRA to the base model in training. Wan LoRA File: LoRAs for previews and grids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..wan_core.errors import ConfigError
from ..wan_core.files import file_mark, sampled_digest
from ..wan_core.load import inspect_model, inspect_pair
from ..wan_core.lora import FrozenLora, holds_both_experts
from .bridge import folders
from .bridge.types import ModelHandle, WanLoras, WanTrainModel
from .bridge.widgets import combo, file_of, flag, in_menu, judged_when_it_runs, strength_input

_NONE = "none"


def _lora_inputs() -> list[io.Input]:
    """Returns a LoRA file for a model, or one for each expert of a pair."""
    known = [_NONE, *folders.file_names("loras")]
    return [
        combo(
            "lora",
            known,
            "A LoRA in models/loras, from any trainer. For a Wan 2.2 A14B pair, the high-noise file, or a file with "
            "both experts.",
        ),
        strength_input(
            "strength",
            "Strength of the LoRA. 1.0 = as trained, 0 = no effect. Lower it when its effect is too strong.",
        ),
        combo(
            "low_noise_lora",
            known,
            "The LoRA file for the low-noise model of a Wan 2.2 A14B pair. none: no LoRA on that model. Choose it when "
            "the LoRA of a pair is two files.",
        ),
        strength_input(
            "strength_low_noise",
            "Strength of the low-noise LoRA. 1.0 = as trained, 0 = no effect. Lower it when its effect is too strong.",
        ),
        flag(
            "only_what_fits",
            False,
            "Skip keys that do not fit this model, such as those of a text encoder or of a layer of another size; the "
            "log names them. Off: such a file is refused. Turn it on when the keys that do not fit are unimportant.",
        ),
    ]


def _file_marks(cls: type[io.ComfyNode], lora: str = _NONE, low_noise_lora: str = _NONE, **_: object) -> list[object]:
    """Returns marks that change with the files, without paths, because ComfyUI writes them into image metadata."""
    known = folders.file_names("loras")
    named = [name for name in (lora, low_noise_lora) if name in known]
    return [file_mark(folders.roots().resolve(folders.model_reference("loras", name))) for name in named]


class AddFrozenLora(io.ComfyNode):
    """Applies a distilled or style LoRA during training. The node follows LoadWanModel; several can be chained."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AddFrozenLora",
            display_name="Add Frozen LoRA (Training)",
            **in_menu("lora loader, stack lora, lightning, lightx2v, distilled lora, base lora, training adapter"),
            description="Applies a LoRA to the base model during training. It stays frozen and is not part of the "
            "trained file: when you generate, add it to a LoRA loader too, unless preview_strength is 0.",
            inputs=[
                WanTrainModel.Input(
                    "model", tooltip="From Load Wan Model, or another node that outputs a model to train."
                ),
                *_lora_inputs(),
                strength_input(
                    "preview_strength",
                    "Strength in previews and validation clips, as a multiple of that in training: 1 = the same, 0 = "
                    "in training only. Set it to 0 for a training adapter, which undoes a distillation while a LoRA is "
                    "trained. For a speed LoRA in previews only, use Wan LoRA File with Wan Preview Settings instead.",
                ),
            ],
            outputs=[WanTrainModel.Output(display_name="model", tooltip="The plan with the LoRA added.")],
        )

    fingerprint_inputs: Any = classmethod(_file_marks)
    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(cls, model: ModelHandle, preview_strength: float = 1.0, **widgets: Any) -> io.NodeOutput:
        added = replace(_frozen_lora(**widgets), preview_strength=preview_strength)
        plan = replace(model.plan, loras=(*model.plan.loras, added))
        inspect = inspect_pair if plan.low_noise_file else inspect_model
        inspect(plan, folders.roots())  # raises for a LoRA of another model
        return io.NodeOutput(replace(model, plan=plan))


class WanLoraFile(io.ComfyNode):
    """Names a file; nothing is loaded. Several can be chained."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanLoraFile",
            display_name="Wan LoRA File",
            **in_menu("lora loader, compare lora, lightning, lightx2v, few-step lora, 4-step"),
            description="Selects a LoRA from any trainer: to use in previews (such as a 4-step LoRA), or to compare "
            "with the trained one in a grid.",
            inputs=[
                WanLoras.Input("loras", optional=True, tooltip="From another Wan LoRA File, to add to its LoRAs."),
                *_lora_inputs(),
            ],
            outputs=[
                WanLoras.Output(
                    display_name="loras",
                    tooltip="For Wan Preview Settings, which applies all of them, and Validate Video, which renders "
                    "one column for each.",
                )
            ],
        )

    fingerprint_inputs: Any = classmethod(_file_marks)
    validate_inputs = judged_when_it_runs

    @classmethod
    def execute(cls, loras: tuple[FrozenLora, ...] = (), **widgets: Any) -> io.NodeOutput:
        return io.NodeOutput((*loras, _frozen_lora(**widgets)))


def _frozen_lora(
    lora: str = _NONE,
    strength: float = 1.0,
    low_noise_lora: str = _NONE,
    strength_low_noise: float = 1.0,
    only_what_fits: bool = False,
) -> FrozenLora:
    """Returns the frozen LoRA of the widgets. Raises ConfigError if no file is chosen."""
    file, low = _reference("lora", lora), _reference("low_noise_lora", low_noise_lora)
    if not file and not low:
        raise ConfigError("lora and low_noise_lora are both none. Choose a LoRA, or remove the node.")
    # A file with the LoRAs of both experts acts on both at one strength.
    if file and not low and holds_both_experts(folders.roots().resolve(file)):
        low, strength_low_noise = file, strength
    digests = ["" if not one else sampled_digest(folders.roots().resolve(one)) for one in (file, low)]
    return FrozenLora(
        file=file,
        strength=strength,
        low_noise_file=low,
        low_noise_strength=strength_low_noise,
        digest=digests[0],
        low_noise_digest=digests[1],
        only_what_fits=only_what_fits,
    )


def _reference(widget: str, name: str) -> str:
    if name == _NONE:
        return ""
    file_of(widget, name, folders.file_names("loras"), "loras")
    return folders.model_reference("loras", name)
