"""Steps of the real 14B shape on a simulated device, with inputs offloaded and blocks swapped; run as a script.

Arguments: a JSON list of cases {frames, swap, offload, layers}. Prints one JSON object per case: the peak bytes of the
device in a step and in a preview, and how long a step takes on an RTX 4090 with a bus of 25 GB/s.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
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

from tests.support.sim_device import register
from tests.support.timeline import Event, timeline
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import WanShape, WanTransformer
from wan_core.model.attention import WanAttention
from wan_core.placement import BlockOffload, MemoryMeasures, running_order
from wan_core.placement.plan import Placement
from wan_core.precision import PrecisionPolicy, QuantizeConfig, quantize_block

SHAPE = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
RTX_4090 = 0.6 * 165.2e12
"""FLOP/s: 60 % of the peak in bfloat16, as docs and goals count"""
PCIE = 25e9


class Device(TorchDispatchMode):
    """Bytes on the simulated device, now and at most, and the log of what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.log: list[Event] = []
        self._flops = 0.0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type == "sim":
                self._count(leaf.untyped_storage())
        name = func._schema.name
        if "scaled_dot_product" in name:
            backward = "backward" in name
            query, key = args[1:3] if backward else args[:2]
            self._flops += 4 * query.numel() * key.shape[2] * (2.5 if backward else 1.0)
            if backward:  # CUDA's flash kernels sum this gradient in float32 beside the one they return
                self.peak = max(self.peak, self.live + 4 * query.numel())
        elif func._overloadpacket in flop_registry:
            self._flops += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._seen:
            self._seen[storage] = size = -(-storage.nbytes() // 512) * 512
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.live -= size

    def told(self, event: Event) -> None:
        self.log += [Event("compute", amount=self._flops), event]
        self._flops = 0.0

    def phase(self) -> tuple[int, list[Event]]:
        """The peak and the log of what ends here; another phase begins."""
        self.told(Event("wait"))
        ended = (self.peak, self.log)
        self.peak, self.log = self.live, []
        return ended


class Logged:
    """Copies that move nothing and are written down."""

    def __init__(self, device: Device) -> None:
        self._device, self._count = device, 0
        self.host_bytes = 0

    def host_memory(self, size: int) -> Tensor | None:
        self.host_bytes += size
        return torch.empty(size, dtype=torch.uint8)

    def start(self, source: Tensor, target: Tensor) -> int:
        self._count += 1
        way = "in" if source.device.type == "cpu" else "out"
        assert {source.device.type, target.device.type} == {"cpu", "sim"}
        self._device.told(Event("start", way, self._count, source.nbytes))
        return self._count

    def wait(self, copy: int) -> None:
        self._device.told(Event("wait", number=copy))


def flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The kernel that torch takes on a GPU; on a simulated device it would take the plain one."""
    inputs = (x.transpose(1, 2) for x in (query, key, value))
    return torch.ops.aten._scaled_dot_product_flash_attention(*inputs)[0].transpose(1, 2)


def skeleton(layers: int) -> WanTransformer:
    with torch.device("meta"):
        model = WanTransformer(replace(SHAPE, num_layers=layers), PrecisionPolicy().numerics(torch.bfloat16))
    model.to(torch.bfloat16).requires_grad_(False)
    inject_lora(model, LoraConfig(rank=32), seed=0)
    for module in model.modules():
        if isinstance(module, WanAttention):
            module.kernel = flash
    return model


def fill(model: WanTransformer, offload: BlockOffload, home: torch.device) -> None:
    """Weights as the loader makes them: block by block, packed, and to where they rest."""
    for name, part in [*model.named_children(), *((f"blocks.{i}", b) for i, b in enumerate(model.blocks))]:
        if name == "blocks":
            continue
        for module in part.modules():
            for leaf, p in list(module.named_parameters(recurse=False)):
                value = torch.empty(p.shape, dtype=torch.float32 if p.requires_grad else p.dtype, device=home)
                module.register_parameter(leaf, nn.Parameter(value, requires_grad=p.requires_grad))
        if name.startswith("blocks."):
            assert quantize_block(part, name, QuantizeConfig()) == 10
        offload.settle(name, part)


def measured(model: WanTransformer, frames: int, swap: int, offload: bool) -> dict[str, Any]:
    home, started = torch.device("sim", 0), time.monotonic()
    layers = len(model.blocks)
    with FakeTensorMode(allow_non_fake_inputs=True), Device() as device:
        copies = Logged(device)
        moved = BlockOffload(
            Placement((home,) * layers),
            running_order(layers),
            MemoryMeasures(offload_inputs=offload, blocks_to_swap=swap),
            copies=lambda _: copies,
        )
        fill(model, moved, home)
        model.offload, model.checkpoint_blocks = moved, True
        optimizer = torch.optim.AdamW(adapter_parameters(model).values(), foreach=False)
        for adapter in adapter_parameters(model).values():
            adapter.grad = torch.zeros_like(adapter)
        optimizer.step()  # makes its moments
        optimizer.zero_grad(set_to_none=True)
        loaded, _ = device.phase()
        with torch.no_grad():
            forward(model, frames, home)
        preview_peak, preview_log = device.phase()
        step(model, optimizer, frames, home)
        peak, log = device.phase()
        found = {
            "loaded": loaded,
            "step": peak,
            "preview": preview_peak,
            "host": copies.host_bytes,
            "time": asdict(timeline(log, flops=RTX_4090, bandwidth=PCIE)),
            "preview_time": asdict(timeline(preview_log, flops=RTX_4090, bandwidth=PCIE)),
        }
    return found | {"took": round(time.monotonic() - started, 1)}


def forward(model: WanTransformer, frames: int, home: torch.device) -> Tensor:
    latent = torch.empty(1, 16, (frames - 1) // 4 + 1, 60, 104, device=home)
    text = torch.empty(1, 512, 4096, device=home)
    return model(latent, torch.empty(1, device=home), text)


def step(model: WanTransformer, optimizer: torch.optim.Optimizer, frames: int, home: torch.device) -> None:
    output = forward(model, frames, home)
    nn.functional.mse_loss(output, torch.empty_like(output)).backward()
    del output
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main() -> None:
    cases = json.loads(sys.argv[1])
    register()
    for case in cases:
        model = skeleton(case.pop("layers", 40))
        print(json.dumps(case | measured(model, **case)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
