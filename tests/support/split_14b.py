"""One LoRA step of the real 14B shape on two simulated devices; run as a script, prints one JSON line.

Arguments: how many blocks the model has, then blocks whose bridge is left out, one at a time, of four blocks of that
shape; each must be an error. Where the model has four blocks, too, its step is the one with tokens that pass by.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.stand_in_card import open_cards
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Constants, Passage, WanShape, WanTransformer, draw_passages, read_routes
from wan_core.placement import DeviceCarrier
from wan_core.placement.plan import Placement, split_blocks
from wan_core.precision import PrecisionPolicy

SHAPE = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
SHORT = replace(SHAPE, num_layers=4)


class OneBridgeMissing(DeviceCarrier):
    """A carrier that forgets one block."""

    def __init__(self, placement: object, forgotten: int) -> None:
        super().__init__(placement)  # type: ignore[arg-type]
        self.forgotten = forgotten

    def to_block(self, index: int, tokens: torch.Tensor, constants: Constants) -> tuple[torch.Tensor, Constants]:
        if index == self.forgotten:
            return tokens, constants
        return super().to_block(index, tokens, constants)


def meta_model(shape: WanShape) -> WanTransformer:
    """The model with its adapters and no values."""
    with torch.device("meta"):
        model = WanTransformer(shape, PrecisionPolicy().numerics(torch.bfloat16)).to(torch.bfloat16)
    inject_lora(model, LoraConfig(rank=32), seed=0)
    model.checkpoint_blocks = True
    return model


def put_on(model: WanTransformer, devices: list[torch.device], blocks: int) -> Placement:
    """Half of the blocks on each device."""
    placement = split_blocks(devices, blocks, "midpoint")
    for module_name, module in model.named_modules():
        for name, p in list(module.named_parameters(recurse=False)):
            home = placement.device_of(f"{module_name}.{name}")
            value = torch.empty(p.shape, dtype=p.dtype, device=home)
            module.register_parameter(name, nn.Parameter(value, requires_grad=p.requires_grad))
    placement.check(model)
    return placement


def main(blocks: int, forgotten: list[int]) -> None:
    open_cards(4)
    devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
    short = meta_model(SHORT)
    model = short if blocks == SHORT.num_layers else meta_model(replace(SHAPE, num_layers=blocks))
    started = time.monotonic()
    with FakeTensorMode(allow_non_fake_inputs=True):
        halves = put_on(short, devices, SHORT.num_layers)
        errors = {number: error_without(short, halves, number, devices[0]) for number in forgotten}
        short.carrier = DeviceCarrier(halves)
        whole = list(forward(short, devices[0], frames=1).shape)
        over_the_border = draw_passages(read_routes("0.5: 1..2"), 5, 30 * 52, [torch.Generator()])
        routed = forward(short, devices[0], over_the_border)
        torch.nn.functional.mse_loss(routed, torch.empty_like(routed)).backward()
        routed_at_home = all(
            p.grad is not None and p.grad.device == p.device for p in adapter_parameters(short).values()
        )
        if model is not short:
            model.carrier = DeviceCarrier(put_on(model, devices, blocks))
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
                "routed_at_home": routed_at_home,
                "with_every_bridge": whole,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )


def forward(
    model: WanTransformer, device: torch.device, passages: tuple[Passage, ...] = (), *, frames: int = 5
) -> torch.Tensor:
    """832x480; the tokens of five latent frames are more than one chunk."""
    latent = torch.empty(1, 16, frames, 60, 104, device=device)
    return model(latent, torch.empty(1, device=device), torch.empty(1, 512, 4096, device=device), None, passages)


def error_without(model: WanTransformer, placement: Placement, forgotten: int, device: torch.device) -> str:
    """What a forward pass says when one block has no bridge; empty if it says nothing."""
    model.carrier = OneBridgeMissing(placement, forgotten)
    try:
        forward(model, device, frames=1)
    except FakeTensorDeviceMismatchError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
