"""Steps of real shapes on a simulated device, with inputs offloaded and blocks swapped; run as a script.

The argument is the JSON of one case, `measured`'s arguments. Prints one JSON object: the peak bytes of each device in
loading, in a preview and in a step, and how long they take on an RTX 4090 with a bus of 25 GB/s.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.stand_in_card import open_cards
from tests.support.timeline import Event, timeline
from wan_core.families import BLOCK_LISTS
from wan_core.kernels import modulate
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Conditioning, WanShape, WanTransformer
from wan_core.model.attention import WanAttention
from wan_core.placement import BlockOffload, DeviceCarrier, MemoryMeasures, Placement, running_order
from wan_core.placement.plan import split_blocks
from wan_core.precision import PrecisionPolicy, QuantizeConfig, quantize_block

_14B = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
_1_3B = WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30)
SHAPES = {
    "14B": _14B,
    "2.2 I2V-A14B": replace(_14B, in_channels=36),
    "2.1 I2V-14B": replace(_14B, in_channels=36, image_dim=1280),
    "2.1 VACE-14B": replace(_14B, vace_layers=tuple(range(0, 40, 5))),
    "5B": WanShape(dim=3072, ffn_dim=14336, num_heads=24, num_layers=30, in_channels=48, out_channels=48),
    "1.3B": _1_3B,
    "2.1 VACE-1.3B": replace(_1_3B, vace_layers=tuple(range(0, 30, 2))),
}
RTX_4090 = 0.6 * 165.2e12
"""FLOP/s: 60 % of the peak in bfloat16, as docs and goals count"""
PCIE = 25e9
HOST = torch.device("cpu")


class Devices(TorchDispatchMode):
    """Bytes on each simulated device, now and at most, and the log of what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = Counter[torch.device](), Counter[torch.device]()
        self.log = defaultdict[torch.device, list[Event]](list)
        self._flops = Counter[torch.device]()
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.device.type == "cuda"]
        for leaf in made:
            self._count(leaf)
        name = func._schema.name
        if "scaled_dot_product" in name:
            backward = "backward" in name
            query, key = args[1:3] if backward else args[:2]
            self._flops[query.device] += 4 * query.numel() * key.shape[2] * (2.5 if backward else 1.0)
            if backward:  # CUDA's flash kernels sum this gradient in float32 beside the one they return
                self._reach(query.device, 4 * query.numel())
        elif func._overloadpacket in flop_registry:
            self._flops[made[0].device] += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage, device = tensor.untyped_storage(), tensor.device
        if storage not in self._seen:
            self._seen[storage] = size = -(-storage.nbytes() // 512) * 512
            self._reach(device, size)
            self.live[device] += size
            weakref.finalize(storage, self._release, device, size)

    def _release(self, device: torch.device, size: int) -> None:
        self.live[device] -= size

    def _reach(self, device: torch.device, more: int) -> None:
        self.peak[device] = max(self.peak[device], self.live[device] + more)

    def told(self, device: torch.device, event: Event) -> None:
        self.log[device] += [Event("compute", amount=self._flops.pop(device, 0)), event]

    def phase(self) -> tuple[dict[str, int], dict[str, Any]]:
        """The peaks and the times of what ends here, by device; another phase begins."""
        for device in self.live:
            self.told(device, Event("wait"))
        times = {
            str(device): asdict(timeline(events, flops=RTX_4090, bandwidth=PCIE)) for device, events in self.log.items()
        }
        ended = ({str(device): peak for device, peak in self.peak.items()}, times)
        self.peak, self.log = self.live.copy(), defaultdict(list)
        return ended


class Logged:
    """Copies that move nothing and are written down."""

    def __init__(self, device: torch.device, devices: Devices) -> None:
        self._device, self._devices, self._count = device, devices, 0
        self.remarks: dict[str, str] = {}

    def host_memory(self, size: int) -> Tensor | None:
        return torch.empty(size, dtype=torch.uint8)

    def lock(self, memory: Tensor) -> Tensor | None:
        return memory

    def start(self, source: Tensor, target: Tensor) -> int:
        self._count += 1
        assert {source.device, target.device} == {HOST, self._device}
        way = "in" if source.device == HOST else "out"
        self._devices.told(self._device, Event("start", way, self._count, source.nbytes))
        return self._count

    def wait(self, copy: int) -> None:
        self._devices.told(self._device, Event("wait", number=copy))


def flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The kernel that torch takes on a GPU; on a simulated device it would take the plain one."""
    inputs = (x.transpose(1, 2) for x in (query, key, value))
    return torch.ops.aten._scaled_dot_product_flash_attention(*inputs)[0].transpose(1, 2)


def cut(name: str, layers: int) -> WanShape:
    """A shape with so many layers; 0: all of its own."""
    shape = SHAPES[name]
    layers = layers or shape.num_layers
    return replace(shape, num_layers=layers, vace_layers=tuple(one for one in shape.vace_layers if one < layers))


def latent_size(shape: WanShape, frames: int) -> tuple[int, int, int]:
    """Latent frames, rows and columns of a clip of 832x480; those of 5B are half as high and wide."""
    stride = 16 if shape.out_channels == 48 else 8
    return (frames - 1) // 4 + 1, 480 // stride, 832 // stride


def skeleton(shape: WanShape) -> WanTransformer:
    with torch.device("meta"):
        model = WanTransformer(shape, PrecisionPolicy().numerics(torch.bfloat16))
    model.to(torch.bfloat16).requires_grad_(False)
    inject_lora(model, LoraConfig(rank=32), seed=0)
    for module in model.modules():
        if isinstance(module, WanAttention):
            module.kernel = flash
    return model


def fill(model: WanTransformer, offload: BlockOffload, placement: Placement, *, packed: bool) -> None:
    """Weights as the loader makes them: block by block, packed where `packed`, and to where they rest."""
    others = [(name, part) for name, part in model.named_children() if name not in BLOCK_LISTS]
    blocks = [(name, model.get_submodule(name)) for name in running_order(len(model.blocks), model.shape.vace_layers)]
    for name, part in [*others, *blocks]:
        home = placement.device_of(name)
        for module in part.modules():
            for leaf, p in list(module.named_parameters(recurse=False)):
                value = torch.empty(p.shape, dtype=torch.float32 if p.requires_grad else p.dtype, device=home)
                module.register_parameter(leaf, nn.Parameter(value, requires_grad=p.requires_grad))
        if packed and name.startswith("blocks."):
            assert quantize_block(part, name, QuantizeConfig()) >= 10
        offload.offload_block(name, part)


def measured(
    *, frames: int, layers: int, swap: int, offload: bool, cards: int, name: str = "14B", packed: bool = True
) -> dict[str, Any]:
    """Peaks and times of a step and of a preview, by device."""
    shape, started = cut(name, layers), time.monotonic()
    model, layers = skeleton(shape), shape.num_layers
    homes = [torch.device("cuda", number) for number in range(cards)]
    placement = split_blocks(homes, layers, "auto")
    with FakeTensorMode(allow_non_fake_inputs=True), Devices() as devices:
        measures = MemoryMeasures(offload_inputs=offload, blocks_to_swap=swap)
        order = running_order(layers, shape.vace_layers)
        moved = BlockOffload(placement, order, measures, copies=lambda at: Logged(at, devices))
        fill(model, moved, placement, packed=packed)
        model.offload, model.checkpoint_blocks = moved, True
        if cards > 1:
            model.carrier = DeviceCarrier(placement)
        optimizer = torch.optim.AdamW(adapter_parameters(model).values(), foreach=False)
        for adapter in adapter_parameters(model).values():
            adapter.grad = torch.zeros_like(adapter)
        optimizer.step()  # makes its moments
        optimizer.zero_grad(set_to_none=True)
        loaded, _ = devices.phase()
        with torch.no_grad():
            forward(model, frames, homes[0])
        preview, preview_times = devices.phase()
        step(model, optimizer, frames, homes[0])
        peak, times = devices.phase()
    return {
        "peaks": {"loaded": loaded, "preview": preview, "step": peak},
        "times": {"preview": preview_times, "step": times},
        "took": round(time.monotonic() - started, 1),
    }


def forward(model: WanTransformer, frames: int, home: torch.device) -> Tensor:
    shape, size = model.shape, latent_size(model.shape, frames)

    def of(channels: int) -> Tensor | None:
        return torch.empty(1, channels, *size, device=home) if channels else None

    latent, text = torch.empty(1, shape.out_channels, *size, device=home), torch.empty(1, 512, 4096, device=home)
    given = Conditioning(
        channels=of(shape.condition_channels),
        vace=of(shape.vace_channels if shape.vace_layers else 0),
        image_tokens=torch.empty(1, 257, shape.image_dim, device=home) if shape.image_dim else None,
    )
    return model(latent, torch.empty(1, device=home), text, given)


def step(model: WanTransformer, optimizer: torch.optim.Optimizer, frames: int, home: torch.device) -> None:
    output = forward(model, frames, home)
    nn.functional.mse_loss(output, torch.empty_like(output)).backward()
    del output
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    open_cards(4)
    modulate._HAS_FUSED_RMS_NORM = False  # torch without CUDA has its kernel as a composite of many tensors
    print(json.dumps(measured(**json.loads(sys.argv[1]))))  # noqa: T201
