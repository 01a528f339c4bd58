"""The model plan, and the one road from a plan to a real model: read, place, quantize, inject LoRA, in this order.

Weights stream tensor by tensor from the file to their final device and dtype; each block is quantized as soon as it is
complete, so neither host nor device ever holds a second full copy. Linears that a file stores in 8 or 4 bits stay so,
unless the plan asks for another base precision or quantizes anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .checkpoint import (
    CheckpointHeader,
    FiniteCheck,
    StoredWeight,
    WanVariant,
    WeightReader,
    count_bad,
    detect_variant,
    locate_weights,
    pair_names,
    read_checkpoint,
)
from .config import Config
from .errors import CheckpointError, ConfigError
from .files import Roots
from .lora import LoraConfig, check_peft, check_start, check_targets, inject_lora, read_lora, start_from
from .model import (
    BLOCK_LISTS,
    Numerics,
    WanShape,
    WanTransformer,
    block_of,
    check_attention,
    check_attention_name,
    sdpa_choice,
)
from .placement import DeviceCarrier, Placement, PlacementConfig, resolve_placement
from .precision import (
    PrecisionPolicy,
    QuantizeConfig,
    StoredLinear,
    check_torchao,
    check_trainable_untouched,
    quantize_block,
    torch_dtype,
)

__all__ = [
    "BASE_PRECISIONS",
    "ModelPlan",
    "WanFile",
    "attention_kernels",
    "check_plan_attention",
    "import_libraries",
    "inspect_model",
    "inspect_pair",
    "materialize",
    "resting_bytes",
    "settled",
    "stays_stored",
]

BASE_PRECISIONS = ("as in file", "bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class ModelPlan(Config):
    """Everything that decides how the base model is built. Nodes return new ones; weights exist only in the engine."""

    base_file: str
    """root:relative, for example diffusion_models:wan/wan2.1_t2v_1.3B_bf16.safetensors; a file or a folder"""
    low_noise_file: str = ""
    """the low-noise expert of an A14B pair, where base_file is the high-noise one; empty when there is one model"""
    variant: str = "auto"
    """auto, or the name of the variant where shapes cannot tell"""
    base_precision: str = "as in file"
    """as in file, bf16, fp16, fp32: what the linears rest and compute in; `settled` says what a new run makes of it"""
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

    def of_expert(self, expert: str, roots: Roots) -> ModelPlan:
        """Returns the plan of the one model a run trains: of a pair, the expert named (high or low).

        Raises ConfigError when a pair's expert is left open, CheckpointError when the files are no pair.
        """
        if not self.low_noise_file:
            return self
        if expert not in ("high", "low"):
            raise ConfigError(
                f'expert is "{expert}", and the model is a pair of files; each expert is trained in a run of its own. '
                "Set expert to high and queue, then to low and queue again."
            )
        high, low = inspect_pair(self, roots)
        chosen = (self.base_file, high) if expert == "high" else (self.low_noise_file, low)
        return replace(self, base_file=chosen[0], low_noise_file="", variant=chosen[1].variant.name)

    def with_quantize(self, quantize: QuantizeConfig | None) -> ModelPlan:
        return replace(self, quantize=quantize)

    def with_precision(self, precision: PrecisionPolicy) -> ModelPlan:
        return replace(self, precision=precision)

    def with_placement(self, placement: PlacementConfig) -> ModelPlan:
        return replace(self, placement=placement)


@dataclass(frozen=True)
class WanFile:
    """A model file or folder that can be trained on, judged by its header."""

    header: CheckpointHeader
    variant: WanVariant
    compute_dtype: torch.dtype
    """what its linears compute in under the plan"""
    weights: Mapping[str, StoredWeight]
    """by original Wan name"""
    quantization: str
    """how the file stores its linears: none, fp8, scaled_fp8, _quantization_metadata, comfy_quant, gguf"""


def inspect_model(plan: ModelPlan, roots: Roots) -> WanFile:
    """Returns what the plan's file is, where it can be trained on; reads headers only.

    Raises CheckpointError for anything that cannot be trained, in one sentence, before any weight is loaded.
    """
    if plan.low_noise_file:
        raise ConfigError("The plan names both experts of a pair. Set expert to high or low: a run trains one of them.")
    header = read_checkpoint(roots.resolve(plan.base_file))
    variant = detect_variant(header, override=plan.variant)
    if not variant.trainable:
        raise CheckpointError(
            f"{header.path.name} is {variant.name}; training it is not supported yet. Choose a model made for text, "
            "images, first and last frames, VACE, Fun control or camera (Wan 2.1 or 2.2)."
        )
    stored = locate_weights(header)
    _check_shapes(variant, stored.weights, header.path.name)
    linear = stored.weights["blocks.0.ffn.0.weight"]
    return WanFile(header, variant, _compute_dtype(plan, linear), stored.weights, stored.quantization)


def inspect_pair(plan: ModelPlan, roots: Roots) -> tuple[WanFile, WanFile]:
    """Returns the high- and the low-noise expert of a plan with two files; CheckpointError unless they are a pair.

    Where the plan states the variant of one half, the other half follows from it.
    """
    variants = [plan.variant.replace("low noise", "high noise"), plan.variant.replace("high noise", "low noise")]
    if plan.variant != "auto" and not plan.variant.endswith(" noise"):
        raise ConfigError(f'variant "{plan.variant}" is no pair. Set low_noise_model to none, or variant to auto.')
    one = replace(plan, low_noise_file="")
    halves = [
        inspect_model(replace(one, base_file=file, variant=variant), roots)
        for file, variant in zip((plan.base_file, plan.low_noise_file), variants, strict=True)
    ]
    high, low = halves
    names = pair_names(high.variant, low.variant, high.header.path.name, low.header.path.name)
    found = [
        replace(half, variant=detect_variant(half.header, override=name))
        for half, name in zip(halves, names, strict=True)
    ]
    return found[0], found[1]


def settled(plan: ModelPlan, files: Sequence[WanFile]) -> ModelPlan:
    """Returns the plan as a new run takes it.

    Float32 files compute in bf16 on a GPU, unless a base precision was asked for.

    In float32 the weights take twice the memory and attention has no fast kernel; on a CPU neither matters much. Runs
    that say "as in file" themselves keep the numbers they began with.
    """
    open_to_us = plan.base_precision == "as in file" and all(f.compute_dtype == torch.float32 for f in files)
    on_gpu = any(name != "cpu" for name in plan.placement.device_names())
    return replace(plan, base_precision="bf16") if open_to_us and on_gpu else plan


def _compute_dtype(plan: ModelPlan, linear: StoredWeight) -> torch.dtype:
    if plan.base_precision != "as in file":
        return torch_dtype(plan.base_precision)
    # float16 overflows in gradients without loss scaling; its files train in bfloat16 (3 mantissa bits fewer), and so
    # do quantized ones.
    return {"F32": torch.float32, "F64": torch.float32}.get(linear.dtype, torch.bfloat16)


def _check_shapes(variant: WanVariant, sources: Mapping[str, StoredWeight], file_name: str) -> None:
    with torch.device("meta"):
        wanted = {name: tuple(p.shape) for name, p in WanTransformer(variant.shape).named_parameters()}
    missing = sorted(wanted.keys() - sources.keys())
    if missing:
        raise CheckpointError(f"{file_name} lacks {len(missing)} weights, for example {missing[0]}. Download it again.")
    # A model built on Wan has weights that ours lacks; without them it would be trained as something it is not.
    left_over = sorted(
        name
        for name in sources.keys() - wanted.keys()
        if name.partition(".")[0] in BLOCK_LISTS or name.endswith((".weight", ".bias"))
    )
    if left_over:
        raise CheckpointError(
            f"{file_name} has {len(left_over)} weights that no {variant.name} has, for example {left_over[0]}: a model "
            "made from Wan, not Wan. Choose the Wan model it was made from."
        )
    for name, shape in wanted.items():
        if sources[name].shape != shape:
            raise CheckpointError(
                f"{file_name}: {name} has shape {sources[name].shape}, a {variant.name} needs {shape}. "
                "Choose an unmodified Wan file."
            )


def import_libraries(plan: ModelPlan) -> None:
    """Import every library of compiled code that building and saving the model of `plan` takes."""
    import safetensors.torch  # noqa: F401  # pyright: ignore[reportUnusedImport]

    check_peft()
    if plan.quantize is not None:
        check_torchao()


def materialize(
    plan: ModelPlan,
    roots: Roots,
    lora: LoraConfig | None,
    *,
    seed: int = 0,
    rank: int = 0,
    on_tensor: Callable[[int, int], None] | None = None,
    found: WanFile | None = None,
) -> WanTransformer:
    """Build the model of a plan: frozen base, LoRA trainable, on its devices.

    `on_tensor(done, total)` is called after each weight and may raise to stop the load. `found`: what `inspect_model`
    found, where it was asked already.
    """
    found = found or inspect_model(plan, roots)
    compute, shape = found.compute_dtype, found.variant.shape
    numerics = plan.precision.numerics(compute)
    placement = resolve_placement(plan.placement, shape.num_layers, rank)
    check_plan_attention(plan, shape, numerics, placement)
    with torch.inference_mode(False), torch.device("meta"):
        model = WanTransformer(shape, numerics)
    model.use_attention(plan.attention)
    if plan.quantize is not None:
        plan.quantize.check_names([name for name, _ in model.named_modules()])
    if lora is not None:
        check_targets(model, lora)
    start = read_lora(roots.resolve(lora.start_from)) if lora is not None and lora.start_from else None
    if lora is not None and start is not None:
        check_start(model, start, lora)  # minutes before the last base weight has been read
    with torch.inference_mode(False):
        _fill(model, plan, placement, found.weights, on_tensor)
        if lora is not None:
            inject_lora(model, lora, seed=seed, dtype=numerics.adapter if numerics.adapter != compute else None)
            model.checkpoint_keeps_rng = lora.dropout > 0
            if start is not None:
                start_from(model, start, lora)
    placement.check(model)
    check_trainable_untouched(model)
    if len(placement.devices) > 1:
        model.carrier = DeviceCarrier(placement)
    return model


def _fill(
    model: WanTransformer,
    plan: ModelPlan,
    placement: Placement,
    sources: Mapping[str, StoredWeight],
    on_tensor: Callable[[int, int], None] | None,
) -> None:
    model.requires_grad_(False)
    total, done = sum(1 for _ in model.parameters()), 0
    check = FiniteCheck()
    with WeightReader() as reader:
        for prefix, part in _parts(model):
            for name, _ in list(part.named_parameters()):
                full = f"{prefix}.{name}"
                if stays_stored(plan, full, sources[full]):
                    for value in _keep_stored(part, name, reader, sources[full], placement.device_of(full)):
                        check.see(full, value)
                else:
                    rests = storage_dtype(full, model.numerics, sources[full].dtype)
                    value = reader.read(sources[full], rests).to(placement.device_of(full))
                    owner, leaf = part.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
                    setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
                    check.see(full, value)
                done += 1
                if on_tensor is not None:
                    on_tensor(done, total)
            if bad := check.first_bad():
                rests = storage_dtype(bad, model.numerics, sources[bad].dtype)
                raise _not_finite(reader, bad, sources[bad], rests)
            if plan.quantize is not None:
                quantize_block(part, prefix, plan.quantize)


def _not_finite(reader: WeightReader, name: str, source: StoredWeight, rests: torch.dtype) -> Exception:
    """Returns what to say of a weight that does not hold finite numbers.

    Either the file is damaged, or `rests` is too narrow.
    """
    values = reader.read(source, torch.float32)
    if bad := count_bad(values):
        return CheckpointError(
            f"{source.file.name}: {bad} of {values.numel()} values of {name} are not finite (NaN or infinity), so no "
            "step could be. Download the file again, or choose another."
        )
    return ConfigError(
        f"{source.file.name}: {name} does not fit into {str(rests).removeprefix('torch.')}, its largest value is "
        f"{float(values.abs().max()):.3g}. Set base_precision to bf16 or fp32."
    )


def _parts(model: WanTransformer) -> Iterator[tuple[str, nn.Module]]:
    """Yields the model in the pieces that are loaded and quantized as one: what is no block, then each block."""
    for name, child in model.named_children():
        if name not in BLOCK_LISTS:
            yield name, child
    for name in BLOCK_LISTS:
        for index, block in enumerate(getattr(model, name, ())):
            yield f"{name}.{index}", block


def stays_stored(plan: ModelPlan, name: str, source: StoredWeight) -> bool:
    """Whether the weight `name` rests in memory as its file has it: a linear of a block in float8 or nvfp4.

    Outside the blocks linears are few, and the model computes them in other dtypes: those are dequantised once.
    """
    linear = name.removesuffix(".weight")
    if not source.can_stay or len(source.shape) != 2 or linear == name or block_of(linear) is None:
        return False
    return plan.base_precision == "as in file" and not (plan.quantize is not None and plan.quantize.selects(linear))


def _keep_stored(
    part: nn.Module, name: str, reader: WeightReader, source: StoredWeight, device: torch.device
) -> list[Tensor]:
    """Put a `StoredLinear` in the place of the linear whose weight is called `name` within `part`.

    Returns its tensors.
    """
    path = name.removesuffix(".weight")
    found = (reader.scale(source), reader.whole_scale(source))
    scale, whole_scale = (None if value is None else value.to(device) for value in found)
    bias = getattr(part.get_submodule(path), "bias", None) is not None
    values = reader.raw(source).to(device)
    layer = StoredLinear(values, scale, bias=bias, whole_scale=whole_scale)
    owner, _, leaf = path.rpartition(".")
    setattr(part.get_submodule(owner), leaf, layer)
    return [tensor for tensor in (values, scale, whole_scale) if tensor is not None]


_IMAGE_NORMS = ("img_emb.proj.0.", "img_emb.proj.4.")


def check_plan_attention(plan: ModelPlan, shape: WanShape, numerics: Numerics, placement: Placement) -> None:
    """Refuse a kernel that cannot train on one of the devices. torch's own choice always can."""
    if plan.attention == "sdpa":
        return
    dtype, head_dim = numerics.attention or numerics.compute, shape.dim // shape.num_heads
    for device in placement.devices:
        check_attention(plan.attention, device=device, dtype=dtype, head_dim=head_dim)


def attention_kernels(plan: ModelPlan, found: WanFile) -> dict[str, str]:
    """Returns which program computes attention on each device of the first process, by device name."""
    numerics, shape = plan.precision.numerics(found.compute_dtype), found.variant.shape
    dtype, head_dim = numerics.attention or numerics.compute, shape.dim // shape.num_heads
    devices = resolve_placement(plan.placement, shape.num_layers).devices
    if plan.attention != "sdpa":
        return dict.fromkeys(map(str, devices), plan.attention)
    return {str(device): sdpa_choice(device=device, dtype=dtype, head_dim=head_dim) for device in devices}


def storage_dtype(name: str, numerics: Numerics, stored: str) -> torch.dtype:
    """Returns what a base weight rests in; `stored` is the file's own dtype (F32, F16, BF16).

    Norms and modulation tables (tiny, sensitive) rest in float32. The time path and the head rest as in the file where
    the policy computes them wider than the linears: exact, and no larger. Everything else rests in the compute dtype.
    """
    if name.endswith(("modulation", "emb_pos")) or ".norm" in name or name.startswith(_IMAGE_NORMS):
        return torch.float32
    part = name.split(".")[0]
    computed = {"time_embedding": numerics.time, "time_projection": numerics.time, "head": numerics.head}.get(part)
    if computed in (None, numerics.compute):
        return numerics.compute
    return {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float32}.get(
        stored, numerics.compute
    )


def resting_bytes(plan: ModelPlan, found: WanFile, numerics: Numerics, name: str, parameter: Tensor) -> int:
    """Returns what the base weight `name` takes in memory once it is loaded.

    `parameter` has its shape and may be meta.
    """
    if stays_stored(plan, name, found.weights[name]):
        return found.weights[name].stored_bytes
    if plan.quantize is not None and parameter.ndim == 2 and plan.quantize.selects(name.removesuffix(".weight")):
        return parameter.numel() + 4 * parameter.shape[0]
    return parameter.numel() * storage_dtype(name, numerics, found.weights[name].dtype).itemsize
