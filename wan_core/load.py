"""The model plan, and the one road from a plan to a real model: read, place, quantize, inject LoRA, in this order.

Weights stream tensor by tensor from the file to their final device and dtype; each block is quantized as soon as it is
complete, so neither host nor device ever holds a second full copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .config import Config
from .errors import CheckpointError, ConfigError
from .files import Roots
from .lora import LoraConfig, LoraWeights, inject_lora, read_lora
from .model import (
    Numerics,
    WanShape,
    WanTransformer,
    WanVariant,
    canonical_names,
    check_attention,
    check_attention_name,
    detect_variant,
    read_header,
)
from .placement import (
    DeviceCarrier,
    MemoryEstimate,
    Placement,
    PlacementConfig,
    estimate_memory,
    resolve_placement,
)
from .placement.memory import StepShape
from .precision import PrecisionPolicy, QuantizeConfig, check_trainable_untouched, quantize_block, torch_dtype

__all__ = ["BASE_PRECISIONS", "ModelPlan", "inspect_model", "materialize", "predict_memory"]

BASE_PRECISIONS = ("as in file", "bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class ModelPlan(Config):
    """Everything that decides how the base model is built. Nodes return new ones; weights exist only in the engine."""

    base_file: str
    """root:relative, for example diffusion_models:wan/wan2.1_t2v_1.3B_bf16.safetensors"""
    variant: str = "auto"
    """auto, or the name of the variant where shapes cannot tell"""
    base_precision: str = "as in file"
    """as in file, bf16, fp16, fp32: what the linears rest and compute in"""
    precision: PrecisionPolicy = PrecisionPolicy()
    quantize: QuantizeConfig | None = None
    placement: PlacementConfig = PlacementConfig()
    attention: str = "sdpa"
    """which program computes attention (model.ATTENTIONS); one that cannot train here is refused, never replaced"""

    def __post_init__(self) -> None:
        check_attention_name(self.attention)
        if self.base_precision not in BASE_PRECISIONS:
            raise ConfigError(
                f'base_precision "{self.base_precision}" is unknown. Use one of: {", ".join(BASE_PRECISIONS)}.'
            )

    def with_quantize(self, quantize: QuantizeConfig | None) -> ModelPlan:
        return replace(self, quantize=quantize)

    def with_precision(self, precision: PrecisionPolicy) -> ModelPlan:
        return replace(self, precision=precision)

    def with_placement(self, placement: PlacementConfig) -> ModelPlan:
        return replace(self, placement=placement)


@dataclass(frozen=True)
class _Source:
    """One weight in a file."""

    file: Path
    key: str
    dtype: str
    shape: tuple[int, ...]


def inspect_model(plan: ModelPlan, roots: Roots) -> tuple[WanVariant, torch.dtype]:
    """The variant of the plan's file and the dtype its linears will compute in; reads the header only.

    CheckpointError for anything that cannot be trained, in one sentence, before any weight is loaded.
    """
    variant, dtype, _ = _inspect(plan, roots)
    return variant, dtype


def _inspect(plan: ModelPlan, roots: Roots) -> tuple[WanVariant, torch.dtype, dict[str, _Source]]:
    header = read_header(roots.resolve(plan.base_file))
    variant = detect_variant(header, override=plan.variant)
    if not variant.trainable:
        raise CheckpointError(
            f"{header.path.name} is {variant.name}; training it is not supported yet. "
            "Choose a text-to-video model (Wan 2.1 T2V 1.3B or 14B, or one Wan 2.2 T2V-A14B expert)."
        )
    names = canonical_names(header.tensors)
    sources = {names[key]: _Source(header.path, key, info.dtype, info.shape) for key, info in header.tensors.items()}
    linear = sources["blocks.0.ffn.0.weight"].dtype
    if linear.startswith("F8") or any(name.endswith(("scale_weight", "weight_scale")) for name in sources):
        raise CheckpointError(
            f"{header.path.name} is already stored as fp8; training on it is not supported yet. "
            "Choose the fp16 or bf16 file and add the Fp8Quantize node."
        )
    _check_shapes(variant, sources, header.path.name)
    return variant, _compute_dtype(plan, linear, header.path.name), sources


def _compute_dtype(plan: ModelPlan, stored: str, file_name: str) -> torch.dtype:
    if plan.base_precision != "as in file":
        return torch_dtype(plan.base_precision)
    # float16 overflows in gradients without loss scaling; its files train in bfloat16 (3 mantissa bits fewer).
    kinds = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.bfloat16, "F64": torch.float32}
    if stored not in kinds:
        raise CheckpointError(
            f"{file_name} stores weights as {stored}, which cannot be trained on. Use a bf16 or fp16 file."
        )
    return kinds[stored]


def _check_shapes(variant: WanVariant, sources: dict[str, _Source], file_name: str) -> None:
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in WanTransformer(variant.shape).named_parameters()}
    missing = sorted(wanted.keys() - sources.keys())
    if missing:
        raise CheckpointError(f"{file_name} lacks {len(missing)} weights, for example {missing[0]}. Download it again.")
    for name, shape in wanted.items():
        if sources[name].shape != shape:
            raise CheckpointError(
                f"{file_name}: {name} has shape {sources[name].shape}, a {variant.name} needs {shape}. "
                "Choose an unmodified Wan file."
            )


def materialize(
    plan: ModelPlan,
    roots: Roots,
    lora: LoraConfig | None,
    *,
    seed: int = 0,
    rank: int = 0,
    on_tensor: Callable[[int, int], None] | None = None,
) -> WanTransformer:
    """Build the model of a plan: frozen base, LoRA trainable, on its devices.

    `on_tensor(done, total)` is called after each weight and may raise to stop the load.
    """
    variant, compute, sources = _inspect(plan, roots)
    numerics = plan.precision.numerics(compute)
    placement = resolve_placement(plan.placement, variant.shape.num_layers, rank)
    _check_attention(plan, variant.shape, numerics, placement)
    with torch.inference_mode(False), torch.device("meta"):
        model = WanTransformer(variant.shape, numerics)
    model.use_attention(plan.attention)
    with torch.inference_mode(False):
        _fill(model, plan, placement, sources, on_tensor)
        if lora is not None:
            inject_lora(model, lora, seed=seed, dtype=numerics.adapter if numerics.adapter != compute else None)
            model.checkpoint_keeps_rng = lora.dropout > 0
            if lora.start_from:
                start = read_lora(roots.resolve(lora.start_from), lora.scale)
                LoraWeights(start.tensors).load_into(model, lora.start_from)
    placement.check(model)
    check_trainable_untouched(model)
    if len(placement.devices) > 1:
        model.carrier = DeviceCarrier(placement)
    return model


def _fill(
    model: WanTransformer,
    plan: ModelPlan,
    placement: Placement,
    sources: dict[str, _Source],
    on_tensor: Callable[[int, int], None] | None,
) -> None:
    model.requires_grad_(False)
    total, done = sum(1 for _ in model.parameters()), 0
    parts: list[tuple[str, nn.Module]] = [(n, m) for n, m in model.named_children() if n != "blocks"]
    parts += [(f"blocks.{i}", block) for i, block in enumerate(model.blocks)]
    with _Reader() as read:
        for prefix, part in parts:
            for name, _ in list(part.named_parameters()):
                full = f"{prefix}.{name}"
                rests = storage_dtype(full, model.numerics, sources[full].dtype)
                value = read(sources[full]).to(placement.device_of(full), rests)
                owner, leaf = part.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
                setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
                done += 1
                if on_tensor is not None:
                    on_tensor(done, total)
            if plan.quantize is not None:
                quantize_block(part, prefix, plan.quantize)


class _Reader:
    """Reads single tensors from safetensors files, each opened once."""

    def __init__(self) -> None:
        self._open: dict[Path, object] = {}

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()

    def __call__(self, source: _Source) -> Tensor:
        from safetensors import safe_open

        file = self._open.get(source.file)
        if file is None:
            file = self._open[source.file] = safe_open(source.file, "pt")
        # A copy: the file stays mapped otherwise, and on a CPU run the weights would live in the page cache.
        return file.get_tensor(source.key).clone()  # type: ignore[attr-defined]


def _check_attention(plan: ModelPlan, shape: WanShape, numerics: Numerics, placement: Placement) -> None:
    """Refuse a kernel that cannot train on one of the devices. torch's own choice always can."""
    if plan.attention == "sdpa":
        return
    dtype, head_dim = numerics.attention or numerics.compute, shape.dim // shape.num_heads
    for device in placement.devices:
        check_attention(plan.attention, device=device, dtype=dtype, head_dim=head_dim)


def storage_dtype(name: str, numerics: Numerics, stored: str) -> torch.dtype:
    """What a base weight rests in; `stored` is the file's own dtype (F32, F16, BF16).

    Norms and modulation tables (tiny, sensitive) rest in float32. The time path and the head rest as in the file where
    the policy computes them wider than the linears: exact, and no larger. Everything else rests in the compute dtype.
    """
    if name.endswith("modulation") or ".norm" in name:
        return torch.float32
    part = name.split(".")[0]
    computed = {"time_embedding": numerics.time, "time_projection": numerics.time, "head": numerics.head}.get(part)
    if computed in (None, numerics.compute):
        return numerics.compute
    return {"F16": torch.float16, "F32": torch.float32, "F64": torch.float32}.get(stored, numerics.compute)


def predict_memory(
    plan: ModelPlan,
    roots: Roots,
    lora: LoraConfig,
    step: StepShape,
    *,
    checkpoint_blocks: bool,
) -> MemoryEstimate:
    """Peak memory of a training step of this plan, from the header alone."""
    variant, compute, sources = _inspect(plan, roots)
    quantize, numerics = plan.quantize, plan.precision.numerics(compute)
    placement = resolve_placement(plan.placement, variant.shape.num_layers)
    _check_attention(plan, variant.shape, numerics, placement)

    def storage_bytes(name: str, parameter: Tensor) -> int:
        if quantize is not None and parameter.ndim == 2 and quantize.selects(name.removesuffix(".weight")):
            return parameter.numel() + 4 * parameter.shape[0]
        return parameter.numel() * storage_dtype(name, numerics, sources[name].dtype).itemsize

    return estimate_memory(
        variant.shape,
        numerics,
        placement,
        step,
        storage_bytes=storage_bytes,
        adapt=lambda block: _adapt(block, lora, numerics.adapter, compute),
        checkpoint_blocks=checkpoint_blocks,
        dequantizes=quantize is not None,
    )


def _adapt(holder: nn.Module, lora: LoraConfig, adapter: torch.dtype | None, compute: torch.dtype) -> None:
    inject_lora(holder, lora, seed=0, dtype=adapter if adapter != compute else None)
