"""Ranges of activations and gradients against the limits of float16, and the error of float16 gradients.

    python benchmarks/half_range.py

One forward and one backward pass of the training loss in float32 on each model: the golden one, the trained demo
models, and random weights of real width (two layers of the 1.3B, one of the 14B). For each kind of value: the largest
(float16 overflows above 65504), and the part of its gradient that underflows in float16. Then LoRA gradients of the
same step in float16, with and without a scaled loss, and in bfloat16, against float32. Inputs are random; random
weights do not predict the ranges of a trained model of real size. With --only the other models in the result file stay.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from result_files import RESULTS, hardware, write_result
from safetensors.torch import load_file
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from measure import SHAPES
from random_run import TEXT_ROWS

from tests.support.golden import Golden
from wan_core.audit.any_dtype import fill_empty_adapters
from wan_core.checkpoint import detect_variant, locate_weights, read_checkpoint
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora, set_adapter_dtype
from wan_core.model import Conditioning, WanShape, WanTransformer
from wan_core.precision import PrecisionPolicy
from wan_core.train.recovery import LossScale

LARGEST = 65504.0
"""largest finite float16"""
DEMO = ROOT / "tests" / "assets" / "demo"
GRID = (3, 12, 12)
"""latent frames, rows and columns of the clip: 108 tokens"""
FULL_CLIP = 16 * 13 * 60 * 104
"""values of a latent of 832x480x49, over which the loss is the mean"""


@dataclass
class Range:
    """The range of one kind of value."""

    most: float = 0.0
    gradient: float = 0.0
    lost: list[float] = field(default_factory=list)
    """share of each gradient's norm that underflows in float16, without loss scaling"""
    kept: list[float] = field(default_factory=list)
    """the same with the initial loss scale of a run"""


class Watch:
    """Records values and their gradients by kind; `loss_part`: this clip's share of the loss of a full clip."""

    def __init__(self, loss_part: float) -> None:
        self.kinds: dict[str, Range] = {}
        self._part, self._scale = loss_part, LossScale("dynamic").factor

    def see(self, kind: str, value: Tensor) -> None:
        seen = self.kinds.setdefault(kind, Range())
        seen.most = max(seen.most, float(value.detach().abs().max()))
        if value.requires_grad:
            value.register_hook(lambda gradient: self._see_gradient(seen, gradient * self._part))

    def _see_gradient(self, seen: Range, gradient: Tensor) -> None:
        size = gradient.abs()
        seen.gradient = max(seen.gradient, float(size.max()) * self._scale)
        whole = float(gradient.norm()) or 1.0
        for scale, losses in ((1.0, seen.lost), (self._scale, seen.kept)):
            losses.append(float((gradient - (gradient * scale).half().float() / scale).norm()) / whole)


def watch(model: WanTransformer, seen: Watch) -> None:
    """Records in `seen` the outputs of every module of `model`, and values computed outside of modules."""
    for name, module in model.named_modules():
        kind = _kind(name, module)
        if kind:
            module.register_forward_hook(lambda _m, _i, out, kind=kind: seen.see(kind, out))
        if name.endswith((".q", ".ffn.0")) and "base_layer" not in name:
            into = "into self_attn, cross_attn" if name.endswith(".q") else "into ffn"
            module.register_forward_pre_hook(lambda _m, given, into=into: seen.see(into, given[0]))
        if hasattr(module, "kernel"):
            module.kernel = _watched_kernel(module.kernel, seen)
    whole: Any = model
    whole.text_embedding[1].register_forward_pre_hook(lambda _m, given: seen.see("text embedding, inside", given[0]))
    for method, kind in (("_embed_text", "text embedding"), ("_embed_video", "patch embedding")):
        setattr(whole, method, _watched(getattr(whole, method), kind, seen))


def _kind(name: str, module: nn.Module) -> str:
    if re.fullmatch(r"blocks\.\d+", name):
        return "token stream (float32)"
    if re.fullmatch(r"blocks\.\d+\.ffn\.1", name):
        return "ffn, behind GELU"
    found = re.fullmatch(
        r"blocks\.\d+\.((?:self_attn|cross_attn)\.(?:q|k|v|o|k_img|v_img|norm_q|norm_k)|ffn\.[02])", name
    )
    return found.group(1) if found else ""


def _watched(function: Any, kind: str, seen: Watch) -> Any:
    def run(*given: Any) -> Tensor:
        value = function(*given)
        seen.see(kind, value)
        return value

    return run


def _watched_kernel(kernel: Any, seen: Watch) -> Any:
    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.see("query, key rotated", query)
        seen.see("query, key rotated", key)
        attended = kernel(query, key, value)
        seen.see("attention", attended)
        return attended

    return run


def random_model(shape: WanShape, seed: int = 0) -> WanTransformer:
    """Random weights, each output near 1, as `random_run.write_random_weights` draws them."""
    with torch.device("meta"):
        model = WanTransformer(shape)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in list(model.named_parameters()):
        scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1
        values = torch.randn(parameter.shape, generator=generator) * scale + (1.0 if ".norm" in name else 0.0)
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], nn.Parameter(values, requires_grad=False))
    return model


def demo_model(file: Path) -> WanTransformer:
    """A trained model of tests/assets/demo, in float32."""
    header = read_checkpoint(file)
    with torch.device("meta"):
        model = WanTransformer(detect_variant(header).shape)
    stored, tensors = locate_weights(header).weights, load_file(file)
    for name, _ in list(model.named_parameters()):
        owner = model.get_submodule(name.rpartition(".")[0])
        value = tensors[stored[name].key].float()
        setattr(owner, name.rpartition(".")[2], nn.Parameter(value, requires_grad=False))
    return model


@dataclass(frozen=True)
class Step:
    """The inputs of one training step at a noise level."""

    latent: Tensor
    timestep: Tensor
    text: Tensor
    target: Tensor
    given: Conditioning
    """channels and image tokens"""

    @classmethod
    def of(cls, shape: WanShape, timestep: float, grid: tuple[int, int, int], seed: int = 1) -> Step:
        generator = torch.Generator().manual_seed(seed)

        def drawn(*size: int) -> Tensor:
            return torch.randn(size, generator=generator)

        clean, noise = drawn(1, shape.out_channels, *grid), drawn(1, shape.out_channels, *grid)
        sigma = timestep / 1000
        text = torch.zeros(1, TEXT_ROWS, shape.text_dim)
        text[:, :64] = drawn(1, 64, shape.text_dim)
        extra = shape.in_channels - shape.out_channels
        images = drawn(1, 257, shape.image_dim) if shape.image_dim else None
        given = Conditioning(channels=drawn(1, extra, *grid) if extra else None, image_tokens=images)
        noised = (1 - sigma) * clean + sigma * noise
        return cls(noised, torch.tensor([float(timestep)]), text, noise - clean, given)

    def loss(self, model: WanTransformer) -> Tensor:
        predicted = model(self.latent, self.timestep, self.text, self.given)
        return torch.nn.functional.mse_loss(predicted, self.target)


def gradients(model: WanTransformer, step: Step, *, part: float, scaling: str) -> Tensor:
    """Returns all LoRA gradients of a step whose loss is multiplied by `part`, divided by it again."""
    parameters = adapter_parameters(model)
    scale = LossScale(scaling)
    while True:
        for parameter in parameters.values():
            parameter.grad = None
        scale.scale(step.loss(model) * part).backward()
        scale.unscale(parameters.values())
        found = torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None])
        if bool(found.isfinite().all()) or not scale.halve():
            break
    for parameter in parameters.values():
        parameter.grad = None
    return found / part


def recast(model: WanTransformer, compute: torch.dtype) -> None:
    """Sets the dtypes of the balanced policy with `compute`. Weights stay rounded afterwards."""
    numerics = PrecisionPolicy().numerics(compute)
    for module in model.modules():
        if hasattr(module, "numerics"):
            module.numerics = numerics  # type: ignore[assignment]
    set_adapter_dtype(model, None)
    for name, module in model.blocks.named_modules():
        if type(module) is nn.Linear and "lora_" not in name:
            module.to(compute)


def measured(name: str, make: Any, timesteps: Iterable[float], grid: tuple[int, int, int]) -> dict[str, Any]:
    """Returns the ranges of one model over the timesteps, and the errors of its gradients."""
    part = SHAPES["tiny"].out_channels * grid[0] * grid[1] * grid[2] / FULL_CLIP
    steps = None
    exact: list[Tensor] = []
    seen = Watch(part)
    errors: dict[str, list[tuple[float, float, float]]] = {}
    for kind, compute, scaling in (
        ("float32", torch.float32, "off"),
        ("float16, scaled", torch.float16, "dynamic"),
        ("float16", torch.float16, "off"),
        ("bfloat16", torch.bfloat16, "off"),
    ):
        model = make()
        inject_lora(model, LoraConfig(rank=8), seed=0)
        fill_empty_adapters(model, 0)
        steps = steps or [Step.of(model.shape, timestep, grid) for timestep in timesteps]
        recast(model, compute)
        if not exact:
            exact = [gradients(model, step, part=part, scaling="off") for step in steps]
            watch(model, seen)
            for step in steps:
                step.loss(model).backward()
            continue
        for step, right in zip(steps, exact, strict=True):
            found = gradients(model, step, part=part, scaling=scaling)
            error = float((found - right).norm() / right.norm())
            cosine = float(torch.nn.functional.cosine_similarity(found.double(), right.double(), dim=0))
            errors.setdefault(kind, []).append((error, cosine, float((found == 0).float().mean())))
    ranges = {
        kind: {
            "most": one.most,
            "headroom": LARGEST / one.most if one.most else None,
            "gradient": one.gradient,
            "lost": max(one.lost, default=0.0),
            "kept": max(one.kept, default=0.0),
        }
        for kind, one in seen.kinds.items()
    }
    worst = {
        kind: {
            "error": max(e for e, _, _ in found),
            "cosine": min(c for _, c, _ in found),
            "zero": max(z for _, _, z in found),
        }
        for kind, found in errors.items()
    }
    return {"model": name, "ranges": ranges, "gradients": worst}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose name has this in it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    models: dict[str, tuple[Any, tuple[float, ...], tuple[int, int, int]]] = {
        "golden t2v": (lambda: Golden("t2v").model(), (100, 500, 900), GRID),
        **{
            file.stem: (lambda file=file: demo_model(file), (100, 500, 900), GRID)
            for file in sorted(DEMO.glob("wan_demo_*.safetensors"))
            if "vae" not in file.stem
        },
    }
    # float16 matmuls take minutes on a CPU, hence one timestep, and 16 tokens of the 14B.
    for name, layers, grid in (("1.3B", 2, GRID), ("14B", 1, (1, 8, 8))):
        shape = replace(SHAPES[name], num_layers=layers)
        models[f"random, {layers} x {name}"] = (lambda shape=shape: random_model(shape), (500,), grid)
    known = options.out / f"half_range_{hardware().replace(' ', '-')}_{time.strftime('%Y-%m')}.json"
    before = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else []
    measured_now: dict[str, dict[str, Any]] = {one["model"]: one for one in before if options.only}
    for name, (make, timesteps, grid) in models.items():
        if options.only in name:
            measured_now[name] = measured(name, make, timesteps, grid)
            print(f"{name} is measured", file=sys.stderr, flush=True)
    found = [measured_now[name] for name in models if name in measured_now]
    write_result("half_range", found, page(found), out=options.out)
    return 0


def page(found: list[dict[str, Any]]) -> str:
    """Returns the tables as Markdown."""
    kinds = list(dict.fromkeys(kind for one in found for kind in one["ranges"]))
    names = [one["model"] for one in found]
    lines = [
        "# float16: ranges and gradients",
        "",
        f"{hardware()}, torch {torch.__version__}; 108 tokens (of the 14B 16), gradients as of a loss over 832x480x49.",
        "",
        "Largest |value| in float32 (float16 ends at 65504)",
        "",
        "| value | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for kind in kinds:
        cells = [one["ranges"].get(kind) for one in found]
        lines.append(f"| {kind} | " + " | ".join("" if c is None else f"{c['most']:.3g}" for c in cells) + " |")
    lines += [
        "",
        "Largest |gradient| with the loss scaled by 2^16; part of a gradient lost in float16 unscaled -> scaled",
        "",
    ]
    lines += ["| gradient of | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for kind in kinds:
        cells = [one["ranges"].get(kind) for one in found]
        texts = [
            "" if c is None or not c["gradient"] else f"{c['gradient']:.2g}; {c['lost']:.1%} -> {c['kept']:.2%}"
            for c in cells
        ]
        if any(texts):
            lines.append(f"| {kind} | " + " | ".join(texts) + " |")
    lines += ["", "LoRA gradients against float32: relative error, cosine, share that is exactly 0", ""]
    lines += ["| computed in | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for kind in next(iter(found))["gradients"]:
        cells = [one["gradients"][kind] for one in found]
        lines.append(
            f"| {kind} | " + " | ".join(f"{c['error']:.2%}, {c['cosine']:.6f}, {c['zero']:.0%}" for c in cells) + " |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
