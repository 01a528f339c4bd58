"""LoRA gradients on the card against those of a CPU in float32, for every scheme, preset and policy.

How far a scheme is off is its own affair (rounding); what is judged is that the card is off no further than a CPU that
computes the same plan, and that what checkpointing keeps changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import contender
import torch
from measure import Figures, Needs
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from wan_core.config import settings_of
from wan_core.files import Roots
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig, adapter_parameters
from wan_core.model import POLICIES, WanShape, WanTransformer
from wan_core.placement import MemoryMeasures, PlacementConfig
from wan_core.precision import PrecisionPolicy, QuantizeConfig

from .case import Bench, Case
from .jobs import can_compile

SHAPE = WanShape(dim=512, ffn_dim=2048, num_heads=4, num_layers=4)
GRID = (9, 48, 48)
"""latent frames, rows, columns: 5,184 tokens, which is more than one chunk of a layer's second stage"""
TINY = WanShape(dim=256, ffn_dim=512, num_heads=2, num_layers=2)
TINY_GRID = (2, 8, 8)
SCHEMES = settings_of(QuantizeConfig)["scheme"].choices
FILES = (
    "fp8 file",
    "scaled fp8 file",
    "int8 file",
    "int8 convrot file",
    "mxfp8 file",
    "nvfp4 file",
    "GGUF Q8_0",
    "GGUF Q4_0",
)
FARTHER = 2.0
"""times as far from float32 as a CPU's own result a card may be: it rounds in other places, and no worse"""
ROUNDING = 1e-4
"""relative, what float32 sums in another order come to"""
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Scheme:
    """How the base is stored and computed."""

    base_precision: str = "as in file"
    preset: str = "balanced"
    quantize: str = ""
    matmul: str = "compute"
    compiled: bool = False
    file: str = ""
    """one of FILES; empty: the float32 file"""


def cases(_: Bench) -> list[Case]:
    schemes = {
        "float32": Scheme("fp32"),
        "bf16": Scheme("bf16"),
        "bf16, reference precision": Scheme("bf16", "reference"),
        "bf16, fast precision": Scheme("bf16", "fast"),
        **{name: Scheme("bf16", quantize=name) for name in SCHEMES},
        "fp8_e4m3fn, products in fp8": Scheme("bf16", quantize="fp8_e4m3fn", matmul="fp8"),
        "int8, products in int8": Scheme("bf16", quantize="int8", matmul="int8"),
        **{name: Scheme(file=name) for name in FILES},
    }
    found = [Case("gradients", name, partial(_scheme, scheme), 15, needs_gpu=False) for name, scheme in schemes.items()]
    found.append(
        Case("gradients", "bf16, compiled", partial(_scheme, Scheme("bf16", compiled=True)), 90, needs_gpu=False)
    )
    plain, packed = Scheme("bf16"), Scheme("bf16", quantize="int8")
    for name, scheme in {"bf16": plain, "int8": packed}.items():
        found.append(Case("gradients", f"policies, {name}", partial(_policies, scheme), 15, needs_gpu=False))
        found.append(Case("gradients", f"host memory, {name}", partial(_measures, scheme), 15, needs_gpu=False))
    return found


def _scheme(scheme: Scheme, bench: Bench) -> Figures:
    """The card's gradients of one scheme, and a CPU's, each against the CPU's in float32."""
    _check_device(bench)
    wanted = _reference(bench)
    model = built(scheme, bench, bench.device)
    if scheme.compiled:
        can_compile(bench)
        model.compile_blocks()
    here = gradients(model, bench)
    # 8-bit products of a CPU take minutes at this size: there the same weights are multiplied in bf16.
    on_cpu = gradients(built(replace(scheme, matmul="compute"), bench, torch.device("cpu")), bench)
    off, cpu_off = difference(here, wanted), difference(on_cpu, wanted)
    return {
        "card_off": off,
        "cpu_off": cpu_off,
        "card_to_cpu": difference(here, on_cpu),
        "worst": worst(here, wanted),
        "ok": off <= FARTHER * cpu_off + ROUNDING,
    }


def _policies(scheme: Scheme, bench: Bench) -> Figures:
    """The card's gradients under every policy, against those of a pass that keeps everything."""
    _check_device(bench)
    model = built(scheme, bench, bench.device)
    model.checkpoint_blocks = False
    wanted = gradients(model, bench)
    again = difference(gradients(model, bench), wanted)
    figures: Figures = {"same_again": again}
    model.checkpoint_blocks = True
    for name, policy in POLICIES.items():
        model.checkpoint_policy = policy
        figures[name] = difference(gradients(model, bench), wanted)
    model.checkpoint_policy, model.unchecked_blocks = POLICIES["full"], 1
    figures["one block unchecked"] = difference(gradients(model, bench), wanted)
    return figures | {"ok": _no_farther(figures, again)}


def _measures(scheme: Scheme, bench: Bench) -> Figures:
    """The card's gradients with inputs and weights of blocks in host memory, against those with all in place."""
    _check_device(bench)
    plain = built(scheme, bench, bench.device)
    wanted = gradients(plain, bench)
    again = difference(gradients(plain, bench), wanted)
    figures: Figures = {"same_again": again}
    streamed = {"inputs offloaded": MemoryMeasures(offload_inputs=True)}
    streamed["2 blocks streamed"] = MemoryMeasures(blocks_to_swap=2)
    streamed["both"] = MemoryMeasures(offload_inputs=True, blocks_to_swap=2)
    for name, measures in streamed.items():
        figures[name] = difference(gradients(built(scheme, bench, bench.device, measures), bench), wanted)
    return figures | {"ok": _no_farther(figures, again)}


def _no_farther(figures: Figures, again: float) -> bool:
    """Whether nothing differs by more than twice the same does: flash kernels add in no fixed order."""
    return all(value <= 3 * again + 1e-6 for value in figures.values())


def _check_device(bench: Bench) -> None:
    if not bench.cuda and not bench.tiny:
        raise Needs("needs one CUDA GPU")


def _reference(bench: Bench) -> Gradients:
    """Returns a CPU's gradients in float32, computed once."""
    path = bench.work / f"gradients_{'tiny' if bench.tiny else 'real'}.safetensors"
    if not path.is_file():
        save_file(gradients(built(Scheme("fp32"), bench, torch.device("cpu")), bench), path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    return load_file(path)


def built(scheme: Scheme, bench: Bench, device: torch.device, measures: MemoryMeasures | None = None) -> WanTransformer:
    """Returns the model of a scheme with adapters that change something, as training builds it."""
    path = _file(bench, scheme.file)
    plan = ModelPlan(
        base_file=f"diffusion_models:{path.name}",
        base_precision=scheme.base_precision,
        precision=PrecisionPolicy(preset=scheme.preset, matmul=scheme.matmul),
        quantize=QuantizeConfig(scheme=scheme.quantize) if scheme.quantize else None,
        placement=PlacementConfig(devices=str(device)),
    )
    model = materialize(plan, Roots({"diffusion_models": (str(path.parent),)}), LoraConfig(rank=16), measures=measures)
    contender.fill(adapter_parameters(model))
    model.checkpoint_blocks = True
    return model.train()


def _file(bench: Bench, kind: str) -> Path:
    """Returns one and the same random model in the container asked for, written on the first call."""
    from tests.support import containers

    folder = bench.work / ("tiny" if bench.tiny else "real")
    folder.mkdir(parents=True, exist_ok=True)
    name = (kind or "float32").replace(" ", "_")
    path = folder / (f"{name}.gguf" if "GGUF" in kind else f"{name}.safetensors")
    if path.is_file():
        return path
    whole, beside = containers.weights(TINY if bench.tiny else SHAPE), path.with_name(f"part_{path.name}")
    try:
        if "GGUF" in kind:
            containers.write_gguf(beside, whole, kind.removeprefix("GGUF "))
        elif kind.startswith("int8"):
            containers.write_int8(beside, whole, group=256 if "convrot" in kind else 0)
        elif kind == "mxfp8 file":
            containers.write_mxfp8(beside, whole)
        elif kind == "nvfp4 file":
            containers.write_nvfp4(beside, whole)
        elif kind:
            (containers.write_scaled_fp8 if "scaled" in kind else containers.write_plain_fp8)(beside, whole)
        else:
            save_file(whole, beside)
    except ImportError as missing:
        raise Needs(f"needs the package {missing.name}, which writes such a file") from missing
    beside.replace(path)
    return path


def gradients(model: WanTransformer, bench: Bench) -> Gradients:
    """Returns the gradients of every adapter after one pass, float32 on the CPU."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(2)
    grid = TINY_GRID if bench.tiny else GRID
    latent, target = (torch.randn(1, 16, *grid, generator=generator).to(device) for _ in range(2))
    text = torch.randn(1, 512, model.shape.text_dim, generator=generator).to(device)
    adapters = adapter_parameters(model)
    for adapter in adapters.values():
        adapter.grad = None
    prediction = model(latent, torch.tensor([700.0], device=device), text)
    nn.functional.mse_loss(prediction.float(), target).backward()
    found = {name: adapter.grad for name, adapter in adapters.items()}
    assert all(gradient is not None for gradient in found.values()), "an adapter got no gradient"
    return {name: gradient.float().cpu() for name, gradient in found.items() if gradient is not None}


def difference(found: Gradients, wanted: Gradients) -> float:
    """Returns |found - wanted| / |wanted| over all adapters together."""
    squares = sum(float((found[name].double() - wanted[name].double()).square().sum()) for name in wanted)
    return (squares / sum(float(value.double().square().sum()) for value in wanted.values())) ** 0.5


def worst(found: Gradients, wanted: Gradients) -> str:
    """Returns the adapter that is farthest off, and how far, relative to itself."""
    each = {name: difference({name: found[name]}, {name: value}) for name, value in wanted.items() if value.any()}
    name = max(each, key=lambda one: each[one])
    return f"{name} {each[name]:.2e}"
