"""Seconds of a training step with token routes against without, in pairs: python benchmarks/token_routes.py

A mid-size Wan with random weights on the CPU, forward and backward with gradient checkpointing; a pair is a step with
all tokens and one with the routes, so that drift of the machine's speed affects both. Also printed: the ratio of FLOP
by formula (`wan_core/train/flops.py`), for this model and for the real shapes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


from measure import SHAPES

from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import Passage, Route, WanShape, WanTransformer, draw_passages, placed_routes, read_routes
from wan_core.precision import PrecisionPolicy
from wan_core.train import FlopCount

MID = WanShape(dim=384, ffn_dim=1536, num_heads=3, num_layers=8)
SIZE = (1, 16, 6, 24, 32)
"""shape of the latents: 1,152 tokens"""
REAL = {"1.3B": (1, 16, 13, 60, 104), "14B": (1, 16, 13, 60, 104), "14B at 81 frames": (1, 16, 21, 60, 104)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routes", nargs="+", default=["0.25: 2..-2", "0.5: 2..-2", "0.5: 0..-1"])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = WanTransformer(MID, PrecisionPolicy().numerics(torch.float32))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    adapted(model)
    model.checkpoint_blocks = True
    for text in options.routes:
        routes = placed_routes(read_routes(text), MID.num_layers)
        ratios, seconds = paired(model, routes, options.pairs)
        print(
            f"{text}: x{statistics.median(ratios):.3f} of the time ({min(ratios):.3f} to {max(ratios):.3f} in "
            f"{len(ratios)} pairs; {seconds:.2f} s with all tokens), x{by_formula(model, SIZE, routes):.3f} by formula"
        )
    for name, size in REAL.items():
        with torch.device("meta"):
            real = WanTransformer(replace(SHAPES[name.split()[0]]), PrecisionPolicy().numerics(torch.bfloat16))
        adapted(real)
        found = {
            text: by_formula(real, size, placed_routes(read_routes(text), len(real.blocks))) for text in options.routes
        }
        print(name, {text: round(ratio, 3) for text, ratio in found.items()}, "by formula")
    return 0


def adapted(model: WanTransformer) -> None:
    model.requires_grad_(False)
    inject_lora(model, LoraConfig(rank=16), seed=0)


def by_formula(model: WanTransformer, size: tuple[int, ...], routes: tuple[Route, ...]) -> float:
    """Returns the ratio of FLOP of a step with routes to one with all tokens, with checkpointing."""
    count = FlopCount(model)
    some, whole = (count.of(torch.Size(size), time_rows=1, image_rows=0, routes=used) for used in (routes, ()))
    return (some.useful + some.recomputed) / (whole.useful + whole.recomputed)


def paired(model: WanTransformer, routes: tuple[Route, ...], pairs: int) -> tuple[list[float], float]:
    """Returns the ratio of each pair, and the median seconds of a step with all tokens; the first pair is warm-up."""
    found: list[tuple[float, float]] = []
    for number in range(pairs + 1):
        generators = [torch.Generator().manual_seed(number) for _ in routes]
        passages = draw_passages(routes, SIZE[2], SIZE[3] * SIZE[4] // 4, generators)
        found.append((step(model, ()), step(model, passages)))
    return [some / whole for whole, some in found[1:]], statistics.median(whole for whole, _ in found[1:])


def step(model: WanTransformer, passages: tuple[Passage, ...]) -> float:
    latent, text = torch.randn(SIZE), torch.randn(1, 512, MID.text_dim)
    began = time.perf_counter()
    model(latent, torch.full((1,), 500.0), text, None, passages).square().mean().backward()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
