"""What the card is, and how fast it multiplies, attends and copies: what every other figure is held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from measure import Figures, machine_facts
from torch.nn import functional

from wan_core.plan import card_named

from .case import Bench, Case

TOKENS, WIDTH, FFN, HEADS = 20_280, 5120, 13_824, 40
"""14B at 832x480, 49 frames"""


def dense_peak(name: str) -> float | None:
    """Returns the vendor's dense bf16 TFLOP/s of a card; None where it is not known here."""
    card = card_named(name)
    return None if card is None else card.bf16 / 1e12


def hardware() -> Figures:
    """Returns the facts of the machine and the peak of its card."""
    found = machine_facts()
    return found | {"dense_bf16_tflops": dense_peak(found["device"])}


def rates(_: Bench) -> list[Case]:
    return [
        Case("rates", "matrix product, bf16", _matmul),
        Case("rates", "attention, bf16", _attention),
        Case("rates", "copies, 512 MiB", _copies),
    ]


def seconds(device: torch.device, run: Callable[[], object], times: int = 10, warm: int = 3) -> float:
    """Returns the median seconds of `run`, by the device's own clock; on a CPU by ours."""
    found: list[float] = []
    for number in range(warm + times):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize(device)
            took = start.elapsed_time(end) / 1e3
        else:
            began = time.perf_counter()
            run()
            took = time.perf_counter() - began
        if number >= warm:
            found.append(took)
    return sorted(found)[len(found) // 2]


def _matmul(bench: Bench) -> Figures:
    """The widest linear of a 14B block, forward; and the gradient of its input."""
    values = torch.randn(TOKENS, WIDTH, device=bench.device, dtype=torch.bfloat16)
    weight = torch.randn(FFN, WIDTH, device=bench.device, dtype=torch.bfloat16)
    wide = values @ weight.t()
    work = 2.0 * TOKENS * WIDTH * FFN / 1e12
    forward = seconds(bench.device, lambda: functional.linear(values, weight))
    backward = seconds(bench.device, lambda: wide @ weight)
    return {"forward_tflops": work / forward, "input_gradient_tflops": work / backward}


def _attention(bench: Bench) -> Figures:
    """Self-attention of a 14B block by torch's own choice of kernel; five products of the backward pass counted."""
    shape = (1, HEADS, TOKENS, WIDTH // HEADS)
    query, key, value = (torch.randn(shape, device=bench.device, dtype=torch.bfloat16) for _ in range(3))
    for tensor in (query, key, value):
        tensor.requires_grad_()
    product = 2.0 * TOKENS * TOKENS * WIDTH / 1e12
    attend = partial(functional.scaled_dot_product_attention, query, key, value)
    forward = seconds(bench.device, attend, times=5)
    out = attend()
    gradient = torch.randn_like(out)
    backward = seconds(
        bench.device, lambda: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True), times=5
    )
    return {"forward_tflops": 2 * product / forward, "backward_tflops": 5 * product / backward}


def _copies(bench: Bench) -> Figures:
    size = 512 * 2**20
    there = torch.empty(size, dtype=torch.uint8, device=bench.device)
    figures: Figures = {}
    for kind, here in (("pinned", torch.empty(size, dtype=torch.uint8).pin_memory()), ("pageable", torch.ones(size))):
        host = here if kind == "pinned" else here.to(torch.uint8)
        to_card = seconds(bench.device, lambda h=host: there.copy_(h, non_blocking=True), times=5)
        to_host = seconds(bench.device, lambda h=host: h.copy_(there, non_blocking=True), times=5)
        figures |= {f"{kind}_to_card_gb_s": size / to_card / 1e9, f"{kind}_to_host_gb_s": size / to_host / 1e9}
    return figures
