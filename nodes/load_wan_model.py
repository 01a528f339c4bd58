"""Load Wan Model (Training): chooses the base model of a training; reads only headers."""

from __future__ import annotations

from math import prod

from comfy_api.latest import io

from ..wan_core.abilities import abilities_of
from ..wan_core.accelerator import gpu_names
from ..wan_core.checkpoint import AMBIGUOUS_NAMES, checkpoint_files, distilled_mark
from ..wan_core.errors import ConfigError, PlacementError, WanTrainerError
from ..wan_core.files import Roots, file_mark
from ..wan_core.footprint import weights_once_loaded
from ..wan_core.job import notes_on_cards, remarks_on_cards
from ..wan_core.load import ModelPlan, WanFile, inspect_model, inspect_pair, resolved, unpacked_kinds
from ..wan_core.placement import PlacementConfig
from ..wan_core.precision import PRESETS, PrecisionPolicy
from .bridge import folders
from .bridge.progress import announced
from .bridge.types import ModelHandle, WanTrainModel
from .bridge.widgets import (
    advanced,
    check_menus,
    combo,
    file_of,
    in_menu,
    one_of,
    widget,
    widget_values,
)

VARIANTS = ["auto", *AMBIGUOUS_NAMES]
NONE = "none"
POLICIES = ["balanced", "reference", "fast"]
_MEANING = {
    "balanced": "residual stream, norms, time embedding, modulation, head and rotary embedding in fp32",
    "reference": "like official Wan, all of these and the LoRA in fp32, rotary embedding in fp64",
    "fast": "residual stream and head like the linear layers, the rest in fp32 (fastest, least exact)",
}
FLOAT32 = (
    "The file is fp32 and is computed in bf16: on a GPU fp32 takes twice the memory and has no fast attention. To "
    "compute in fp32, set base_precision to fp32."
)
_UNPACKED = {
    True: "Fp8 / Int8 Quantize halves that; a GGUF of Q8_0, Q6_K, Q5_K or Q4_K stays as small as it is.",
    False: "Set base_precision to as in file to keep it quantized.",
}
"""end of the refusal; key: whether base_precision is "as in file\""""
assert set(POLICIES) == set(_MEANING) == set(PRESETS)


class LoadWanModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LoadWanModel",
            display_name="Load Wan Model (Training)",
            **in_menu("unet loader, load diffusion model, wan 2.1, wan 2.2, t2v, i2v, vace, gguf"),
            description="The Wan diffusion model to train: a file, a GGUF or a folder. This node reads only its "
            "header; Train Wan LoRA loads the weights.",
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                combo(
                    "diffusion_model",
                    folders.diffusion_models(),
                    "The Wan model to train, from models/diffusion_models: .safetensors (fp32, bf16, fp16, fp8), "
                    ".gguf, or a folder in diffusers' or the official layout. For a 2.2 A14B pair, choose the "
                    "high-noise file. The default is the first file.",
                ),
                combo(
                    "low_noise_model",
                    [NONE, *folders.diffusion_models()],
                    "The low-noise file of a Wan 2.2 A14B pair. none: only the model above is trained. Choose it to "
                    "train both experts.",
                ),
                *advanced(
                    combo(
                        "variant",
                        VARIANTS,
                        "Which Wan model the file holds. auto: detected from tensor shapes, and from the file name "
                        "where shapes are ambiguous. Choose it by hand when the guess in info is wrong.",
                    )
                ),
                widget(ModelPlan, "base_precision"),
                *advanced(
                    combo(
                        "precision_policy",
                        POLICIES,
                        "Precision of the small, sensitive parts of the model. "
                        + " ".join(f"{name}: {_MEANING[name]}." for name in POLICIES)
                        + " Choose reference to compare with official Wan, fast when a step takes too long.",
                    ),
                    combo(
                        "device",
                        devices(),
                        "Device to train on. default: the first GPU, or the CPU when there is none. Change it to train "
                        "on another GPU.",
                    ),
                    widget(ModelPlan, "attention"),
                ),
            ],
            outputs=[
                WanTrainModel.Output(
                    display_name="model", tooltip="The plan of the model. This link carries settings, no weights."
                ),
                io.String.Output(display_name="info", tooltip="What the file holds, as text."),
            ],
        )

    @classmethod
    def validate_inputs(cls, diffusion_model: str | None = None, low_noise_model: str = NONE) -> bool | str:
        """Returns a sentence about missing files."""
        said: list[str] = []
        for found in (lambda: _chosen(diffusion_model), lambda: _low_noise(low_noise_model, "")):
            try:
                found()
            except WanTrainerError as error:
                said.append(announced(error))
        return " ".join(dict.fromkeys(said)) or True

    @classmethod
    def fingerprint_inputs(
        cls, diffusion_model: str | None = None, low_noise_model: str = NONE, **_: object
    ) -> list[object]:
        names = [_chosen(diffusion_model), *([] if low_noise_model == NONE else [low_noise_model])]
        paths = [folders.roots().resolve(folders.model_reference("diffusion_models", name)) for name in names]
        # Without paths, because ComfyUI writes this into the metadata of images.
        return [file_mark(file) for path in paths for file in checkpoint_files(path)]

    @classmethod
    def execute(
        cls,
        diffusion_model: str | None = None,
        low_noise_model: str = NONE,
        variant: str = "auto",
        base_precision: str = "as in file",
        precision_policy: str = "balanced",
        device: str = "default",
        attention: str = "sdpa",
    ) -> io.NodeOutput:
        chosen = _chosen(diffusion_model)
        check_menus(ModelPlan, {"base_precision": base_precision})
        plan = ModelPlan(
            base_file=folders.model_reference("diffusion_models", chosen),
            low_noise_file=_low_noise(low_noise_model, chosen),
            variant=one_of("variant", variant, VARIANTS),
            base_precision=base_precision,
            precision=PrecisionPolicy(preset=one_of("precision_policy", precision_policy, POLICIES)),
            placement=PlacementConfig(devices=one_of("device", device, devices())),
            attention=str(attention),  # The plan checks it, with its own error.
        )
        roots = folders.roots()
        cards = [abilities_of(name) for name in plan.placement.device_names()]
        for refusal in filter(None, (card.refusal() for card in cards)):
            raise PlacementError(refusal)
        inspected = resolved(plan, _files(plan, roots))
        files = _files(inspected, roots)
        known, compute, policy = files[0].variant, files[0].compute_dtype, inspected.precision.preset
        handle = ModelHandle(inspected, known, compute, files[0].quantization, base_precision)
        lines = [line for file in files for line in describe(file, inspected)]
        if inspected.base_precision != base_precision:
            lines.append(FLOAT32)
        lines += [*remarks_on_cards(inspected, compute), *notes_on_cards(inspected, compute)] or list(
            dict.fromkeys(said for card in cards if (said := card.sentence()))
        )
        info = "\n".join([*lines, f"precision {policy}: {_MEANING[policy]}"])
        pair = bool(plan.low_noise_file)
        facts = {
            "version": 1,
            "variant": known.name,
            "boundary": known.boundary,  # the sigma between the experts
            "expert": None if pair else known.expert,
            "training_shift": known.training_shift,
            "pair": pair,
            "asked": widget_values(cls),
        }
        return io.NodeOutput(handle, info, ui={"wan_model": [facts]})


def _chosen(diffusion_model: str | None) -> str:
    """Returns the requested file, or the first one of the menu if a queued graph has none."""
    known = folders.diffusion_models()
    if not known:
        raise ConfigError("models/diffusion_models holds no model. Put a Wan model there, then press R on the canvas.")
    requested = next(iter(known), "") if diffusion_model is None else diffusion_model
    return file_of("diffusion_model", requested, known, "diffusion_models")


def _low_noise(low_noise_model: str, diffusion_model: str) -> str:
    if low_noise_model == NONE:
        return ""
    file_of("low_noise_model", low_noise_model, folders.diffusion_models(), "diffusion_models")
    if low_noise_model == diffusion_model:
        raise ConfigError(
            "diffusion_model and low_noise_model are both {diffusion_model}. Choose the other file, or none.",
            diffusion_model=diffusion_model,
        )
    return folders.model_reference("diffusion_models", low_noise_model)


def _files(plan: ModelPlan, roots: Roots) -> tuple[WanFile, ...]:
    return inspect_pair(plan, roots) if plan.low_noise_file else (inspect_model(plan, roots),)


def devices() -> list[str]:
    return ["default", *gpu_names(), "cpu"]


def describe(file: WanFile, plan: ModelPlan) -> list[str]:
    """Returns lines about a model: variant, other candidates, storage, compute dtype and memory."""
    variant, header = file.variant, file.header
    stored = ", ".join(sorted({weight.dtype for weight in file.weights.values()}))
    parameters = sum(prod(weight.shape) for weight in file.weights.values())
    how = "" if file.quantization == "none" else f" ({file.quantization})"
    lines = [
        f"Wan {variant.name}: {parameters / 1e9:.2f} billion parameters in {variant.shape.num_layers} blocks, "
        f"{header.container}, stored as {stored}{how}",
        f"computes in {str(file.compute_dtype).removeprefix('torch.')}; {variant.fps:g} frames per second; "
        f"width and height in multiples of {variant.size_multiple}",
    ]
    size = f"weights take {weights_once_loaded(plan, file) / 2**30:.3g} GiB once loaded"
    if unpacked := ", ".join(unpacked_kinds(plan, file)):
        stored_size = header.path.stat().st_size / 2**30
        size = f"{unpacked} is dequantized: {size}, the file has {stored_size:.3g} GiB. "
        size += _UNPACKED[plan.base_precision == "as in file"]
    lines.append(size)
    if variant.boundary is not None and variant.expert is None:
        lines.append("Its name does not say which expert it is: set variant here, or expert in Train Wan LoRA.")
    if mark := distilled_mark(header):
        lines.append(
            f'Distilled to a few steps ("{mark}" in its name or metadata), which a plain LoRA undoes. Usual: train on '
            "the plain base, and load the speed LoRA together with yours. On this base: set guidance_target of Wan "
            "Train Settings to 3, or add a training adapter by Add Frozen LoRA with preview_strength 0."
        )
    if variant.candidates:
        lines.append(f"Its shapes also match {', '.join(variant.candidates)}; set variant if auto chose the wrong one.")
    if variant.family.context:
        lines.append(
            "Bernini-R has the same shapes: on clips with context (clip_source.mp4, clip_ref1.png, or "
            "BerniniConditioning) the model is trained as Bernini-R."
        )
    return lines
