"""The loop of a run: train, then save, evaluate, sample, suggest, prune, in this order.

A save comes before anything that could fail. While steps are not finite nothing is known of the weights, so all of it
waits for the next one that is.
"""

from __future__ import annotations

import contextlib

from ..errors import Stopped
from ..events import Stage, Suggested
from ..job.length import TimeLimit
from ..job.outcome import steps_worth_keeping, suggestion_of
from ..train import NotFinite, SavedStep, expert_setting
from .experts import Experts
from .profiling import PROFILED_STEPS, StepProfiler
from .saving import Saver
from .session import Session
from .showing import Showing


class Training:
    """Trains the models of a run in turns, and does what is due between two steps."""

    def __init__(
        self,
        session: Session,
        experts: Experts,
        saver: Saver,
        limit: TimeLimit,
        *,
        showing: Showing | None = None,
        nothing_to_learn: str = "",
        profile_steps: int = 0,
    ) -> None:
        """`nothing_to_learn`: why no step is suggested whatever is measured; "" where clips show something.
        The step at which `limit` is over is the last one.

        `profile_steps`: so many are profiled, from the second of this session on.
        """
        self.session, self.experts, self.saver, self._limit = session, experts, saver, limit
        self._showing, self._nothing_to_learn = showing, nothing_to_learn
        self.profiler, self._profile_steps = StepProfiler(session.directory, session.emit), profile_steps
        self._due: set[str] = set()
        """of save, evaluate, sample, suggest, profile and end, what is to be done after the last step"""

    def run(self, goal: int) -> None:
        """Train up to step `goal` of the run. Every rank calls it. Raises what `Trainer.run` does."""
        experts, session = self.experts, self.session
        total = session.config.train.steps
        while experts.step < goal and (turn := experts.next_turn()) is not None:
            expert, until = turn
            last = min(until, expert.step + goal - experts.step)
            experts.bring(expert)
            with self._stops_between_steps():
                self._evaluate(if_due=True)
                if experts.step == 0:
                    self._sample()
            session.emit(Stage(stage="train", done=experts.step, total=total))
            # A trainer inside `run` would hold the model, which may have to make room for another one's previews.
            while self._trained(last):
                with self._stops_between_steps():
                    if "save" in self._due:
                        self.save()
                    if "evaluate" in self._due:
                        self._evaluate()
                    if "sample" in self._due:
                        self._sample()
                    if "suggest" in self._due:
                        self._suggest()
                    if "save" in self._due:
                        self._prune()
                self._limit.ended = "end" in self._due and self.saver.saved_step == experts.step
                if self._due & {"save", "evaluate", "sample"}:
                    session.emit(Stage(stage="train", done=experts.step, total=total))
                self.profiler.after(experts.step, steps=min(self._profile_steps, total - experts.step))
                self._due, self._profile_steps = set(), 0
                experts.bring(expert)

    def _trained(self, last: int) -> bool:
        """Train the model at work up to its own step `last`; returns whether it stopped because something is due."""
        expert = self.experts.active
        try:
            return expert.trainer.run(last, lambda _step: self._is_due())
        except NotFinite as error:
            if not self.experts.both:
                raise
            raise NotFinite(f"{expert_setting(expert.name)} noise expert, counted in its own steps: {error}") from error

    def _is_due(self) -> bool:
        """Note what is due after a step; returns whether anything is, and the weights are known to be good."""
        train, step, take = self.session.config.train, self.experts.step, self.session.control.take
        if not self.session.leads:
            return False
        self.profiler.after(step)
        if step % train.save_every_n_steps == 0:
            self._due |= {"save", "evaluate"}
        if train.preview_every_n_steps and step % train.preview_every_n_steps == 0:
            self._due.add("sample")
        if self.experts.active.trainer.bad_in_a_row:
            return False  # what is due stays so
        if step == train.steps or self._limit.is_over:
            self._due |= {"save", "evaluate", "sample", "end"}
        if self.experts.active.step >= self.experts.active.total:
            self._due |= {"save", "evaluate"}
        if train.eval_every_n_steps and step % train.eval_every_n_steps == 0:
            self._due.add("evaluate")
        self._due |= {command for command in ("save", "sample") if take(command)}
        if take("profile"):
            self._profile_steps = PROFILED_STEPS
        if self._profile_steps:
            self._due.add("profile")
        return bool(self._due)

    def judge(self, saved: SavedStep) -> None:
        """Evaluate each model and render previews of a saved step that is loaded, as if it had just been saved."""
        self.session.emit(self.saver.look(saved, self.experts))
        for expert in self.experts.all:
            self.experts.bring(expert)
            self._evaluate()
        self._sample()

    def save(self) -> None:
        """Commit the last good step; Stopped when the disk is full and a stop is requested meanwhile."""
        step = self.experts.good_step
        if not self.session.leads or step == 0 or step == self.saver.saved_step:
            return
        with self.session.timed("save", step):
            saved = self.saver.commit(step, self.experts)
            found = self.saver.look(saved, self.experts)
        self.session.emit(found)
        if self.experts.at_work is not None:
            self.experts.at_work.keep_measured()

    def _evaluate(self, *, if_due: bool = False) -> None:
        """Evaluate the model at work; with `if_due` only where it was trained, or came, since it last was."""
        if not self.session.leads or not self.experts.needs_evaluation(if_due=if_due):
            return
        with self.session.timed("evaluate", self.experts.step):
            evaluated = self.experts.evaluate()
        if evaluated is not None:
            self.session.emit(evaluated)
            if evaluated.step:
                self._due.add("suggest")

    def _sample(self) -> None:
        if self._showing is not None:
            with self.session.timed("sample", self.experts.step):
                self._showing.render(self.experts.step)

    def _suggest(self) -> None:
        """Emit which saved step the figures suggest."""
        found = suggestion_of(self.session.directory, nothing_to_learn=self._nothing_to_learn)
        event = Suggested(step=self.experts.step, best=found.step, why=found.why, overfits_from=found.overfits_from)
        self.session.emit(event)

    def _prune(self) -> None:
        """Remove old saved steps, after the newest one was judged."""
        if last := self.session.config.train.keep_last_saves:
            self.saver.store.prune(last, steps_worth_keeping(self.session.directory))

    def _stops_between_steps(self) -> contextlib.AbstractContextManager[object]:
        """Inside, a stop ends only the work at hand where there are several ranks: all of them stop together before the
        next step, where the reason is shared."""
        return contextlib.nullcontext() if self.session.group.world == 1 else contextlib.suppress(Stopped)
