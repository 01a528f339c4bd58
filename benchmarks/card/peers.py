"""One LoRA step of ours beside diffusers + PEFT on the same card, at equal work: same weights, adapters and inputs.

Both models are in one process and take turns, so that clocks and temperature hit both alike. Theirs runs as its own
training scripts run it: base in bf16 but for what its class keeps in float32, adapters in float32, autocast to bf16.
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any

import contender
import peer_forward
import torch
from measure import SHAPES, Figures, Needs, Size
from torch import Tensor, nn

from wan_core.files import Roots
from wan_core.load import ModelPlan, materialize
from wan_core.lora import adapter_parameters
from wan_core.model import POLICIES, WanShape, WanTransformer
from wan_core.placement import PlacementConfig

from .case import Bench, Case
from .jobs import TINY_SIZE, weights_file
from .machine import seconds

ROUNDS = 6
SAME = 0.02
"""relative: by how much loss and gradient norm of bf16 programs may differ at equal work"""
MODES = {
    "no checkpointing": (False, "full"),
    "full checkpointing": (True, "full"),
    "full checkpointing, ours keeping attention": (True, "attn_output"),
}
Inputs = tuple[dict[str, Tensor], Tensor]


def cases(_: Bench) -> list[Case]:
    sizes = {"832x480x49": Size(832, 480, 49), "1024x1024x1": Size(1024, 1024, 1)}
    return [
        Case("peers", f"diffusers, four 14B blocks, {name}, {mode}", partial(_measure, size, mode), 40, needs_gpu=False)
        for name, size in sizes.items()
        for mode in MODES
    ]


def _measure(size: Size, mode: str, bench: Bench) -> Figures:
    if not bench.cuda and not bench.tiny:
        raise Needs("needs one CUDA GPU")
    name, size = ("tiny", TINY_SIZE) if bench.tiny else ("14B-4", size)
    checkpointing, policy = MODES[mode]
    ours, their_adapters, theirs = _both(bench, name)
    ours.checkpoint_blocks, ours.checkpoint_policy = checkpointing, POLICIES[policy]
    (theirs.enable_gradient_checkpointing if checkpointing else theirs.disable_gradient_checkpointing)()
    inputs = _inputs(size, SHAPES[name], bench.device)
    _, run, _ = peer_forward.diffusers()

    def by_theirs(case: dict[str, Tensor]) -> Tensor:
        with torch.autocast(bench.device.type, torch.bfloat16):
            return run(theirs, asdict(SHAPES[name]), case)

    programs = {
        "ours": (lambda case: ours(*case.values()), adapter_parameters(ours)),
        "theirs": (by_theirs, their_adapters),
    }
    times: dict[str, list[float]] = {who: [] for who in programs}
    figures: Figures = {}
    for number in range(2 + (1 if bench.tiny else ROUNDS)):
        for who in programs if number % 2 else reversed(programs):
            step = partial(_step, *programs[who], inputs)
            took = seconds(bench.device, step, times=1, warm=0)
            if number >= 2:
                times[who].append(took)
    for who, program in programs.items():
        figures |= {f"{who}_s": statistics.median(times[who]), f"{who}_step_bytes": _peak(bench, *program, inputs)}
        figures |= {f"{who}_{key}": value for key, value in _step(*program, inputs).items()}
    same = all(
        abs(figures[f"ours_{key}"] - figures[f"theirs_{key}"]) <= SAME * abs(figures[f"theirs_{key}"])
        for key in ("loss", "gradient_norm")
    )
    paired = [mine / other for mine, other in zip(times["ours"], times["theirs"], strict=True)]
    return figures | {"ours_to_it": statistics.median(paired), "paired": paired, "ok": same}


def _both(bench: Bench, name: str) -> tuple[WanTransformer, dict[str, nn.Parameter], Any]:
    """Returns our model, their adapters by original name, and their model: with equal weights, in bf16."""
    try:
        build, _, _ = peer_forward.diffusers()
    except ImportError as missing:
        raise Needs(f"needs the package {missing.name or 'diffusers'}") from missing
    path = weights_file(bench, name)
    plan = ModelPlan(
        base_file=f"diffusion_models:{path.name}",
        base_precision="bf16",
        placement=PlacementConfig(devices=str(bench.device)),
    )
    roots = Roots({"diffusion_models": (str(path.parent),)})
    ours = materialize(plan, roots, contender.LORA).train()
    weights = dict(materialize(plan, roots, None).named_parameters())
    with bench.device if bench.cuda else nullcontext():
        theirs: Any = build(asdict(SHAPES[name]))
    wide = tuple(theirs._keep_in_fp32_modules or ())
    with torch.no_grad():
        for own, parameter in theirs.named_parameters():
            dtype = torch.float32 if any(part in own.split(".") for part in wide) else torch.bfloat16
            parameter.data = weights.pop(peer_forward.original_name(own)).to(dtype)
    assert not weights, f"weights that diffusers has not: {sorted(weights)[:3]}"
    adapters = contender.with_peft(theirs, peer_forward.original_name)
    theirs.to(bench.device).train()
    for found in (adapters, adapter_parameters(ours)):
        contender.fill(found)
    return ours, adapters, theirs


def _inputs(size: Size, shape: WanShape, device: torch.device) -> Inputs:
    generator = torch.Generator().manual_seed(2)
    latent, target = (torch.randn(1, *size.latent(shape), generator=generator).to(device) for _ in range(2))
    text = torch.randn(1, 512, shape.text_dim, generator=generator).to(device, torch.bfloat16)
    return {"latent": latent.bfloat16(), "timestep": torch.tensor([700.0], device=device), "text": text}, target


def _step(predict: Any, adapters: dict[str, nn.Parameter], inputs: Inputs) -> dict[str, float]:
    """Forward and backward once; loss and gradient norm."""
    case, target = inputs
    for adapter in adapters.values():
        adapter.grad = None
    loss = nn.functional.mse_loss(predict(case).float(), target)
    loss.backward()
    norms = torch.stack([adapter.grad.float().norm() for adapter in adapters.values() if adapter.grad is not None])
    return {"loss": loss.item(), "gradient_norm": norms.norm().item()}


def _peak(bench: Bench, predict: Any, adapters: dict[str, nn.Parameter], inputs: Inputs) -> int | None:
    """Returns the most bytes a step takes above what lay there before; None without a card."""
    if not bench.cuda:
        return None
    for adapter in adapters.values():
        adapter.grad = None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _step(predict, adapters, inputs)
    return torch.cuda.max_memory_allocated() - before
