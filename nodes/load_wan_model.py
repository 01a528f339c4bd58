"""Load Wan Model (Training): names the model a LoRA is trained on. Reads the file's header, not its weights."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..wan_core.checkpoint import read_header
from ..wan_core.files import file_identity
from ..wan_core.load import BASE_PRECISIONS, ModelPlan, inspect_model
from ..wan_core.placement import PlacementConfig
from ..wan_core.precision import PRESETS, PrecisionPolicy
from . import folders
from .types import CATEGORY, ModelHandle, WanTrainModel
from .widgets import combo, one_of

VARIANTS = ["auto", "2.1 T2V-14B", "2.2 T2V-A14B high noise", "2.2 T2V-A14B low noise"]
POLICIES = ["balanced", "reference", "fast"]
MEANING = {
    "balanced": "residual stream, norms, time path, modulation and head in fp32; rotary embedding in fp32",
    "reference": "as official Wan: residual stream, norms, time path, modulation, head, adapters fp32; rotary fp64",
    "fast": "residual stream and head in the compute dtype, the rest in fp32; fastest, least exact",
}
assert set(POLICIES) == set(MEANING) == set(PRESETS)


class LoadWanModel(io.ComfyNode):
    """The first node of every training graph."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="LoadWanModel",
            display_name="Load Wan Model (Training)",
            category=CATEGORY,
            description="The Wan diffusion model to train on. Reads only its header; TrainLoRA loads it.",
            inputs=[
                combo(
                    "diffusion_model",
                    folders.file_names("diffusion_models"),
                    "A Wan text-to-video .safetensors file in models/diffusion_models. bf16 or fp16, not fp8.",
                ),
                combo(
                    "variant", VARIANTS, "Only where shapes cannot tell: 14B files of Wan 2.1 and 2.2. Otherwise auto."
                ),
                combo(
                    "base_precision",
                    list(BASE_PRECISIONS),
                    "What the base weights rest and compute in. 'as in file' runs fp16 files in bf16.",
                ),
                combo(
                    "precision_policy",
                    POLICIES,
                    "; ".join(f"{name}: {MEANING[name]}" for name in POLICIES) + ".",
                ),
                combo("device", devices(), "Where to train. default: the first GPU, or the CPU when there is none."),
            ],
            outputs=[
                WanTrainModel.Output(
                    display_name="model", tooltip="The plan of the model. No weights travel on this wire."
                ),
                io.String.Output(display_name="info", tooltip="What the file is, in words."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, diffusion_model: str | None = None, **_: object) -> object:
        path = folders.roots().resolve(folders.model_reference("diffusion_models", _chosen(diffusion_model)))
        return file_identity(path)[1:]  # ComfyUI writes this into the metadata of images: no path

    @classmethod
    def execute(
        cls,
        diffusion_model: str | None = None,
        variant: str = "auto",
        base_precision: str = "as in file",
        precision_policy: str = "balanced",
        device: str = "default",
    ) -> io.NodeOutput:
        diffusion_model = _chosen(diffusion_model)
        plan = ModelPlan(
            base_file=folders.model_reference("diffusion_models", diffusion_model),
            variant=one_of("variant", variant, VARIANTS),
            base_precision=one_of("base_precision", base_precision, BASE_PRECISIONS),
            precision=PrecisionPolicy(preset=one_of("precision_policy", precision_policy, POLICIES)),
            placement=PlacementConfig(devices=one_of("device", device, devices())),
        )
        roots = folders.roots()
        found, compute = inspect_model(plan, roots)
        handle = ModelHandle(plan, found, compute)
        return io.NodeOutput(handle, describe(handle))


def _chosen(diffusion_model: str | None) -> str:
    """The file asked for; the first of the menu where a queued graph leaves it out."""
    known = folders.file_names("diffusion_models")
    return one_of("diffusion_model", next(iter(known), "") if diffusion_model is None else diffusion_model, known)


def devices() -> list[str]:
    """default, every GPU, cpu."""
    return ["default", *(f"cuda:{i}" for i in range(torch.cuda.device_count())), "cpu"]


def describe(handle: ModelHandle) -> str:
    """A few lines about a model: variant, stored dtype, parameters, what the precision policy means."""
    plan, variant = handle.plan, handle.variant
    header = read_header(folders.roots().resolve(plan.base_file))
    stored = ", ".join(sorted({info.dtype for info in header.tensors.values()}))
    parameters = sum(_count(info.shape) for info in header.tensors.values())
    lines = [
        f"Wan {variant.name}: {parameters / 1e9:.2f} billion parameters in {variant.shape.num_layers} blocks, "
        f"stored as {stored}",
        f"computes in {str(handle.compute_dtype).removeprefix('torch.')}; {variant.fps:g} frames per second; "
        f"width and height in multiples of {variant.size_multiple}",
        f"precision {plan.precision.preset}: {MEANING[plan.precision.preset]}",
    ]
    if variant.candidates:
        lines.append(f"Its shapes would also fit {' and '.join(variant.candidates)}; set variant if auto chose wrong.")
    return "\n".join(lines)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
