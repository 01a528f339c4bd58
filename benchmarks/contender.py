"""One program's Wan class with LoRA adapters, in a process of its own, doing one training step per line on stdin.

    python benchmarks/contender.py wan_core|diffusers|diffsynth|comfyui [COMFYUI TREE]

Every program gets the same seeded weights, adapters and inputs under its own names, float32, one thread. A line on
stdin is JSON: {"checkpointing": bool, "policy": str, "trace": bool}; the response is one line of JSON. `policy`: the
activations saved in addition to a block's input (wan_core.model.POLICIES); other programs have only "full", which
saves none. Started by against_peers.py.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "tiny")]

import peer_forward  # builds and calls other programs' classes, as in the parity tests

from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import POLICIES, WanShape, WanTransformer

SHAPE = WanShape(dim=512, ffn_dim=2048, num_heads=4, num_layers=8)
GRID = (9, 32, 32)
"""Latent frames, rows and columns: 2,304 tokens."""
LORA = LoraConfig(rank=16)


class Contender(NamedTuple):
    """A program's model with its adapters and checkpointing."""

    model: nn.Module
    adapters: dict[str, nn.Parameter]
    """by original name: blocks.0.self_attn.q.lora_A.weight"""
    predict: Callable[[dict[str, Tensor]], Tensor]
    checkpoint: Callable[[bool], None]
    """switches full activation checkpointing, block by block"""
    packages: tuple[str, ...]
    keep: Callable[[str], None] | None = None
    """sets the checkpointing policy, where the program has several"""


def wan_core() -> Contender:
    model = WanTransformer(SHAPE)
    model.load_state_dict(seeded_weights())
    inject_lora(model, LORA, seed=0)

    def switch(on: bool) -> None:
        model.checkpoint_blocks = on

    def keep(policy: str) -> None:
        model.checkpoint_policy = POLICIES[policy]

    adapters = adapter_parameters(model)
    return Contender(model, adapters, lambda case: model(*case.values()), switch, ("torch", "peft"), keep)


def diffusers() -> Contender:
    build, run, _ = peer_forward.diffusers()
    model: Any = loaded(build(asdict(SHAPE)), peer_forward.original_name)

    def switch(on: bool) -> None:
        (model.enable_gradient_checkpointing if on else model.disable_gradient_checkpointing)()

    packages = ("torch", "peft", "diffusers")
    adapters = with_peft(model, peer_forward.original_name)
    return Contender(model, adapters, lambda case: run(model, asdict(SHAPE), case), switch, packages)


def diffsynth() -> Contender:
    from diffsynth.models.wan_video_dit import WanModel
    from diffsynth.pipelines.wan_video import model_fn_wan_video

    model = WanModel(
        dim=SHAPE.dim, in_dim=SHAPE.in_channels, ffn_dim=SHAPE.ffn_dim, out_dim=SHAPE.out_channels,
        text_dim=SHAPE.text_dim, freq_dim=SHAPE.freq_dim, eps=SHAPE.eps, patch_size=(1, 2, 2),
        num_heads=SHAPE.num_heads, num_layers=SHAPE.num_layers, has_image_input=False,
    )  # fmt: skip
    loaded(model, str)
    checkpointed = False

    def switch(on: bool) -> None:
        nonlocal checkpointed
        checkpointed = on

    def predict(case: dict[str, Tensor]) -> Tensor:
        latent, timestep, text = case.values()
        return model_fn_wan_video(
            model, latents=latent, timestep=timestep, context=text, use_gradient_checkpointing=checkpointed
        )

    return Contender(model, with_peft(model, str), predict, switch, ("torch", "peft", "diffsynth"))


def comfyui(tree: str) -> Contender:
    """Returns ComfyUI's inference class, made trainable. Without checkpointing of its own, its blocks are wrapped."""
    build, run, _ = peer_forward.comfyui(tree)
    model: Any = loaded(build(asdict(SHAPE)), str)
    adapters = with_peft(model, str)
    plain = [block.forward for block in model.blocks]

    def switch(on: bool) -> None:
        for block, forward in zip(model.blocks, plain, strict=True):
            block.forward = checkpointing(forward) if on else forward

    return Contender(model, adapters, lambda case: run(model, asdict(SHAPE), case), switch, ("torch", "peft"))


def checkpointing(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def loaded(model: nn.Module, rename: Callable[[str], str]) -> nn.Module:
    """Returns `model` with the seeded weights; `rename`: name of a weight -> original name."""
    weights = seeded_weights()
    model.load_state_dict({name: weights[rename(name)] for name in model.state_dict()}, strict=True)
    return model


def with_peft(model: nn.Module, rename: Callable[[str], str]) -> dict[str, nn.Parameter]:
    """Adds PEFT's adapters to the linears that ours adapts. Returns them by original name."""
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    ours = {original(name, rename): name for name in linears}
    targets = [ours[name] for name in LORA.targeted(list(ours))]
    model.requires_grad_(False)
    inject_adapter_in_model(PeftConfig(r=LORA.rank, lora_alpha=LORA.rank, target_modules=targets), model)
    found: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            linear, half = name.removesuffix(".default.weight").rsplit(".", 1)
            found[f"{original(linear, rename)}.{half}.weight"] = parameter
    return found


def original(module: str, rename: Callable[[str], str]) -> str:
    return rename(f"{module}.weight").removesuffix(".weight")


def seeded_weights() -> dict[str, Tensor]:
    """Returns the base weights by original name, equal in every process."""
    with torch.device("meta"):
        sizes = {name: p.shape for name, p in WanTransformer(SHAPE).named_parameters()}
    generator = torch.Generator().manual_seed(0)
    return {name: scaled(name, torch.randn(size, generator=generator)) for name, size in sizes.items()}


def scaled(name: str, values: Tensor) -> Tensor:
    """Returns weights scaled so that activations stay near one."""
    if values.ndim > 1 and "modulation" not in name:
        return values * values[0].numel() ** -0.5
    return values * 0.1 + (1.0 if ".norm" in name and name.endswith("weight") else 0.0)


def fill(adapters: dict[str, nn.Parameter]) -> None:
    """Fills adapters with seeded weights, B too: with B = 0 half of the gradients are zero."""
    generator = torch.Generator().manual_seed(1)
    for name in sorted(adapters):
        adapter = adapters[name]
        values = torch.randn(adapter.shape, generator=generator) * adapter.shape[1] ** -0.5 * 0.5
        adapter.data = values.to(adapter.device)


def inputs() -> tuple[dict[str, Tensor], Tensor]:
    """latent, timestep and text; and the target."""
    generator = torch.Generator().manual_seed(2)
    latent = torch.randn(1, SHAPE.in_channels, *GRID, generator=generator)
    text = torch.randn(1, 512, SHAPE.text_dim, generator=generator)
    target = torch.randn(1, SHAPE.out_channels, *GRID, generator=generator)
    return {"latent": latent, "timestep": torch.tensor([700.0]), "text": text}, target


class Memory:
    """Resident memory of this process, and its peak since `reset`. Linux only: elsewhere None."""

    def reset(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def settle(self) -> None:
        """Returns freed memory of loading to the system."""
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)

    def __getitem__(self, field: str) -> int | None:
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return None
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(field)), None)


def step(contender: Contender, case: dict[str, Tensor], target: Tensor) -> dict[str, float]:
    """Forward and backward once: CPU seconds, loss, gradient norm."""
    for adapter in contender.adapters.values():
        adapter.grad = None
    began = time.process_time()
    loss = nn.functional.mse_loss(contender.predict(case).float(), target)
    middle = time.process_time()
    loss.backward()
    ended = time.process_time()
    squares = [adapter.grad.double().square().sum().item() for adapter in contender.adapters.values()]  # type: ignore[union-attr]
    return {
        "forward_s": middle - began,
        "backward_s": ended - middle,
        "cpu_s": ended - began,
        "loss": loss.item(),
        "gradient_norm": math.sqrt(sum(squares)),
    }


def traced_peak(action: Callable[[], Any]) -> int:
    """Returns the peak bytes of tensors that `action` allocated, buffers inside kernels included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        action()
    handle, name = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        profile.export_chrome_trace(name)
        events = json.loads(Path(name).read_text())["traceEvents"]
    finally:
        os.unlink(name)
    return max(int(e["args"]["Total Allocated"]) for e in events if e.get("name") == "[memory]")


def main(program: str, *tree: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # stdout is for JSON: prints of imports go to stderr
    torch.set_num_threads(1)
    builders: dict[str, Callable[..., Contender]] = {
        "wan_core": wan_core, "diffusers": diffusers, "diffsynth": diffsynth, "comfyui": comfyui
    }  # fmt: skip
    try:
        contender = builders[program](*tree)
    except ImportError as error:
        print(json.dumps({"missing": f"{type(error).__name__}: {error}"}), file=answers)
        return
    fill(contender.adapters)
    contender.model.train()
    case, target = inputs()
    memory = Memory()
    memory.settle()
    loaded_bytes = memory["VmRSS"]
    versions = {name: version(name) for name in contender.packages} | {"python": platform.python_version()}
    print(json.dumps({"versions": versions, "adapters": len(contender.adapters)}), file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        contender.checkpoint(order["checkpointing"])
        if contender.keep is not None:
            contender.keep(order["policy"])
        if order.get("trace"):
            print(json.dumps({"tensor_bytes": traced_peak(lambda: step(contender, case, target))}), file=answers)
            continue
        memory.settle()
        memory.reset()
        answer: dict[str, Any] = dict(step(contender, case, target))
        peak = memory["VmHWM"]
        answer["step_bytes"] = None if peak is None or loaded_bytes is None else peak - loaded_bytes
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
