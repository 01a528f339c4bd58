"""A split model whose cards work at once: one host thread for each card issues its part of a schedule.

A single thread would block in the launch queue of one card, about a thousand kernels, while another card is idle. The
gradients are those of plain accumulation, bit for bit on a CPU, because every stage runs the micro-batches in order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from ..accelerator import is_gpu, random_state, set_random_state
from ..model import WanTransformer, scope
from ..model.walk import Walk
from ..placement.offload import BlockOffload
from ..placement.plan import Placement
from .handover import Bridge, Handover
from .schedule import Schedule, Work, pipelined


@dataclass(frozen=True)
class Stage:
    """Consecutive blocks of one card; the first stage also embeds, the last also runs the head and the loss."""

    number: int
    card: int
    device: torch.device
    stop: int
    """index after its last block"""


def stages_of(placement: Placement) -> tuple[Stage, ...]:
    """Returns the stages of a split model, in the order of a pass."""
    cards, found, stop = list(placement.devices), list[Stage](), 0
    for device, blocks in groupby(placement.block_devices):
        stop += len(list(blocks))
        found.append(Stage(len(found), cards.index(device), device, stop))
    return tuple(found)


def under_way(placement: Placement, micro_batches: int) -> tuple[float, ...]:
    """Returns the most micro-batches that each device keeps for their backward pass, in the order of
    `placement.devices`; () if the cards take turns."""
    stages = stages_of(placement)
    if len(placement.devices) < 2 or micro_batches < 2:
        return ()
    begins = [0, *(stage.stop for stage in stages)]
    weights = {
        stage.number: (stage.stop - begins[stage.number]) / placement.block_devices.count(stage.device)
        for stage in stages
    }
    schedule = pipelined(tuple(stage.card for stage in stages), micro_batches)
    return tuple(schedule.kept(card, weights) for card in range(len(schedule.cards)))


class MicroBatches(Protocol):
    """The micro-batches of a step. Each function is called from one thread, in the order of the micro-batches."""

    def begin(self, micro: int) -> Walk:
        """Returns the pass of a micro-batch before its first block, on the first card."""
        ...

    def end(self, micro: int, predicted: Tensor) -> Tensor | None:
        """Returns the loss () on the last card, for the backward pass; None in a pass without gradients.

        `predicted`: (B, C, F, H, W).
        """
        ...

    def check(self) -> None:
        """Raises an error to end the step; called before each work, from every thread."""
        ...

    def seed(self, micro: int) -> None:
        """Seeds torch's generators for a micro-batch; if blocks draw, called for all before the first begins."""
        ...


class Pipeline:
    """Runs steps of a model by a schedule. It holds no tensors between steps."""

    def __init__(self, model: WanTransformer, stages: Sequence[Stage]) -> None:
        self.model, self.stages = model, stages
        self.bridge = Bridge(dict.fromkeys(stage.device for stage in stages))
        self.issued: list[Work] = []
        """the work of the last step, in the order of its issue"""

    def run(self, schedule: Schedule, micro_batches: MicroBatches) -> None:
        """Adds the gradients of a step to `.grad`. Raises the first error of any thread, after all threads have ended.

        After an error, the caller must drop the gradients.
        """
        self.issued = []
        step = _Step(self, micro_batches)
        try:
            if self.model.checkpoint_keeps_rng:
                step.seed(schedule.micro_batches)
            step.run(schedule)
        finally:
            for stage in self.stages:
                self.bridge.free(stage.device, under_way=0)


class _Ended(Exception):  # noqa: N818  no error of its own
    """Another thread of the step has failed."""


class _Step:
    def __init__(self, pipeline: Pipeline, micro_batches: MicroBatches) -> None:
        self._model, self._stages, self._bridge = pipeline.model, pipeline.stages, pipeline.bridge
        self._micro_batches, self._issued = micro_batches, pipeline.issued
        self._with_grad = torch.is_grad_enabled()
        self._changed = threading.Condition()
        self._done = set[Work]()
        self._failed: BaseException | None = None
        self._walks: dict[int, Walk] = {}
        self._borders: dict[tuple[int, int], Handover] = {}
        """(micro-batch, stage before the border) -> its tensors"""
        self._losses: dict[int, Tensor] = {}
        self._slots: dict[tuple[int, int], int] = {}
        """(stage, micro-batch) -> number of the card's stack of kept tensors (`BlockOffload.keep_in`)"""
        self._random = _RandomStates(self._stages) if self._model.checkpoint_keeps_rng else None

    def seed(self, count: int) -> None:
        """Record the state of the generators for every micro-batch."""
        assert self._random is not None
        for micro in range(count):
            self._micro_batches.seed(micro)
            self._random.record(micro)

    def run(self, schedule: Schedule) -> None:
        first, *others = schedule.cards
        threads = [
            threading.Thread(target=self._run_line, args=(line,), name=f"wan-card-{card}", daemon=True)
            for card, line in enumerate(others, start=1)
        ]
        for thread in threads:
            thread.start()
        try:
            self._run_line(first)
            for thread in threads:
                thread.join()
        except BaseException as error:  # raised by a signal handler; errors of the threads are in `_failed`
            self._fail(error)
            for thread in threads:
                thread.join()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _run_line(self, line: Sequence[Work]) -> None:
        try:
            with torch.set_grad_enabled(self._with_grad):
                for work in line:
                    self._wait(work.needs(len(self._stages) - 1))
                    self._micro_batches.check()
                    self._issue(work)
        except _Ended:
            pass
        except BaseException as error:  # `run` raises it in the caller's thread
            self._fail(error)

    def _wait(self, needs: Work | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failed is not None or needs is None or needs in self._done)
            if self._failed is not None:
                raise _Ended

    def _fail(self, error: BaseException | None) -> None:
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()

    def _issue(self, work: Work) -> None:
        stage = self._stages[work.stage]
        with self._changed:
            self._issued.append(work)
        self._bridge.free(stage.device)
        if work.forward:
            self._take_slot(stage, work.micro)
        generator = nullcontext() if self._random is None else self._random.of(work, stage)
        with generator, scope("forward" if work.forward else "backward", str(work)):
            (self._forward if work.forward else self._backward)(stage, work.micro)
        if not work.forward:
            self._slots.pop((stage.number, work.micro), None)
        with self._changed:
            self._done.add(work)
            self._changed.notify_all()

    def _forward(self, stage: Stage, micro: int) -> None:
        if stage.number == 0:
            walk = self._micro_batches.begin(micro)
            walk.run_control()
        else:
            walk = self._walks.pop(micro)
            received = self._borders[micro, stage.number - 1].receive(stage.device)
            walk.moved(lambda tensor: received[id(tensor)])
            del received
        walk.go_on(stage.stop)
        if stage.number < len(self._stages) - 1:
            sent: list[Tensor] = []
            walk.moved(lambda tensor: sent.append(tensor) or tensor)
            self._borders[micro, stage.number] = Handover(sent, self._bridge)
            self._walks[micro] = walk
            return
        loss = self._micro_batches.end(micro, walk.end())
        if loss is not None:
            self._losses[micro] = loss

    def _backward(self, stage: Stage, micro: int) -> None:
        if stage.number == len(self._stages) - 1:
            self._losses.pop(micro).backward()
        else:
            self._borders.pop((micro, stage.number)).backward()
        if stage.number:
            self._borders[micro, stage.number - 1].returned()

    def _take_slot(self, stage: Stage, micro: int) -> None:
        """Give a pass its own stack of kept tensors in host memory, separate from other passes of the card."""
        offload = self._model.offload
        if not isinstance(offload, BlockOffload):
            return
        mine = [one.number for one in self._stages if one.card == stage.card]
        with self._changed:
            taken = {slot for (number, _), slot in self._slots.items() if number in mine}
            slot = next(one for one in range(len(taken) + 1) if one not in taken)
            self._slots[stage.number, micro] = slot
        offload.keep_in(stage.device, slot)


class _RandomStates:
    """Generator states of each micro-batch on each device, so that blocks draw the same numbers as in one thread."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._devices = dict.fromkeys(_generator_of(stage) for stage in stages)
        self._states: dict[tuple[int, torch.device], Tensor] = {}
        # The CPU has one generator for all threads.
        one = any(device.type == "cpu" for device in self._devices)
        self._lock: AbstractContextManager[Any] = threading.RLock() if one else nullcontext()

    def record(self, micro: int) -> None:
        """Record the current states as the initial ones of a micro-batch."""
        for device in self._devices:
            self._states[micro, device] = _state(device)

    @contextmanager
    def of(self, work: Work, stage: Stage) -> Iterator[None]:
        """Inside a forward pass, the generator of a stage continues where the micro-batch left it, for this thread
        only. In a backward pass, each block restores the state itself."""
        device = _generator_of(stage)
        with self._lock:
            if work.forward:
                _set_state(self._states[work.micro, device], device)
            yield
            if work.forward:
                self._states[work.micro, device] = _state(device)


def _generator_of(stage: Stage) -> torch.device:
    return stage.device if is_gpu(stage.device) else torch.device("cpu")


def _state(device: torch.device) -> Tensor:
    state = random_state(device)
    return torch.get_rng_state() if state is None else state


def _set_state(state: Tensor, device: torch.device) -> None:
    if is_gpu(device):
        set_random_state(device, state)
    else:
        torch.set_rng_state(state)
