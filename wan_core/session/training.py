"""The loop of a run: train, then save, evaluate, sample, suggest, prune, in this order.

The save comes before anything that could fail. While steps are not finite, all of it waits for the next finite step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from ..errors import Stopped
from ..events import Stage, Suggested
from ..job.length import TimeLimit
from ..job.outcome import steps_worth_keeping, suggestion_of
from .at_once import naming_expert, train_at_once
from .expert import Expert
from .experts import Experts
from .previews import Previews
from .profiling import StepProfiler
from .saving import Saver
from .session import Session


class Training:
    """Trains the models of a run, in turns or at the same time; saves, evaluates and samples between steps."""

    def __init__(
        self,
        session: Session,
        experts: Experts,
        saver: Saver,
        limit: TimeLimit,
        *,
        previews: Previews | None = None,
        nothing_to_learn: str = "",
        profile_steps: int = 0,
    ) -> None:
        """`nothing_to_learn`: why no step can be suggested, for example blank clips; "" otherwise.

        `profile_steps`: number of steps to profile; 0: as in the settings.
        """
        self.session, self.experts, self.saver, self._limit = session, experts, saver, limit
        self._previews, self._nothing_to_learn = previews, nothing_to_learn
        train = session.config.train
        self.profiler = StepProfiler(
            session.directory,
            session.emit,
            steps=profile_steps or train.profile_steps,
            skipped=train.profile_skip_steps,
        )
        self._counted = experts.step
        """step at the last call of `_note_due`"""
        self._saved_at = time.monotonic()
        self._due: set[str] = set()
        """work due after the last step: save, evaluate, sample, suggest, profile, end"""

    def run(self, goal: int) -> None:
        """Train up to step `goal` of the run. Every rank calls it. Raises what `Trainer.run` does."""
        experts, session = self.experts, self.session
        total = session.config.train.steps
        while experts.step < goal and (turn := experts.next_turn()) is not None:
            if until := experts.at_once(goal):
                self._train_at_once(until)
                continue
            expert, last = turn
            last = min(last, expert.step + goal - experts.step)
            experts.load(expert)
            with self._stops_between_steps():
                self._evaluate(if_due=True)
                if experts.step == 0:
                    self._sample()
            session.emit(Stage(stage="train", done=experts.step, total=total))
            if session.leads:
                self.profiler.begin(experts.step)
            # `Trainer.run` returns first: its frames hold the model, which previews may have to offload.
            while self._trained(last):
                self._do_what_is_due([expert])
            expert.trainer.wait_for_leader()

    def _train_at_once(self, until: list[int]) -> None:
        """Train each model up to its own step of `until`, all at the same time."""
        experts, session = self.experts, self.session
        for expert in experts.all:
            experts.load(expert)
            self._evaluate(if_due=True)
        if experts.step == 0:
            self._sample()
        session.emit(Stage(stage="train", done=experts.step, total=session.config.train.steps))
        self.profiler.begin(experts.step)
        while experts.all[0].step < until[0] and train_at_once(experts.all, until, self._is_due):
            self._do_what_is_due(experts.all)

    def _do_what_is_due(self, trained: Sequence[Expert]) -> None:
        """Do the work in `_due`, then load the `trained` models again."""
        experts, session, total = self.experts, self.session, self.session.config.train.steps
        with self._stops_between_steps():
            if "save" in self._due:
                self.save()
            if "evaluate" in self._due:
                for expert in trained:
                    experts.load(expert)
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
        if session.leads and experts.step < total:
            self.profiler.begin(experts.step)
        self._due = set()
        for expert in trained:
            experts.load(expert)

    def _trained(self, last: int) -> bool:
        """Train the current model up to its own step `last`; returns whether work that is due ended it earlier."""
        expert = self.experts.current
        with naming_expert(expert) if self.experts.both else contextlib.nullcontext():
            return expert.trainer.run(last, lambda _step: self._is_due())

    def _is_due(self) -> bool:
        """Find the work due after a step; returns whether this rank has any, and the last step was finite."""
        group = self.session.group
        is_due = group.leads and self._note_due()
        if group.parts > 1:  # ranks that train one clip together also evaluate together
            evaluates = group.share(is_due and "evaluate" in self._due)
            if not group.leads:
                self._due = {"evaluate"} if evaluates else set()
                return evaluates
        return is_due

    def _note_due(self) -> bool:
        """Find the work of the leader after a step; returns whether there is any, and the last step was finite."""
        train, step, take = self.session.config.train, self.experts.step, self.session.control.take
        self.profiler.after(step)
        before, self._counted = self._counted, step

        # Where experts train at the same time, the run is two steps further at each call.
        def reached(every: int) -> bool:
            return bool(every) and step // every > before // every

        waited = (time.monotonic() - self._saved_at) / 60
        if reached(train.save_every_n_steps) or 0 < train.save_every_n_minutes <= waited:
            self._due |= {"save", "evaluate"}
        if reached(train.preview_every_n_steps):
            self._due.add("sample")
        if any(expert.on_device and expert.trainer.bad_in_a_row for expert in self.experts.all):
            return False  # `_due` is kept for the next finite step
        if step == train.steps or self._limit.is_over:
            self._due |= {"save", "evaluate", "sample", "end"}
        if self.experts.current.step >= self.experts.current.total:
            self._due |= {"save", "evaluate"}
        if reached(train.eval_every_n_steps):
            self._due.add("evaluate")
        self._due |= {command for command in ("save", "sample") if take(command)}
        if take("profile"):
            self.profiler.request()
        if self.profiler.due:
            self._due.add("profile")
        return bool(self._due)

    def save(self) -> None:
        """Commit the last finite step, unless an update failed half-way.

        Raises Stopped on a stop request while the disk is full.
        """
        step, here = self.experts.good_step, [expert for expert in self.experts.all if expert.on_device]
        if not self.session.leads or step in (0, self.saver.saved_step):
            return
        if not all(expert.trainer.is_complete for expert in here):
            return
        with self.session.timed("save", step):
            saved = self.saver.commit(step, self.experts)
            found = self.saver.look(saved, self.experts)
        self._saved_at = time.monotonic()
        self.session.emit(found)
        for expert in here:
            expert.keep_measured()

    def _evaluate(self, *, if_due: bool = False) -> None:
        """Evaluate the current model; with `if_due` only if it was trained since its last evaluation."""
        group = self.session.group
        due = group.leads and self.experts.needs_evaluation(if_due=if_due)
        if group.parts > 1:
            due = group.share(due)  # the others wait here while the leader saves
        if not due:
            return
        with self.session.timed("evaluate", self.experts.step):
            evaluated = self.experts.evaluate()
        if evaluated is not None:
            self.session.emit(evaluated)
            if evaluated.step and group.leads:
                self._due.add("suggest")

    def _sample(self) -> None:
        if self._previews is not None:
            with self.session.timed("sample", self.experts.step):
                self._previews.render(self.experts.step)

    def _suggest(self) -> None:
        """Emit the suggested saved step."""
        found = suggestion_of(self.session.directory, nothing_to_learn=self._nothing_to_learn)
        event = Suggested(step=self.experts.step, best=found.step, why=found.why, overfits_from=found.overfits_from)
        self.session.emit(event)

    def _prune(self) -> None:
        """Remove old saved steps, after the newest one was evaluated."""
        if last := self.session.config.train.keep_last_saves:
            self.saver.store.prune(last, steps_worth_keeping(self.session.directory))

    def _stops_between_steps(self) -> contextlib.AbstractContextManager[object]:
        """Inside, with several ranks, Stopped ends only the current work."""
        # The ranks stop together before the next step, where the leader broadcasts the reason.
        return contextlib.nullcontext() if self.session.group.world == 1 else contextlib.suppress(Stopped)
