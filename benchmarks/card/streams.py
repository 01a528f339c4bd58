"""Two streams of one card, standing in for what several cards and the host would do at the same time.

One card computes no faster on two streams. What shows is whether anything waits that need not: the host that issues
kernels, and copies beside arithmetic.
"""

from __future__ import annotations

import threading
import time
from functools import partial

import torch
from measure import SHAPES, Figures
from torch import Tensor

from wan_core.files import Roots
from wan_core.kernels.rope import Span, rope_of
from wan_core.load import ModelPlan, materialize
from wan_core.model import WanTransformer
from wan_core.model.block import Constants

from .case import Bench, Case
from .jobs import weights_file
from .machine import seconds

_MOST = 20_000
_BLOCKED_S = 0.02
"""a launch that takes longer was waiting"""
GRIDS = {"image": (1, 32, 32), "clip": (13, 30, 52)}
"""frames, rows and columns of tokens: 1,024 and 20,280"""
MICRO_BATCHES = 4


def cases(_: Bench) -> list[Case]:
    found = [Case("streams", "launches before the host waits", _queue)]
    for name, grid in GRIDS.items():
        found.append(Case("streams", f"weights copied beside a block, {name}", partial(_copy_beside, grid)))
        found.append(Case("streams", f"two stages of a model, {name}", partial(_stages, grid), 30))
    return found


def _queue(bench: Bench) -> Figures:
    """How many kernels a stream accepts behind one that runs for seconds, before a launch waits."""
    value = torch.zeros(1, device=bench.device)
    value.add_(1)
    torch.cuda.synchronize()
    torch.cuda._sleep(6_000_000_000)
    launched, waited, began = 0, 0.0, time.perf_counter()
    while launched < _MOST:
        start = time.perf_counter()
        value.add_(1)
        waited = time.perf_counter() - start
        if waited > _BLOCKED_S:
            break
        launched += 1
    issued_s = time.perf_counter() - began - waited
    torch.cuda.synchronize()
    return {
        "launches": launched,
        "host_waited": waited > _BLOCKED_S,
        "issued_s": issued_s,
        "whole_s": time.perf_counter() - began,
    }


def _copy_beside(grid: tuple[int, int, int], bench: Bench) -> Figures:
    """A block's forward pass, and the copy of a block's weights from pinned memory, alone and at the same time."""
    model = _model(bench)
    tokens, constants = _given(model, grid, bench.device)
    here = [p.detach().cpu().pin_memory() for p in model.blocks[1].parameters()]
    there = [torch.empty_like(p) for p in model.blocks[1].parameters()]
    aside = torch.cuda.Stream()

    def compute() -> None:
        with torch.no_grad():
            model.blocks[0](tokens, *constants)

    def copy() -> None:
        for source, target in zip(here, there, strict=True):
            target.copy_(source, non_blocking=True)

    def both() -> None:
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            copy()
        compute()
        torch.cuda.current_stream().wait_stream(aside)

    alone, copied, together = (seconds(bench.device, run) for run in (compute, copy, both))
    return {
        "block_s": alone,
        "copy_s": copied,
        "together_s": together,
        "hidden": (alone + copied - together) / min(alone, copied),
        "issue_s": _issue(compute),
        "bytes": sum(p.nbytes for p in here),
    }


def _issue(compute: object) -> float:
    """Returns the host's seconds to issue a block that finds the device idle."""
    assert callable(compute)
    torch.cuda.synchronize()
    began = time.perf_counter()
    compute()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took


def _stages(grid: tuple[int, int, int], bench: Bench) -> Figures:
    """Four micro-batches through two halves of twelve blocks: one after another, on two streams, and by two threads."""
    model = _model(bench)
    given, constants = _given(model, grid, bench.device)
    half = len(model.blocks) // 2
    halves = (model.blocks[:half], model.blocks[half:])
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    @torch.no_grad()
    def run(stage: int, tokens: Tensor) -> Tensor:
        for block in halves[stage]:
            tokens = block(tokens, *constants)
        return tokens

    def first(done: list[tuple[Tensor, torch.cuda.Event]], ready: threading.Semaphore) -> None:
        with torch.cuda.stream(streams[0]):
            for _ in range(MICRO_BATCHES):
                out = run(0, given)
                event = torch.cuda.Event()
                event.record()
                done.append((out, event))
                ready.release()

    def second(done: list[tuple[Tensor, torch.cuda.Event]], ready: threading.Semaphore) -> None:
        with torch.cuda.stream(streams[1]):
            for number in range(MICRO_BATCHES):
                ready.acquire()
                tokens, event = done[number]
                streams[1].wait_event(event)
                tokens.record_stream(streams[1])
                run(1, tokens)

    def one_by_one() -> None:
        for _ in range(MICRO_BATCHES):
            run(1, run(0, given))

    def one_thread() -> None:
        done: list[tuple[Tensor, torch.cuda.Event]] = []
        ready = threading.Semaphore(0)
        first(done, ready)
        second(done, ready)

    def two_threads() -> None:
        done: list[tuple[Tensor, torch.cuda.Event]] = []
        ready = threading.Semaphore(0)
        workers = [threading.Thread(target=stage, args=(done, ready)) for stage in (first, second)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    ways = {"one_by_one": one_by_one, "one_thread": one_thread, "two_threads": two_threads}
    figures = {f"{name}_s": _whole(way) for name, way in ways.items()}
    return figures | {f"{name}_issue_s": _issue(way) for name, way in ways.items()}


def _whole(way: object) -> float:
    """Returns the median seconds from an idle device to an idle device: events see one stream only."""
    assert callable(way)
    found: list[float] = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        way()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return sorted(found)[len(found) // 2]


def _model(bench: Bench) -> WanTransformer:
    path = weights_file(bench, "14B-12")
    roots = Roots({"diffusion_models": (str(path.parent),)})
    return materialize(ModelPlan(base_file=f"diffusion_models:{path.name}"), roots, None)


def _given(model: WanTransformer, grid: tuple[int, int, int], device: torch.device) -> tuple[Tensor, Constants]:
    """Returns tokens (1, N, D), and what every block reads besides."""
    shape, numerics = SHAPES["14B-12"], model.numerics
    tokens = torch.randn(1, grid[0] * grid[1] * grid[2], shape.dim, device=device, dtype=numerics.residual)
    rows = torch.randn(1, 1, 6, shape.dim, device=device, dtype=numerics.modulation)
    text = torch.randn(1, 512, shape.dim, device=device, dtype=numerics.compute)
    table = rope_of((Span(grid),), shape.dim // shape.num_heads, dtype=numerics.rope, device=device)
    return tokens, Constants(rows, text, *table)
