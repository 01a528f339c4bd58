"""The model plan: file and settings of the base model. Also reads the content of the file from its headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from typing import Any

import torch

from ..abilities import abilities_of
from ..checkpoint import (
    HIGH,
    LOW,
    CheckpointHeader,
    StoredWeight,
    WanVariant,
    detect_variant,
    locate_weights,
    pair_names,
    read_checkpoint,
)
from ..config import Config, counted, internal, setting
from ..errors import CheckpointError, ConfigError
from ..families import BLOCK_LISTS
from ..files import Roots
from ..kernels import ATTENTIONS, check_attention_name
from ..lora import FrozenLora, check_frozen, read_frozen
from ..model import block_of, model_without_values
from ..placement import PlacementConfig
from ..precision import PrecisionPolicy, QuantizeConfig, torch_dtype

_BASE_PRECISIONS = ("as in file", "bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class ModelPlan(Config):
    """All settings from which the base model is built. Immutable; holds no weights."""

    base_file: str = internal(MISSING, "never")
    """root:relative file or folder, for example diffusion_models:wan/wan2.1_t2v_1.3B_bf16.safetensors"""
    low_noise_file: str = internal("", "never")
    """the low_noise expert of an A14B pair; "" for a single model"""
    variant: str = "auto"
    """auto, or a variant name where shapes are ambiguous"""
    base_precision: str = counted(
        _BASE_PRECISIONS[0],
        "Dtype in which the base weights are stored and computed. as in file: fp16 files run in bf16, and so do fp32 "
        "files on a GPU; fp8, int8, nvfp4 and GGUF linear layers stay quantized. Cards without bf16 use fp16. Choose "
        "fp32 for the most exact result; it takes twice the memory of bf16.",
        choices=_BASE_PRECISIONS,
        refusal='{name} "{value}" is unknown. Use one of: {known}.',
    )
    """precision of the linears; a new run resolves "as in file" with `resolved`"""
    compute: str = setting(
        "",
        "When base_precision is as in file: compute dtype of the linear layers, quantized or not. Empty: bf16, or "
        "fp32 for an fp32 file.",
        choices=_BASE_PRECISIONS[1:],
        also=("",),
    )
    """`resolved` sets it for cards without bf16; has no widget"""
    precision: PrecisionPolicy = PrecisionPolicy()
    quantize: QuantizeConfig | None = None
    placement: PlacementConfig = PlacementConfig()
    attention: str = counted(
        ATTENTIONS[0],
        "The attention backend. sdpa: PyTorch's own choice. auto: the fastest installed backend for the card, from "
        "4096 tokens on. Any other backend is used exactly as named; the run is refused if it is unavailable. "
        "flash_attn, flash_attn_3, flash_attn_4 and xformers need their package. Change it when a step takes too long.",
        choices=ATTENTIONS,
    )

    loras: tuple[FrozenLora, ...] = internal((), "changed")
    """frozen LoRAs that act under the trained LoRA"""

    def __post_init__(self) -> None:
        check_attention_name(self.attention)  # raises for kernels without a backward pass
        super().__post_init__()

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the base model's values depend on; a frozen LoRA counts by digest, not by name."""
        return super().identity() | ({"loras": [lora.acts() for lora in self.loras]} if self.loras else {})

    def of_expert(self, expert: str, roots: Roots) -> ModelPlan:
        """Returns the plan for `expert`: both experts of a pair ("auto" or "both"), or "high_noise", or "low_noise".

        ConfigError if both experts of a single model are requested; CheckpointError for files that are not a pair.
        """
        if not self.low_noise_file:
            if expert == "both":
                raise ConfigError(
                    'expert is "both", and one model is loaded. Choose the low-noise file as low_noise_model in Load '
                    "Wan Model, or set expert to auto."
                )
            return self
        high, low = inspect_pair(self, roots)
        if expert in ("auto", "both"):
            return replace(self, variant=high.variant.name)
        placement = self.placement.of_expert(0 if expert == HIGH else 1)
        variant = (high if expert == HIGH else low).variant.name
        return replace(self.half(expert), variant=variant, placement=placement)

    def half(self, expert: str) -> ModelPlan:
        """Returns the plan of one expert of a pair."""
        file = self.base_file if expert == HIGH else self.low_noise_file
        loras = tuple(own for lora in self.loras if (own := lora.of_expert(expert)).file)
        return replace(self, base_file=file, low_noise_file="", loras=loras)

    def with_quantize(self, quantize: QuantizeConfig | None) -> ModelPlan:
        return replace(self, quantize=quantize)

    def with_precision(self, precision: PrecisionPolicy) -> ModelPlan:
        return replace(self, precision=precision)

    def with_placement(self, placement: PlacementConfig) -> ModelPlan:
        return replace(self, placement=placement)


@dataclass(frozen=True)
class WanFile:
    """A trainable model file or folder, from its header."""

    header: CheckpointHeader
    variant: WanVariant
    compute_dtype: torch.dtype
    """compute dtype of the linears under the plan"""
    weights: Mapping[str, StoredWeight]
    """by original Wan name"""
    quantization: str
    """storage of the linears: none, fp8, scaled_fp8, int8, _quantization_metadata, comfy_quant, gguf"""
    beside: Mapping[str, int] = field(default_factory=dict[str, int])
    """weight -> bytes of the frozen LoRAs on it"""


def inspect_model(plan: ModelPlan, roots: Roots) -> WanFile:
    """Returns the content of the plan's file, from headers alone; raises CheckpointError for a model that cannot be
    trained."""
    if plan.low_noise_file:
        raise ConfigError(
            "The plan names both experts of a pair, and one model is read here. Set expert to high or low."
        )
    header = read_checkpoint(roots.resolve(plan.base_file))
    variant = detect_variant(header, override=plan.variant)
    if not variant.family.trained:
        raise CheckpointError(
            "{file} is {variant}; training it is not supported yet. Choose a model for text, images, first and last "
            "frames, VACE, Fun control or camera (Wan 2.1 or 2.2).",
            file=header.path.name,
            variant=variant.name,
        )
    stored = locate_weights(header)
    _check_shapes(variant, stored.weights, header.path.name)
    compute = _compute_dtype(plan, stored.weights)
    for lora in plan.loras:
        if lora.low_noise_file:
            raise ConfigError(
                f"There is one model, and the LoRA {lora.low_noise_file.partition(':')[2]} is for the low noise expert "
                "of a pair. Set low_noise_lora to none, or choose the low-noise file in Load Wan Model."
            )
    if plan.quantize is not None:
        plan.quantize.check_names([name.removesuffix(".weight") for name in stored.weights if name.endswith(".weight")])
    beside = bytes_beside(plan, roots, variant, compute, plan.loras)
    return WanFile(header, variant, compute, stored.weights, stored.quantization, beside)


def bytes_beside(
    plan: ModelPlan, roots: Roots, variant: WanVariant, compute: torch.dtype, loras: Sequence[FrozenLora]
) -> dict[str, int]:
    """Returns weight -> bytes of the frozen LoRAs on it; CheckpointError for a LoRA of another model."""
    dtype, found = plan.precision.numerics(compute).adapter or compute, Counter[str]()
    model = model_without_values(variant.shape)
    for lora in (lora for lora in loras if lora.file):
        source = read_frozen(roots.resolve(lora.file), lora, model, variant.expert)
        found.update(check_frozen(source, model, dtype.itemsize))
    return dict(found)


def inspect_pair(plan: ModelPlan, roots: Roots) -> tuple[WanFile, WanFile]:
    """Returns the high_noise and the low_noise expert of a plan with two files; CheckpointError unless they are a pair.

    The variant of the plan names one of the experts.
    """
    variants = [plan.variant.replace("low noise", "high noise"), plan.variant.replace("high noise", "low noise")]
    if plan.variant != "auto" and not plan.variant.endswith(" noise"):
        raise ConfigError(f'variant "{plan.variant}" is not a pair. Set low_noise_model to none, or variant to auto.')
    halves = [
        inspect_model(replace(plan.half(expert), variant=variant), roots)
        for expert, variant in zip((HIGH, LOW), variants, strict=True)
    ]
    high, low = halves
    names = pair_names(high.variant, low.variant, high.header.path.name, low.header.path.name)
    found = [
        replace(half, variant=detect_variant(half.header, override=name))
        for half, name in zip(halves, names, strict=True)
    ]
    return found[0], found[1]


def resolved(plan: ModelPlan, files: Sequence[WanFile]) -> ModelPlan:
    """Returns the plan of a new run with base_precision "as in file" resolved; a resumed run keeps the resolved values.

    Cards without bf16 compute in fp16, or in fp32 if their fp16 is unreliable. A float32 file runs in bf16 on a GPU.
    """
    names = plan.placement.device_names()
    if plan.base_precision != "as in file":
        return plan
    if narrow := {abilities_of(name).compute for name in names} - {"bf16"}:
        return replace(plan, compute=max(narrow))  # "fp32" > "fp16"
    float32 = all(file.compute_dtype == torch.float32 for file in files)
    # float32 on a GPU takes twice the memory and has no fast attention kernel; a CPU loses little.
    return replace(plan, base_precision="bf16") if float32 and any(name != "cpu" for name in names) else plan


def resolved_elsewhere(plan: ModelPlan, base_precision: str) -> tuple[ModelPlan, ...]:
    """Returns all plans that `resolved` can return for this base precision, over all kinds of cards."""
    dtypes = ("", "fp16", "fp32") if base_precision == "as in file" else (plan.compute,)
    return tuple(replace(plan, base_precision=base_precision, compute=compute) for compute in dtypes)


def _compute_dtype(plan: ModelPlan, weights: Mapping[str, StoredWeight]) -> torch.dtype:
    if plan.base_precision != "as in file":
        return torch_dtype(plan.base_precision)
    if plan.compute:
        return torch_dtype(plan.compute)
    if any(weight.can_stay and len(weight.shape) == 2 and block_of(name) for name, weight in weights.items()):
        return torch.bfloat16  # even if the file has some blocks in float32
    # float16 and quantized files train in bfloat16: float16 gradients overflow without loss scaling.
    return {"F32": torch.float32, "F64": torch.float32}.get(weights["blocks.0.ffn.0.weight"].dtype, torch.bfloat16)


def _check_shapes(variant: WanVariant, sources: Mapping[str, StoredWeight], file_name: str) -> None:
    wanted = {name: tuple(p.shape) for name, p in model_without_values(variant.shape).named_parameters()}
    missing = sorted(wanted.keys() - sources.keys())
    if missing:
        raise CheckpointError(
            "{file} lacks {n} weights, for example {example}. Download it again.",
            file=file_name,
            n=len(missing),
            example=missing[0],
        )
    # A model derived from Wan may have further weights. Without them, it would be another model, so it is refused.
    left_over = sorted(
        name
        for name in sources.keys() - wanted.keys()
        if name.partition(".")[0] in BLOCK_LISTS or name.endswith((".weight", ".bias"))
    )
    if left_over:
        raise CheckpointError(
            "{file} has {n} weights that no {name} has, for example {example}: it is a model derived from Wan, not Wan "
            "itself. Choose the Wan model it was made from.",
            file=file_name,
            n=len(left_over),
            name=variant.name,
            example=left_over[0],
        )
    for name, shape in wanted.items():
        if sources[name].shape != shape:
            raise CheckpointError(
                f"{file_name}: {name} has shape {sources[name].shape}, a {variant.name} needs {shape}. "
                "Choose an unmodified Wan file."
            )
