"""The models of a run, of which one is at work: a single one, or the two experts of a pair in turns.

The other one rests. What it has learnt lies in host memory; its base weights do too where they fit, else they are read
again. Models change places between steps alone, so what each learns is what it would learn in a run of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

from ..control import Control
from ..events import Emit, Evaluated, Event, Note, StageEnded, StepDone, StepSkipped
from ..footprint import weights_once_loaded
from ..job.checks import check_quantized_alike, check_ranks_alike
from ..job.config import RunConfig
from ..job.open import OpenRun
from ..placement import share_memory
from ..train import (
    Group,
    NotFinite,
    SavedStep,
    TargetFunction,
    Trainer,
    next_turn,
    saved_bytes,
)
from ..words import logger
from .device_place import host_holds
from .expert import Expert, Learnt, prefix_of, saved_of
from .guest import Guest
from .loading import load_model, load_partner, plan_training

_log = logger(__name__)


class Experts:
    """The models of a run, as one thing to train."""

    def __init__(
        self,
        runs: Sequence[OpenRun],
        config: RunConfig,
        saved: SavedStep | None,
        *,
        emit: Emit,
        control: Control,
        group: Group,
        target: TargetFunction,
        timed: Callable[[str, int], AbstractContextManager[None]],
        partner: OpenRun | None = None,
    ) -> None:
        """`timed(stage, step)` is entered while a model is loaded. `partner`: what previews go through besides.

        Raises what `OpenRun.check` refuses, CheckpointError for 8-bit weights that are not those a step was trained on,
        and OutOfMemory where one of them does not fit.
        """
        self.config, self._emit_out, self._control = config, emit, control
        self._group, self._target, self._timed = group, target, timed
        self._noted: set[str] = set()
        self._changes_places = len(runs) > 1 or partner is not None
        self.all = [Expert(run, saved_of(saved, run)) for run in runs]
        for expert in self.all:
            expert.run.check(with_start=not expert.step)
            if saved is not None:
                check_ranks_alike(saved.step, saved.progress.get("ranks"), group.world)
                prefix = prefix_of(expert)
                check_quantized_alike(saved.step, saved.progress.get(f"{prefix}quantized_by"), expert.quantized_by)
        self._shared = share_memory(group.rank, group.gather) if group.world > 1 else None
        for expert in self.all:
            expert.planned = plan_training(expert.run, self._emit_of(expert), group, partner, self._shared)
        self._unmeasured = {expert.name for expert in self.all if not expert.step}
        """those that learnt something since they were last evaluated"""

    @property
    def both(self) -> bool:
        return len(self.all) > 1

    @property
    def processes(self) -> int:
        """How many share the memory of the computer."""
        return self._group.world

    @property
    def step(self) -> int:
        """The optimizer steps of the run."""
        return sum(expert.step for expert in self.all)

    @property
    def good_step(self) -> int:
        return sum(expert.good_step for expert in self.all)

    @property
    def at_work(self) -> Expert | None:
        return next((expert for expert in self.all if expert.at_work), None)

    @property
    def trainer(self) -> Trainer:
        """The trainer of the model at work."""
        assert self.at_work is not None
        return self.at_work.trainer

    @property
    def turn_is_over(self) -> bool:
        """Whether the model at work has made all of its own steps."""
        return self.at_work is not None and self.at_work.step >= self.at_work.total

    def begin(self) -> None:
        """Bring the model to work whose turn it is; the first one where nothing is left to train."""
        turn = next_turn([expert.step for expert in self.all], self.config.train)
        self.take_turn(self.all[turn[0] if turn is not None else 0])

    def train(
        self,
        goal: int,
        before_turn: Callable[[], None],
        between_steps: Callable[[int], None],
        shows: Callable[[int], bool],
    ) -> None:
        """Train up to step `goal` of the run. All are called on every rank: at the begin of a turn, and after a step.

        `shows`: whether `between_steps` is going to render. Raises what `Trainer.run` does.
        """

        def leaves(_: int) -> bool:
            # A trainer at work would hold the model that has to make room, and go on with it where it is read again.
            if self._changes_places and shows(self.step):
                return True
            between_steps(self.step)
            return False

        while self.step < goal:
            turn = next_turn([expert.step for expert in self.all], self.config.train)
            if turn is None:
                return
            expert, until = self.all[turn[0]], turn[1]
            self.take_turn(expert)
            before_turn()
            last = min(until, expert.step + goal - self.step)
            try:
                while self.trainer.run(last, leaves):
                    between_steps(self.step)
                    self.take_turn(expert)
            except NotFinite as error:
                if not self.both:
                    raise
                raise NotFinite(f"{expert.name} noise expert, counted in its own steps: {error}") from error

    def take_turn(self, expert: Expert) -> None:
        """Bring `expert` to work, loaded and rehearsed; whoever worked rests."""
        if not expert.at_work:
            with self._timed("load", self.step):
                self.bring(expert)
        if not expert.rehearsed and expert.trainer.on_gpu:
            self._rehearse(expert)

    def _rehearse(self, expert: Expert) -> None:
        """Takes a step of the largest clips that changes nothing: its peak is a step's, its time a part of loading."""
        began = time.monotonic()
        expert.trainer.rehearse()
        expert.rehearsed = True
        expert.trainer.meters.read()
        self._emit_out(StageEnded(stage="load", seconds=time.monotonic() - began, step=self.step))

    def bring(self, expert: Expert) -> None:
        """Bring `expert` to work; whoever worked rests."""
        if expert.at_work:
            return
        planned = expert.planned
        assert planned is not None
        self.make_room(expert.run, rests=expert.loaded is not None)
        expert.begin(
            lambda with_start: load_model(
                expert.run,
                planned,
                with_start=with_start,
                emit=self._emit_of(expert),
                control=self._control,
                group=self._group,
                target=self._target,
                shared=self._shared,
            )
        )

    def make_room(self, coming: OpenRun, *, rests: bool) -> None:
        """Let whoever works rest, so that the model of `coming` has its place; `rests`: that one is in host memory."""
        if (leaving := self.at_work) is None:
            return
        stays = host_holds(leaving.model, self.needed_by(coming, rests=rests), self._group.world)
        where = "rests in host memory" if stays else "will be read again"
        names = self.step, leaving.name, where, coming.config.train.expert
        _log.info("step %s: the %s noise expert %s, the %s one works", *names)
        leaving.rest(stays=stays)

    @property
    def without_partner(self) -> str:
        """Why previews cannot go through the partner that was given; empty where they can."""
        planned = self.all[0].planned
        return planned.no_partner if planned is not None else ""

    def guest(self, partner: OpenRun) -> Guest:
        """Returns `partner` as it renders beside the one expert that is trained, in the memory planned for that one."""
        planned = self.all[0].planned
        assert planned is not None
        emit, control, group = self._emit_out, self._control, self._group
        return Guest(partner, lambda: load_partner(partner, planned, emit=emit, control=control, group=group))

    def needed_by(self, coming: OpenRun, *, rests: bool) -> int:
        """Returns the bytes of host memory that the model of `coming` takes when it comes to the devices."""
        if rests:
            return 0
        planned = next((one.planned for one in self.all if one.run is coming), self.all[0].planned)
        on_gpu = any(name != "cpu" for name in coming.config.model.placement.device_names())
        return planned.host if on_gpu and planned is not None else weights_once_loaded(coming.config.model, coming.file)

    # ---- measuring

    def is_to_be_measured(self, *, if_due: bool) -> bool:
        """Returns whether the model at work can be evaluated; with `if_due`, and learnt or came since it last was."""
        expert = self.at_work
        return expert is not None and expert.trainer.evaluates and not (if_due and expert.name not in self._unmeasured)

    def evaluate(self) -> Evaluated | None:
        """Returns the loss of the model at work in its own range; None where memory does not do for it."""
        assert self.at_work is not None
        self._unmeasured.discard(self.at_work.name)
        found = self.at_work.trainer.evaluate()
        return None if found is None else cast("Evaluated", self._as_of_run(self.at_work, found))

    # ---- saving

    def learnt(self) -> list[tuple[Expert, Learnt]]:
        """Returns those that have learnt something, and what."""
        found = ((expert, expert.learnt()) for expert in self.all)
        return [(expert, learnt) for expert, learnt in found if learnt is not None]

    @property
    def bytes_of_a_save(self) -> int:
        """What a saved step takes on disk: weights, two moments and the LoRA file, of each model."""
        assert self.at_work is not None
        trainer = self.at_work.trainer
        return len(self.all) * saved_bytes(sum(p.numel() for p in trainer.parameters.values()), trainer.config)

    def progress(self) -> dict[str, Any]:
        """Returns the counters of what was learnt, and the marks of bases that are made here."""
        steps = {"expert_steps": [expert.good_step for expert in self.all]} if self.both else {}
        marks = {
            f"{prefix_of(expert)}quantized_by": expert.quantized_by.to_dict()
            for expert in self.all
            if expert.quantized_by is not None
        }
        ranks = {"ranks": self._group.world} if self._group.world > 1 else {}
        return {"step": self.good_step} | ranks | steps | marks

    # ---- events

    def _emit_of(self, expert: Expert) -> Emit:
        def emit(event: Event) -> None:
            if isinstance(event, StepDone):
                self._unmeasured.add(expert.name)
            if isinstance(event, Note):  # what both say, and a model that is read again, is said once
                if event.text in self._noted:
                    return
                self._noted.add(event.text)
            self._emit_out(self._as_of_run(expert, event))

        return emit

    def _as_of_run(self, expert: Expert, event: Event) -> Event:
        """Returns an event of one expert in steps of the run."""
        if not self.both or not isinstance(event, StepDone | StepSkipped | Evaluated):
            return event
        others = sum(other.step for other in self.all if other is not expert)
        if isinstance(event, StepDone):
            return replace(event, step=event.step + others, steps=self.config.train.steps)
        if isinstance(event, Evaluated):
            return replace(event, step=event.step + others, expert=expert.name, expert_step=event.step)
        return replace(event, step=event.step + others)
