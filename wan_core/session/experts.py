"""The trained models of a run, one of them on the devices: a single model, or the two experts of a pair in turns.

The other expert's trained state stays in host memory; its base weights are offloaded there if they fit, else
reloaded. Experts change only between steps, so each trains as in a run of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ..events import Evaluated, Event, Note, StageEnded, StepDone, StepSkipped
from ..job.checks import check_quantized_alike
from ..job.open import OpenRun
from ..job.remarks import turns_remark
from ..model import CHUNK_TOKENS
from ..placement import share_memory
from ..train import SavedStep, expert_setting, next_turn, saved_bytes
from .devices import Devices, Placed
from .expert import Expert, prefix_of, saved_of
from .loading import read_weights
from .session import Session


class Experts:
    """The trained models of a run."""

    def __init__(
        self, session: Session, runs: Sequence[OpenRun], saved: SavedStep | None, partner: OpenRun | None = None
    ) -> None:
        """`partner`: the untrained expert that previews use.

        Raises what `OpenRun.check` does, CheckpointError if quantization gives other base weights than `saved` has, and
        OutOfMemory if a model does not fit.
        """
        self.session, self.devices = session, Devices(session.group.world)
        self._noted, self._emitting = set[str](), threading.RLock()
        self.all = [
            Expert(replace(session, emit=partial(self._emit, number)), run, saved_of(saved, run))
            for number, run in enumerate(runs)
        ]
        for expert in self.all:
            expert.run.check(with_start=not expert.step)
            if saved is not None:
                prefix = prefix_of(expert)
                check_quantized_alike(saved.step, saved.progress.get(f"{prefix}quantized_by"), expert.quantized_by)
        if self.all[0].run.apart:
            session.note(turns_remark(runs[0].config.lora))
        shared = share_memory(session.group.rank, session.group.gather) if session.group.world > 1 else None
        for expert in self.all:
            expert.plan_memory(partner, shared)
        planned = self.all[0].planned
        self.without_partner = planned.no_partner
        """why previews cannot use `partner`; "" if they can"""
        self.partner: Placed | None = None
        """the expert that only renders; it uses the memory measures of the trained expert"""
        if partner is not None and not planned.no_partner:
            read = partial(read_weights, session, partner, measures=planned.measures)
            self.partner = Placed(partner, read, planned.host)
        self._reported = [expert.step for expert in self.all]
        """the step of each model in its last event"""
        self._unmeasured = {expert.name for expert in self.all if not expert.step}
        """models trained since their last evaluation"""

    @property
    def both(self) -> bool:
        return len(self.all) > 1

    @property
    def step(self) -> int:
        """Optimizer steps of the run."""
        return sum(expert.step for expert in self.all)

    @property
    def good_step(self) -> int:
        return sum(expert.good_step for expert in self.all)

    @property
    def on_device(self) -> Expert | None:
        """The trained model on the devices; None before loading, and while the partner renders."""
        here = self.devices.on_device
        return here if isinstance(here, Expert) else None

    @property
    def current(self) -> Expert:
        """`on_device`, which must not be None."""
        assert self.on_device is not None
        return self.on_device

    def next_turn(self) -> tuple[Expert, int] | None:
        """Returns the model that trains next and its own step that ends the turn; None at the end of the run."""
        turn = next_turn([expert.step for expert in self.all], self.session.config.train)
        return None if turn is None else (self.all[turn[0]], turn[1])

    def at_once(self, goal: int) -> list[int]:
        """Returns the step up to which each expert trains at the same time as the other, in a run up to step `goal`;
        [] if the experts take turns.

        Experts with dropout take turns, because threads share torch's random generators. The last step of each expert
        is trained in turn, because steps that are not finite may have to be repeated before it.
        """
        if not self.both or not self.all[0].run.apart or any(one.run.config.lora.draws for one in self.all):
            return []
        count = min((goal - self.step) // len(self.all), *(one.total - one.step - 1 for one in self.all))
        return [one.step + count for one in self.all] if count > 0 else []

    def load(self, expert: Expert) -> None:
        """Load `expert` to the devices, and rehearse its largest step if it was read from its files."""
        if self.on_device is not expert:
            with self.session.timed("load", self.step):
                self.devices.load(expert)
        if not expert.rehearsed and expert.trainer.on_gpu:
            began = time.monotonic()
            expert.trainer.rehearse()
            expert.rehearsed = True
            expert.trainer.meters.read()
            self.session.emit(StageEnded(stage="load", seconds=time.monotonic() - began, step=self.step))

    def needs_evaluation(self, *, if_due: bool) -> bool:
        """Returns whether the current model can be evaluated; with `if_due`, and was trained since the last time."""
        expert = self.on_device
        return expert is not None and expert.trainer.evaluates and not (if_due and expert.name not in self._unmeasured)

    def evaluate(self) -> Evaluated | None:
        """Returns the evaluation loss of the current model; None if memory ran out."""
        expert = self.current
        self._unmeasured.discard(expert.name)
        found = expert.trainer.evaluate()
        return None if found is None else cast("Evaluated", self._as_of_run(expert, found))

    @property
    def bytes_of_a_save(self) -> int:
        """Bytes of a saved step on disk."""
        trainer = self.current.trainer
        return len(self.all) * saved_bytes(sum(p.numel() for p in trainer.parameters.values()), trainer.config)

    def progress(self) -> dict[str, Any]:
        """Returns the counters of a saved step, each only if it is needed to resume.

        They are steps, ranks, batches of a step (if the run began on another number of ranks), `QuantizedBy` (of a base
        quantized at load) and tokens of a chunk (other than CHUNK_TOKENS).
        """
        steps = {"expert_steps": [expert.good_step for expert in self.all]} if self.both else {}
        marks, chunks = dict[str, Any](), dict[str, Any]()
        for expert in self.all:
            if expert.quantized_by is not None:
                marks[f"{prefix_of(expert)}quantized_by"] = expert.quantized_by.to_dict()
            if expert.step and expert.chunk_tokens != CHUNK_TOKENS:
                chunks[f"{prefix_of(expert)}chunk_tokens"] = expert.chunk_tokens
        at_once, config = self.session.group.batches, self.session.config
        ranks = {"ranks": at_once} if at_once > 1 else {}
        if config.begun_as:
            ranks["batches"] = at_once * config.train.gradient_accumulation_steps
        return {"step": self.good_step} | ranks | steps | marks | chunks

    def _emit(self, number: int, event: Event) -> None:
        """Emit an event of one model as an event of the run."""
        expert = self.all[number]
        with self._emitting:
            if isinstance(event, StepDone):
                self._unmeasured.add(expert.name)
            if isinstance(event, StepDone | StepSkipped):
                self._reported[number] = event.step
            if isinstance(event, Note):  # Both experts emit the same notes, and a reloaded model emits its notes again.
                if event.text in self._noted:
                    return
                self._noted.add(event.text)
            self.session.emit(self._as_of_run(expert, event))

    def _as_of_run(self, expert: Expert, event: Event) -> Event:
        """Returns an event of one expert, counted in steps of the run."""
        if not self.both or not isinstance(event, StepDone | StepSkipped | Evaluated):
            return event
        # While both train, the other expert may have counted a step that it has not reported yet.
        known = zip(self.all, self._reported, strict=True)
        others = sum(min(other.step, reported) for other, reported in known if other is not expert)
        more: dict[str, Any] = {}
        if isinstance(event, StepDone):
            more = {"steps": self.session.config.train.steps}
        if isinstance(event, Evaluated):
            more = {"expert": expert_setting(expert.name), "expert_step": event.step}
        return replace(event, step=event.step + others, **more)
