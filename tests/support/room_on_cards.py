"""Weights that make room and go home again, on stand-in cards; run as a script, prints one JSON object."""

from __future__ import annotations

import json
import sys
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.stand_in_card import open_cards
from wan_core.errors import OutOfMemory
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import WanShape, WanTransformer
from wan_core.placement import BlockOffload, DeviceCarrier, MemoryMeasures, model_offload, running_order
from wan_core.placement.copies import Copies
from wan_core.placement.plan import split_blocks
from wan_core.precision import PrecisionPolicy, QuantizeConfig, QuantizedLinear, quantize_block

SHAPE = WanShape(dim=128, ffn_dim=256, num_heads=1, num_layers=2)
"""a block for each device"""
SWAPPED = replace(SHAPE, num_layers=4)
"""two for each, which take turns in two buffers"""
STORED = ("fp8", "NVFP4", "MXFP8", "INT8_CONVROT_64", "Q8_0")
HOMES = [torch.device("cuda", 0), torch.device("cuda", 1)]


class Full(TorchDispatchMode):
    """Copies to one kind of device run out of memory: after `spared` of them, `refused` do."""

    kind, spared, refused = "", 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and torch.device(kwargs.get("device", "meta")).type == self.kind:
            self.spared -= 1
            if self.spared < 0 < self.refused:
                self.refused -= 1
                if self.kind == "cuda" and not self.refused:  # what the driver is asked for beside torch's allocator
                    raise RuntimeError("CUDA error: out of memory\nmore words")
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 MiB.\nmore words")
        return func(*args, **kwargs)


def main() -> None:
    open_cards(2)
    torch.set_num_threads(1)
    model_offload.RETURN_WAITS_S = (0.0, 0.0, 0.0)
    torch.cuda.empty_cache = lambda: RELEASED.append(1)
    schemes = ("fp8_e4m3fn", "int8", *STORED, "none")
    skeletons = [skeleton(SWAPPED), *(skeleton() for _ in range(len(schemes) + 2))]
    with Full() as full:
        report = {scheme: there_and_back(built(scheme, skeletons.pop()), full) for scheme in schemes}
        fp8, int8 = (built(scheme, skeletons.pop()) for scheme in schemes[:2])
        report["full once"] = there_and_back(fp8, full, cuda_refuses=1)
        report["full for good"] = there_and_back(int8, full, cuda_refuses=10_000)
        report["host full"] = there_and_back(fp8, full, host_refuses=1)
        report["swapped"] = swapped(built("int8", skeletons.pop()))
    print(json.dumps(report))  # noqa: T201


def there_and_back(
    model: WanTransformer, full: Full, *, cuda_refuses: int = 0, host_refuses: int = 0
) -> dict[str, Any]:
    """Bytes by device before, while and after a model makes room, and what was said."""
    trained, expected = adapter_parameters(model), sample(model)
    RELEASED.clear()
    found: dict[str, Any] = {"before": held(model), "away": None, "said": ""}
    full.kind, full.spared, full.refused = "cpu", 5, host_refuses
    try:
        with model_offload.offloaded_model(model):
            found["away"], found["released"] = held(model), len(RELEASED)
            full.kind, full.spared, full.refused = "cuda", 5, cuda_refuses
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        found["said"] = f"{type(error).__name__}: {error}"
    full.refused = 0
    found["after"] = held(model)
    found["trained"] = {str(home): sum(p.nbytes for p in trained.values() if p.device == home) for home in HOMES}
    found["trained_stay"] = all(p is trained[name] for name, p in adapter_parameters(model).items())
    if found["after"] == found["before"]:
        found["same"] = torch.equal(sample(model), expected)
    return found


class Watched(Copies):
    """Knows which memory of a device somebody still holds."""

    targets: ClassVar[list[weakref.ref[torch.UntypedStorage]]] = []

    def start(self, source: Tensor, target: Tensor) -> None:
        self.targets.append(weakref.ref(target.untyped_storage()))
        super().start(source, target)

    @classmethod
    def buffers(cls) -> int:
        """Bytes of the buffers through which swapped blocks pass."""
        return sum({id(one): one.nbytes() for target in cls.targets if (one := target()) is not None}.values())


def swapped(model: WanTransformer) -> dict[str, Any]:
    """Bytes of the buffers of a model whose blocks all rest in host memory: before, while and after it makes room."""
    layers = SWAPPED.num_layers
    placement = split_blocks(HOMES, layers, "midpoint")
    measures = MemoryMeasures(blocks_to_swap=layers)
    offload = BlockOffload(placement, running_order(layers), measures, copies=lambda _: Watched())
    for number, block in enumerate(model.blocks):
        offload.offload_block(f"blocks.{number}", block)
    placement.check(model, offloads=offload.offloads)
    model.offload = offload
    expected = sample(model)
    trained = adapter_parameters(model).values()
    found: dict[str, Any] = {"trained": sum(p.nbytes for p in trained), "buffers": [Watched.buffers()]}
    with model_offload.offloaded_model(model):
        found["buffers"].append(Watched.buffers())
        found["on_devices"] = sum(size for device, size in held(model).items() if device != "cpu")
    found["same"] = torch.equal(sample(model), expected)
    found["buffers"].append(Watched.buffers())
    return found


RELEASED: list[int] = []


def skeleton(shape: WanShape = SHAPE) -> WanTransformer:
    with torch.device("meta"):
        model = WanTransformer(shape, PrecisionPolicy().numerics(torch.bfloat16))
    model.requires_grad_(False)
    inject_lora(model, LoraConfig(rank=4), seed=0)
    return model


def built(scheme: str, model: WanTransformer) -> WanTransformer:
    """Weights on two cards, blocks quantized as `scheme` says: what `load.materialize` makes."""
    placement = split_blocks(HOMES, model.shape.num_layers, "midpoint")
    for module_name, module in model.named_modules():
        for name, p in list(module.named_parameters(recurse=False)):
            home = placement.device_of(f"{module_name}.{name}")
            value = filled(*p.shape, dtype=torch.float32 if p.requires_grad else torch.bfloat16, device=home)
            module.register_parameter(name, nn.Parameter(value, requires_grad=p.requires_grad))
    for index, block in enumerate(model.blocks):
        if scheme in STORED:
            block.ffn[0].base_layer = stored(block.ffn[0].base_layer, scheme)
        elif scheme != "none":
            assert quantize_block(block, f"blocks.{index}", QuantizeConfig(scheme=scheme)) == 10
    model.carrier = DeviceCarrier(placement)
    model.checkpoint_blocks = True
    return model


def filled(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device) -> Tensor:
    """Values of which none is large or no number, whatever the dtype."""
    value = torch.empty(shape, dtype=dtype, device=device)
    value.view(-1).view(torch.uint8).random_(0, 0x40)
    return value


def stored(layer: nn.Linear, layout: str) -> QuantizedLinear:
    """The linear as a file may have it: fp8 with a scale or one for a block, int8, nvfp4, or blocks of GGUF."""
    home, (rows, columns) = layer.weight.device, layer.weight.shape
    if layout == "fp8":
        values = filled(rows, columns, dtype=torch.float8_e4m3fn, device=home)
        made = QuantizedLinear(values, filled(1, device=home), bias=True)
    elif layout == "MXFP8":
        values = filled(rows, columns, dtype=torch.float8_e4m3fn, device=home)
        scale = filled(rows, columns // 32, dtype=torch.uint8, device=home)
        made = QuantizedLinear(values, scale, bias=True, layout=layout)
    elif layout == "INT8_CONVROT_64":
        values = filled(rows, columns, dtype=torch.int8, device=home)
        made = QuantizedLinear(values, filled(rows, 1, device=home), bias=True, layout=layout)
    elif layout == "NVFP4":
        values = filled(rows, columns // 2, dtype=torch.uint8, device=home)
        scale = filled(rows, columns // 16, dtype=torch.float8_e4m3fn, device=home)
        made = QuantizedLinear(values, scale, bias=True, whole_scale=filled(device=home), layout=layout)
    else:
        values = filled(rows, columns // 32 * 34, dtype=torch.uint8, device=home)
        made = QuantizedLinear(values, None, bias=True, layout=layout)
    made.bias = layer.bias
    return made


def held(model: nn.Module) -> dict[str, int]:
    """Bytes on each device."""
    bytes_on: Counter[str] = Counter()
    for tensor in [*model.parameters(), *model.buffers()]:
        bytes_on[str(tensor.device)] += tensor.numel() * tensor.element_size()
    return dict(sorted(bytes_on.items()))


def sample(model: WanTransformer) -> Tensor:
    """The bytes of a forward pass: every weight is where its block is, or this is an error."""
    latent = torch.ones(1, 16, 1, 4, 4, device=HOMES[0])
    with torch.no_grad():
        output = model(latent, torch.ones(1, device=HOMES[0]), torch.ones(1, 4, 4096, device=HOMES[0]))
    assert output.isfinite().all()
    return output.contiguous().view(torch.uint8)


if __name__ == "__main__":
    main()
