"""One LoRA step of the real 14B shape on two simulated devices; run as a script, prints one JSON line.

Arguments: blocks whose bridge is left out, one at a time, before the whole step; each must be an error.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.sim_device import register
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Constants, WanShape, WanTransformer
from wan_core.placement import DeviceCarrier
from wan_core.placement.plan import split_blocks
from wan_core.precision import PrecisionPolicy

SHAPE = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)


class OneBridgeMissing(DeviceCarrier):
    """A carrier that forgets one block."""

    def __init__(self, placement: object, forgotten: int) -> None:
        super().__init__(placement)  # type: ignore[arg-type]
        self.forgotten = forgotten

    def to_block(self, index: int, tokens: torch.Tensor, constants: Constants) -> tuple[torch.Tensor, Constants]:
        if index == self.forgotten:
            return tokens, constants
        return super().to_block(index, tokens, constants)


def main(forgotten: list[int]) -> None:
    register()
    devices = [torch.device("sim", 0), torch.device("sim", 1)]
    placement = split_blocks(devices, SHAPE.num_layers, "midpoint")
    with torch.device("meta"):
        model = WanTransformer(SHAPE, PrecisionPolicy().numerics(torch.bfloat16)).to(torch.bfloat16)
    inject_lora(model, LoraConfig(rank=32), seed=0)
    model.checkpoint_blocks = True
    started = time.monotonic()
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module_name, module in model.named_modules():
            for name, p in list(module.named_parameters(recurse=False)):
                home = placement.device_of(f"{module_name}.{name}")
                value = torch.empty(p.shape, dtype=p.dtype, device=home)
                module.register_parameter(name, nn.Parameter(value, requires_grad=p.requires_grad))
        placement.check(model)
        errors = {number: error_without(model, placement, number, devices[0]) for number in forgotten}
        model.carrier = DeviceCarrier(placement)
        output = forward(model, devices[0])
        torch.nn.functional.mse_loss(output, torch.empty_like(output)).backward()
        parameters = adapter_parameters(model)
        at_home = all(p.grad is not None and p.grad.device == p.device for p in parameters.values())
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        torch.optim.AdamW(parameters.values()).step()
    print(  # noqa: T201
        json.dumps(
            {
                "adapters": len(parameters),
                "gradients_at_home": at_home,
                "norm_of_all_gradients_on": str(norm.device),
                "on_second_device": sum(p.device == devices[1] for p in parameters.values()),
                "errors": errors,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )


def forward(model: WanTransformer, device: torch.device) -> torch.Tensor:
    """832x480, 49 frames."""
    latent = torch.empty(1, 16, 13, 60, 104, device=device)
    return model(latent, torch.empty(1, device=device), torch.empty(1, 512, 4096, device=device))


def error_without(model: WanTransformer, placement: object, forgotten: int, device: torch.device) -> str:
    """What a forward pass says when one block has no bridge; empty if it says nothing."""
    model.carrier = OneBridgeMissing(placement, forgotten)
    try:
        forward(model, device)
    except FakeTensorDeviceMismatchError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
