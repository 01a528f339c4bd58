"""Two halves of one card (`green.py`) as the two cards of a split model that work at once, by `parallel.Pipeline`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from measure import SHAPES, Figures
from torch import Tensor

from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Numerics, WanTransformer
from wan_core.model.walk import StayHere, Walk
from wan_core.parallel.handover import Bridge
from wan_core.parallel.pipeline import Pipeline, stages_of
from wan_core.parallel.schedule import Schedule, Work, in_turn, pipelined
from wan_core.parallel.timeline import Span, StageCost, Timeline, replay
from wan_core.placement import Placement

from .case import Bench
from .green import halves

COUNTS = (2, 4, 8)
"""micro-batches of a step"""
_LAYERS, _FRAMES, _ROWS, _COLUMNS = 8, 3, 60, 104
_DRAWN = 0.02
"""standard deviation of weights"""


class _Clock:
    """Events of one stage on its stream; seconds of the host on a CPU."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def now(self) -> Any:
        if self.stream is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event


def _between(begin: Any, end: Any) -> float:
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3


class _OneCard(Bridge):
    """Between two stages of one card on a stream each. Two names of the card stand for the two cards."""

    def __init__(self, devices: Sequence[torch.device], arrived: Callable[[], None]) -> None:
        super().__init__(devices)
        self._devices, self._arrived = devices, arrived

    def fetch(self, tensors: Sequence[Tensor], device: torch.device, made: Any) -> list[Tensor]:
        if device not in self._streams:
            found = [tensor.clone() for tensor in tensors]
        else:
            home = next(one for one in self._devices if one != device)
            here, stream = torch.cuda.current_stream(), self._streams[home]
            found = [torch.empty_like(tensor) for tensor in tensors]
            with torch.cuda.stream(stream):
                stream.wait_event(made)
                stream.wait_stream(here)
                for source, target in zip(tensors, found, strict=True):
                    target.copy_(source, non_blocking=True)
                copied = stream.record_event()
            here.wait_event(copied)
            with self._lock:
                self._leaving[home].append((tensors, copied))
        self._arrived()
        return found


class _Measured:
    """The micro-batches of one step, which note when each work begins and ends on its stream."""

    def __init__(self, model: WanTransformer, inputs: Sequence[Tensor], streams: Sequence[Any]) -> None:
        self._model, self._inputs = model, inputs
        self._clocks = [_Clock(stream) for stream in streams]
        self._lines: list[Sequence[Work]] = []
        self._marks: dict[Work, list[Any]] = {}
        self._issued = dict[int, int]()

    def begin(self, micro: int) -> Walk:
        latent, text = self._inputs
        generator = torch.Generator(latent.device).manual_seed(micro)
        noised = latent + torch.randn(latent.shape, device=latent.device, generator=generator)
        timestep = torch.full((1,), 500.0, device=latent.device)
        return self._model.walk(noised, timestep, text, carrier=StayHere())

    def end(self, micro: int, predicted: Tensor) -> Tensor:
        return predicted.float().square().mean()

    def check(self) -> None:
        """Ends a work of this thread and begins the next, on the stream of its stage."""
        card = self._card()
        number = self._issued.get(card, 0)
        self._issued[card] = number + 1
        clock = self._clocks[card]
        if clock.stream is not None:
            torch.cuda.set_stream(clock.stream)
        now, line = clock.now(), self._lines[card]
        if number:
            self._marks[line[number - 1]].append(now)
        self._marks[line[number]] = [now]

    def arrived(self) -> None:
        """What this thread's work reads has arrived: it begins here."""
        card = self._card()
        self._marks[self._lines[card][self._issued[card] - 1]] = [self._clocks[card].now()]

    def seed(self, micro: int) -> None:
        pass

    def start(self, schedule: Schedule) -> None:
        self._lines, self._marks, self._issued = list(schedule.cards), {}, {}

    def timeline(self) -> Timeline:
        for line, clock in zip(self._lines, self._clocks, strict=True):
            self._marks[line[-1]].append(clock.now())
        _wait()
        first = self._marks[Work(True, 0, 0)][0]
        return Timeline(
            tuple(
                tuple(Span(work, *(_between(first, mark) for mark in self._marks[work])) for work in line)
                for line in self._lines
            )
        )

    def _card(self) -> int:
        name = threading.current_thread().name
        return int(name.rpartition("-")[2]) if name.startswith("wan-card-") else 0


def half_cards(bench: Bench) -> Figures:
    """Returns, with and without recompute, steps of some micro-batches: measured, and replayed by the event model."""
    streams, kind = halves(bench)
    model, inputs = _model(bench)
    figures: Figures = {"halves": kind, "layers": len(model.blocks), "tokens": _tokens(inputs[0])}
    for recomputes in (False, True):
        model.checkpoint_blocks = recomputes
        figures["checkpointed" if recomputes else "unchecked"] = _steps(model, inputs, streams, kind, bench)
    figures["ok"] = all(figures[way]["gradients_far"] <= 1e-2 for way in ("unchecked", "checkpointed"))
    return figures


def _steps(
    model: WanTransformer, inputs: Sequence[Tensor], streams: Sequence[Any], split: str, bench: Bench
) -> Figures:
    devices = (
        (torch.device("cuda", 0), torch.device("cuda")) if bench.cuda else (torch.device("cpu"), torch.device("cpu", 0))
    )
    half = len(model.blocks) // 2
    stages = stages_of(Placement((devices[0],) * half + (devices[1],) * half))
    step = _Measured(model, inputs, streams)
    pipeline = Pipeline(model, stages)
    pipeline.bridge = _OneCard(devices, step.arrived)

    def run(schedule: Schedule) -> tuple[Timeline, float]:
        step.start(schedule)
        _wait()
        with torch.cuda.stream(torch.cuda.current_stream()) if bench.cuda else nullcontext():
            began = time.perf_counter()
            pipeline.run(schedule, step)
            issued = time.perf_counter() - began
        return step.timeline(), issued

    for warm in (in_turn((0, 1), 2), pipelined((0, 1), 2)):
        run(warm)
    alone, _ = run(in_turn((0, 1), 4))
    link, rows = _copy_rate(bench), list[Figures]()
    # Without halves both threads issue to one card.
    event_model = partial(replay, bytes_per_s=link, homes=(0, 0) if split.startswith("two streams") else None)
    costs = _costs(alone, inputs[0].numel() // 16 // 4 * model.shape.dim * model.numerics.residual.itemsize)
    for count in COUNTS[: 2 if bench.tiny else None]:
        serial, _ = run(in_turn((0, 1), count))
        schedule = pipelined((0, 1), count)
        measured, issued = run(schedule)
        predicted = event_model(schedule, costs)
        busy = event_model(schedule, _costs(measured, costs[0].sent_bytes))
        rows.append(
            {
                "micro_batches": count,
                "in_turn_s": serial.seconds,
                "in_turn_predicted_s": event_model(in_turn((0, 1), count), costs).seconds,
                "measured_s": measured.seconds,
                "predicted_s": predicted.seconds,
                "predicted_of_busy_s": busy.seconds,
                "issued_s": issued,
            }
        )
    seconds = [[cost.forward_s, cost.backward_s] for cost in costs]
    return {"stages_s": seconds, "rows": rows, "link_bytes_per_s": link} | _gradients(model, step, pipeline, bench)


def _costs(measured: Timeline, sent: int) -> tuple[StageCost, StageCost]:
    """Returns the median seconds of each stage's passes in a step."""
    found = list[StageCost]()
    for line in measured.cards:
        took = [
            median(span.end - span.begin for span in line if span.work.forward is forward) for forward in (True, False)
        ]
        found.append(StageCost(took[0], took[1], sent_bytes=sent))
    return found[0], found[1]


def _gradients(model: WanTransformer, step: _Measured, pipeline: Pipeline, bench: Bench) -> Figures:
    """Returns how far the gradients of four micro-batches are from those of the model in one piece, and how far two
    of the latter are from each other (relative norms)."""
    parameters = list(adapter_parameters(model).values())

    def taken() -> list[Tensor]:
        _wait()
        found = [p.grad for p in parameters if p.grad is not None]
        for parameter in parameters:
            parameter.grad = None
        assert len(found) == len(parameters)
        return found

    def unsplit() -> list[Tensor]:
        for micro in range(4):
            walk = step.begin(micro)
            walk.go_on()
            step.end(micro, walk.end()).backward()
        return taken()

    taken()
    one, again = unsplit(), unsplit()
    schedule = pipelined((0, 1), 4)
    step.start(schedule)
    with torch.cuda.stream(torch.cuda.current_stream()) if bench.cuda else nullcontext():
        pipeline.run(schedule, step)
    split = taken()
    return {"gradients_far": _far(split, one), "unsplit_again_far": _far(again, one)}


def _far(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, expected, strict=True))
    return (apart / sum(float(b.double().square().sum()) for b in expected)) ** 0.5


def _model(bench: Bench) -> tuple[WanTransformer, tuple[Tensor, Tensor]]:
    """Returns a model of random weights, with a LoRA, and a clip's latent and text."""
    shape = replace(SHAPES["tiny" if bench.tiny else "14B-12"], num_layers=2 if bench.tiny else _LAYERS)
    compute = torch.float32 if bench.tiny else torch.bfloat16
    with torch.device("meta"):
        model = WanTransformer(shape, Numerics(compute=compute))
    model = model.to(compute).to_empty(device=bench.device)
    generator = torch.Generator(bench.device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, _DRAWN, generator=generator)
    model.requires_grad_(False)
    inject_lora(model, LoraConfig(rank=16), seed=0)
    with torch.no_grad():
        for parameter in adapter_parameters(model).values():  # B is 0 otherwise, and A has no gradient
            parameter.normal_(0.0, _DRAWN, generator=generator)
    frames, rows, columns = (2, 8, 8) if bench.tiny else (_FRAMES, _ROWS, _COLUMNS)
    latent = torch.randn(1, 16, frames, rows, columns, device=bench.device, generator=generator)
    text = torch.randn(1, 512, 4096, device=bench.device, generator=generator)
    return model, (latent, text)


def _tokens(latent: Tensor) -> int:
    return latent.numel() // latent.shape[1] // 4


def _copy_rate(bench: Bench) -> float:
    """Returns the bytes/s of a copy within the card; a number of no meaning on a CPU."""
    if not bench.cuda:
        return 25e9
    source = torch.empty(2**28, dtype=torch.uint8, device=bench.device)
    target, events = torch.empty_like(source), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    target.copy_(source)
    events[0].record()
    target.copy_(source)
    events[1].record()
    _wait()
    return 2**28 / (events[0].elapsed_time(events[1]) / 1e3)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
