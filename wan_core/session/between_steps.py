"""Does what a session has to do between two steps: it saves, evaluates, renders and judges what it has, in this order.

A save comes before anything that could fail. While steps are not finite nothing is known of the weights, so all of it
waits for the next one that is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ..control import Control
from ..errors import Stopped
from ..events import Emit, Stage, Suggested
from ..files import Roots
from ..job.best_step import steps_worth_keeping, suggestion_of
from ..job.config import RunConfig
from ..job.length import TimeLimit
from ..train import Group, SavedStep
from .experts import Experts
from .profiling import PROFILED_STEPS, StepProfiler
from .saving import Saver
from .showing import Showing


class BetweenSteps:
    """Keeps account of what is due. Of several ranks only the leading one saves, evaluates and renders."""

    def __init__(
        self,
        directory: Path,
        config: RunConfig,
        roots: Roots,
        experts: Experts,
        saver: Saver,
        *,
        nothing_to_learn: str,
        emit: Emit,
        control: Control,
        group: Group,
        timed: Callable[[str, int], contextlib.AbstractContextManager[None]],
        limit: TimeLimit,
        profile_steps: int = 0,
    ) -> None:
        """`nothing_to_learn`: why no step is suggested whatever is measured; "" where clips show something.
        `timed(stage, step)` counts what is inside. The step at which `limit` is over is the last one.

        `profile_steps`: so many are profiled, from the second of this session on.
        """
        self.profiler = StepProfiler(directory, emit)
        self._profile_steps, self._limit = profile_steps, limit
        self.showing: Showing | None = None
        self._directory, self._config, self._roots = directory, config, roots
        self._experts, self._saver, self._nothing_to_learn = experts, saver, nothing_to_learn
        self._emit, self._control, self._group, self._timed = emit, control, group, timed
        self._owes_save = self._owes_preview = False
        """due since a step that was not finite"""
        self._asked_preview = False
        self._owes_suggestion = False
        """evaluated since the last one"""

    def before_turn(self) -> None:
        """Evaluate a model that is to be measured when it comes to work, and preview the base of the run."""
        step = self._experts.step
        if self._group.leads:
            with self._stops_at_the_border():
                self._evaluate(if_due=True)
                if step == 0:
                    self._preview(0)
        self._emit(Stage(stage="train", done=step, total=self._config.train.steps))

    def shows(self, step: int) -> bool:
        """Returns whether `after` is going to render clips, for which models may change places."""
        if self.showing is None or self._experts.trainer.bad_in_a_row:
            return False
        self._asked_preview |= self._control.take("sample")
        return self._asked_preview or self._owes_preview or self._is_last(step) or self._is_preview_step(step)

    def _is_last(self, step: int) -> bool:
        return step == self._config.train.steps or self._limit.is_over

    def _is_preview_step(self, step: int) -> bool:
        every = self._config.train.preview_every_n_steps
        return bool(every) and step % every == 0

    def after(self, step: int) -> None:
        """Do what is due after `step`, or was asked for."""
        train = self._config.train
        if not self._group.leads:
            return
        self.profiler.after(step)
        self._owes_save |= step % train.save_every_n_steps == 0
        self._owes_preview |= self._is_preview_step(step)
        if self._experts.trainer.bad_in_a_row:
            return
        wants_save, wants_preview = self._control.take("save"), self._control.take("sample") or self._asked_preview
        self._asked_preview = False
        last = self._is_last(step)
        due = last or self._owes_save or self._experts.turn_is_over
        with self._stops_at_the_border():
            if due or wants_save:
                self.save()
            if due:
                self._owes_save = False
            if due or (train.eval_every_n_steps and step % train.eval_every_n_steps == 0):
                self._evaluate()
            if wants_preview or last or self._owes_preview:
                self._owes_preview = False
                self._preview(step)
            self._suggest(step)
            if due or wants_save:
                self._prune()
        self._limit.ended = last and self._saver.saved_step == step
        if due or wants_preview:
            self._emit(Stage(stage="train", done=step, total=train.steps))
        wanted = PROFILED_STEPS if self._control.take("profile") else self._profile_steps
        self._profile_steps = 0
        self.profiler.after(step, steps=min(wanted, train.steps - step))

    def judge(self, saved: SavedStep) -> None:
        """Evaluate each model and render previews of a saved step that is loaded, as if it had just been saved."""
        self._emit(self._saver.look(saved, self._experts))
        for expert in self._experts.all:
            self._experts.take_turn(expert)
            self._evaluate()
        self._preview(saved.step)

    def save(self) -> None:
        """Commit the last good step; Stopped when the disk is full and a stop is asked for meanwhile."""
        step = self._experts.good_step
        if not self._group.leads or step == 0 or step == self._saver.saved_step:
            return
        with self._timed("save", step):
            saved = self._saver.commit(step, self._experts)
            said = self._saver.look(saved, self._experts)
        self._emit(said)
        if self._experts.at_work is not None:
            self._experts.at_work.keep_measured(self._roots)

    def _preview(self, step: int) -> None:
        if self.showing is not None:
            with self._timed("sample", step):
                self.showing.render(step)

    def _evaluate(self, *, if_due: bool = False) -> None:
        """Measure the model at work; with `if_due` only where it learnt something, or came, since it last was."""
        if not self._experts.is_to_be_measured(if_due=if_due):
            return
        with self._timed("evaluate", self._experts.step):
            evaluated = self._experts.evaluate()
        if evaluated is not None:
            self._emit(evaluated)
            self._owes_suggestion = evaluated.step > 0

    def _suggest(self, step: int) -> None:
        """Says which saved step the figures suggest, after evaluation and previews have given them."""
        if self._owes_suggestion:
            self._owes_suggestion = False
            found = suggestion_of(self._directory, nothing_to_learn=self._nothing_to_learn)
            self._emit(Suggested(step=step, best=found.step, why=found.why, overfits_from=found.overfits_from))

    def _prune(self) -> None:
        """Removes saved steps that nobody asked to keep, after the newest one was judged."""
        if last := self._config.train.keep_last_saves:
            self._saver.store.prune(last, steps_worth_keeping(self._directory))

    def _stops_at_the_border(self) -> contextlib.AbstractContextManager[object]:
        """Around what a leader of several ranks does while the others wait.

        Told to stop, it gives up what it does, and all stop together before the next step, where the reason is shared.
        """
        return contextlib.nullcontext() if self._group.world == 1 else contextlib.suppress(Stopped)
