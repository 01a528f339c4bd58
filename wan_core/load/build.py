"""Builds a model from a plan: reads and places weights, quantizes them, injects the LoRA.

Weights are loaded one by one to their final device and dtype, and a block is quantized once it is complete, so neither
host nor device memory ever has a second copy of the model. Quantized linears of a file stay quantized, unless the plan
sets another base precision or quantization.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from ..abilities import abilities_of, all_have_bf16
from ..accelerator import backend_of, is_here
from ..checkpoint import (
    FiniteCheck,
    StoredWeight,
    WeightReader,
    block_scales,
    code_scales,
    count_bad,
    scale_values,
)
from ..errors import CheckpointError, ConfigError, PlacementError
from ..families import BLOCK_LISTS
from ..files import Roots
from ..kernels import LONG_TOKENS, check_attention, long_attention, sdpa_choice
from ..lora import (
    LoraConfig,
    LoraSource,
    act_on,
    adapters_of,
    check_start,
    check_targets,
    check_tuner,
    inject_lora,
    read_frozen,
    read_start,
    start_from,
)
from ..model import TEXT_LENGTH, Numerics, WanShape, WanTransformer
from ..parallel import ShardedBlocks, Sharding, SplitTokens
from ..placement import (
    BlockOffload,
    DeviceCarrier,
    MemoryMeasures,
    OwnMemory,
    Placement,
    Shared,
    SharedMemory,
    devices_of,
    resolve_placement,
    running_order,
)
from ..precision import (
    QuantizedLinear,
    check_matmul,
    check_trainable_untouched,
    multiply_in,
    quantize_block,
)
from .model_plan import ModelPlan, WanFile, inspect_model
from .storage import float8_kinds, packed_dtypes, stays_stored, storage_dtype


def import_libraries() -> None:
    """Imports every compiled library that loading and saving need, and psutil for memory figures."""
    import safetensors.torch  # noqa: F401  # pyright: ignore[reportUnusedImport]

    with contextlib.suppress(ImportError):
        import psutil  # noqa: F401  # pyright: ignore[reportUnusedImport]


_CHOSEN_HERE = ("sdpa", "auto")
"""values of ModelPlan.attention that leave the choice of a kernel to the device"""


def materialize(
    plan: ModelPlan,
    roots: Roots,
    lora: LoraConfig | None,
    *,
    seed: int = 0,
    rank: int = 0,
    on_tensor: Callable[[int, int], None] | None = None,
    found: WanFile | None = None,
    measures: MemoryMeasures | None = None,
    shared: SharedMemory | None = None,
    sharding: Sharding | None = None,
) -> WanTransformer:
    """Builds the model of a plan on its devices: frozen base, trainable LoRA.

    `on_tensor(done, total)` is called after each weight, and may raise to stop the load. `found`: the result of
    `inspect_model`, if there is one. `measures`: what to offload; None: nothing. Each swapped block is offloaded before
    the next is read, and needs activation checkpointing. `shared`: memory for the swapped blocks that other processes
    with the same plan share. `sharding`: the ranks that each keep a part of every block; a rank reads a complete block
    and drops the other parts.
    """
    found = found or inspect_model(plan, roots)
    shape = found.variant.shape
    count = plan.placement.models
    placements = [resolve_placement(plan.placement, shape.num_layers, max(rank, number)) for number in range(count)]
    devices = [device for placement in placements for device in placement.devices]
    numerics = plan.precision.numerics(found.compute_dtype).on(devices)
    for placement in placements:
        check_plan_devices(plan, shape, numerics, found, placement)
    model = _without_values(plan, shape, numerics, lora, placements[0])
    if plan.quantize is not None:
        plan.quantize.check_names([name for name, _ in model.named_modules()])
    if lora is not None:
        check_tuner(check_targets(model, lora), lora)
    start = None
    if lora is not None and lora.start_from:
        start = read_start(roots.resolve(lora.start_from), found.variant.expert)
    if lora is not None and start is not None:
        check_start(model, start, lora)  # checked before the base weights are read, which takes minutes
    loras = [
        (read_frozen(roots.resolve(lora.file), lora, model, found.variant.expert), lora.strength) for lora in plan.loras
    ]
    held: Shared | None = OwnMemory() if count > 1 else None
    if shared is not None and held is None:  # the weights depend on all settings of the plan
        digest = hashlib.sha256(json.dumps(plan.to_dict(), sort_keys=True).encode()).hexdigest()
        held = shared.of(digest[:32])
    models: list[WanTransformer] = []
    for number, placement in enumerate(placements):
        order = running_order(shape.num_layers, shape.vace_layers)
        own = BlockOffload(placement, order, measures or MemoryMeasures(), shared=held)
        offload = own if sharding is None else ShardedBlocks(own, order, sharding)
        one = model if not number else _without_values(plan, shape, numerics, lora, placement)

        def on_weight(done: int, total: int, number: int = number) -> None:
            if on_tensor is not None:
                on_tensor(number * total + done, count * total)

        with torch.inference_mode(False):
            _fill(one, plan, placement, offload, found.weights, on_weight, loras)
            multiply_in(one, numerics.matmul)
            if lora is not None:
                _add_adapters(one, lora, start, offload, placement, found.compute_dtype, seed)
        placement.check(one, offloads=offload.offloads)
        check_trainable_untouched(one)
        one.offload = offload
        one.run_in_chunks(offload.measures.chunk_tokens)
        if len(placement.devices) > 1:
            one.carrier = DeviceCarrier(placement)
        models.append(one)
    if count > 1:
        model.team = SplitTokens(model, models[1:], plan.placement.shares)
    return model


def _without_values(
    plan: ModelPlan, shape: WanShape, numerics: Numerics, lora: LoraConfig | None, placement: Placement
) -> WanTransformer:
    with torch.inference_mode(False), torch.device("meta"):
        model = WanTransformer(shape, numerics)
    model.use_attention(plan.attention, _long_attention(plan, shape, numerics, placement))
    model.read_texts(TEXT_LENGTH, rows_differ=lora is not None and lora.drops_inputs)
    return model


def _add_adapters(
    model: WanTransformer,
    lora: LoraConfig,
    start: LoraSource | None,
    offload: BlockOffload | ShardedBlocks,
    placement: Placement,
    compute: torch.dtype,
    seed: int,
) -> None:
    dtype = model.numerics.adapter if model.numerics.adapter != compute else None
    complete = {"weights": offload.complete} if isinstance(offload, ShardedBlocks) else {}
    inject_lora(model, lora, seed=seed, dtype=dtype, **complete)
    # Adapters are created on their weight's device, which is the CPU for an offloaded block.
    for adapter in adapters_of(model):
        adapter.move(placement.device_of(adapter.name))
    model.checkpoint_keeps_rng = lora.draws
    if start is not None:
        start_from(model, start, lora)


def _fill(
    model: WanTransformer,
    plan: ModelPlan,
    placement: Placement,
    offload: BlockOffload | ShardedBlocks,
    sources: Mapping[str, StoredWeight],
    on_weight: Callable[[int, int], None],
    loras: Sequence[tuple[LoraSource, float]],
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
                    storage = storage_dtype(full, model.numerics, sources[full].dtype)
                    value = reader.load(sources[full], storage, placement.device_of(full))
                    owner, leaf = part.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
                    setattr(owner, leaf, nn.Parameter(value, requires_grad=False))
                    check.see(full, value)
                done += 1
                on_weight(done, total)
            if bad := check.first_bad():
                storage = storage_dtype(bad, model.numerics, sources[bad].dtype)
                raise _not_finite(reader, bad, sources[bad], storage, placement)
            if plan.quantize is not None:
                quantize_block(part, prefix, plan.quantize)
            for source, strength in loras:
                inside = model.numerics.adapter or model.numerics.compute
                act_on(part, source, strength, dtype=inside, device_of=placement.device_of, prefix=prefix)
            offload.offload_block(prefix, part)


def _not_finite(
    reader: WeightReader, name: str, source: StoredWeight, storage: torch.dtype, placement: Placement
) -> Exception:
    """Returns the error for a non-finite weight: a damaged file, or a storage dtype that is too narrow."""
    values = reader.read(source, torch.float32)
    if bad := count_bad(values):
        return CheckpointError(
            f"{source.file.name}: {bad} of {values.numel()} values of {name} are not finite (NaN or infinity), so "
            "no step could be finite. Download the file again, or choose another."
        )
    instead = "bf16 or fp32" if all_have_bf16(placement.devices) else "fp32"
    return ConfigError(
        f"{source.file.name}: {name} does not fit into {str(storage).removeprefix('torch.')}, its largest value is "
        f"{float(values.abs().max()):.3g}. Set base_precision to {instead}."
    )


def _parts(model: WanTransformer) -> Iterator[tuple[str, nn.Module]]:
    """Yields (name, module) of the units of loading and quantization: children outside the blocks, then each block."""
    for name, child in model.named_children():
        if name not in BLOCK_LISTS:
            yield name, child
    for name in BLOCK_LISTS:
        for index, block in enumerate(getattr(model, name, ())):
            yield f"{name}.{index}", block


def _keep_stored(
    part: nn.Module, name: str, reader: WeightReader, source: StoredWeight, device: torch.device
) -> list[Tensor]:
    """Replaces the linear of weight `name` in `part` by a `QuantizedLinear`.

    Returns the tensors to check for non-finite values.
    """
    path = name.removesuffix(".weight")
    found = (reader.scale(source), reader.whole_scale(source))
    scale, whole_scale = (None if value is None else value.to(device) for value in found)
    bias = getattr(part.get_submodule(path), "bias", None) is not None
    values = reader.raw(source).to(device)
    layer = QuantizedLinear(values, scale, bias=bias, whole_scale=whole_scale, layout=source.layout)
    owner, _, leaf = path.rpartition(".")
    setattr(part.get_submodule(owner), leaf, layer)
    if source.gguf:
        return [block_scales(values, source.layout)]
    scales = None if scale is None else scale_values(scale, source.layout)
    of_codes = code_scales(values, source.layout) if source.code_scale_key else values
    return [tensor for tensor in (of_codes, scales, whole_scale) if tensor is not None]


def check_plan_devices(
    plan: ModelPlan, shape: WanShape, numerics: Numerics, found: WanFile, placement: Placement
) -> None:
    """Refuses settings of the plan that one of the devices does not support. Reads no weights.

    The attention kernels sdpa and auto are never refused.
    """
    matmul, kinds = plan.precision.numerics(found.compute_dtype).matmul, float8_kinds(plan, found)
    if matmul is not None and matmul not in packed_dtypes(plan, found):
        raise ConfigError(
            f'matmul "{plan.precision.matmul}" needs a base whose weights are {plan.precision.matmul}, with one scale '
            "per weight or row, and this base has none. Set matmul to compute in Precision Policy, or put Fp8 / Int8 "
            "Quantize with such a scheme before it."
        )
    for device in placement.devices:
        if refusal := abilities_of(device).refusal():
            raise PlacementError(refusal)
        backend = backend_of(device)
        if kinds and not backend.float8:
            raise PlacementError(
                f"{backend.title} stores no float8 values, and this base keeps {', '.join(kinds)}. Set base_precision "
                "to bf16, load an int8 or GGUF file, or quantize to int8."
            )
        if plan.attention not in _CHOSEN_HERE:
            check_attention(plan.attention, device=device, **_of_attention(shape, numerics))
        if matmul is not None:
            check_matmul(matmul, device)


class _OfAttention(TypedDict):
    dtype: torch.dtype
    head_dim: int


def _of_attention(shape: WanShape, numerics: Numerics) -> _OfAttention:
    return {"dtype": numerics.attention or numerics.compute, "head_dim": shape.dim // shape.num_heads}


def _long_attention(plan: ModelPlan, shape: WanShape, numerics: Numerics, placement: Placement) -> str:
    """Returns the kernel of `auto` for long sequences: sdpa, unless all devices prefer the same other kernel."""
    if plan.attention != "auto":
        return "sdpa"
    found = {long_attention(device=device, **_of_attention(shape, numerics)) for device in placement.devices}
    return found.pop() if len(found) == 1 else "sdpa"


def attention_is_plain(plan: ModelPlan, numerics: Numerics, placement: Placement) -> bool:
    """Returns whether attention stores the matrix of scores on a device of `placement`: sdpa_math, or no fused kernel.

    Decided by the card's model, without opening the device; cards of other machines count as having a fused kernel.
    """
    if plan.attention not in _CHOSEN_HERE:
        return plan.attention == "sdpa_math"
    dtype = numerics.attention or numerics.compute
    return not all(abilities_of(device).fuses_attention(dtype) for device in placement.devices if is_here(device))


def attention_kernels(plan: ModelPlan, found: WanFile, tokens: int) -> dict[str, str]:
    """Returns the attention kernel of each device of the first process for `tokens`, by device name."""
    numerics, shape = plan.precision.numerics(found.compute_dtype), found.variant.shape
    devices = devices_of(plan.placement, shape.num_layers)
    if plan.attention not in _CHOSEN_HERE:
        return dict.fromkeys(map(str, devices), plan.attention)
    placement = resolve_placement(plan.placement, shape.num_layers)
    if tokens >= LONG_TOKENS and (long := _long_attention(plan, shape, numerics, placement)) != "sdpa":
        return dict.fromkeys(map(str, devices), long)
    how = _of_attention(shape, numerics)
    return {str(device): sdpa_choice(device=device, tokens=tokens, **how) for device in devices}
