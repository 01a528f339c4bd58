"""Steps in a row that were not finite: told one by one, and too many of them end the run."""

from __future__ import annotations

from ..errors import TrainingError
from ..events import Emit, StepSkipped


class NotFinite(TrainingError):  # noqa: N818  what happened, and no more: who keeps the saves says what stands
    """So many steps in a row were not finite that the run cannot go on."""


_REASONS = {"loss": "the loss is not finite", "gradients": "the gradients are not finite"}


class Streak:
    """Counts the steps up to the last one that were not finite. While there are any, the weights may be no good."""

    def __init__(self, limit: int, emit: Emit) -> None:
        """`limit`: so many in a row end the run."""
        self.length = 0
        self._limit, self._emit = limit, emit

    def add(self, step: int, what: str) -> None:
        """Tells of a step whose `what`, loss or gradients, was not finite. Raises NotFinite if it is one too many."""
        self.length += 1
        self._emit(StepSkipped(step=step, reason=_REASONS[what], in_a_row=self.length))
        self._check(self.length, what, step)

    def check_tries(self, tries: int, step: int) -> None:
        """Raises NotFinite where so many tries after `step`, the last step, make the streak too long."""
        self._check(self.length + tries, "loss or gradients", step)

    def end(self) -> None:
        """A step was finite, and so are the weights that it began with."""
        self.length = 0

    def _check(self, bad: int, what: str, step: int) -> None:
        if bad >= self._limit:
            raise NotFinite(
                "{bad} steps in a row gave no usable {what} (NaN or infinity), the last one step {step}.",
                bad=bad,
                what=what,
                step=step,
            )
