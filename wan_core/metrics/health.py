"""Marks divergence, worse evaluations and plateaus of a run, by comparison with its own earlier figures.

Each kind is marked once; divergence is marked again if it recurs after it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ..events import Evaluated, Event, Marked, StepDone
from ..words import filled
from .best import noise_of
from .measured import Measured, read_experts
from .records import finite, records_of

_WORSE = 1.5
"""factor of the evaluation loss before training, above which an evaluation counts as worse"""
_NEW, _USUAL = 8, 60
"""number of newest steps, and of earlier steps, whose medians are compared"""
_NORM, _LOSS, _LOSS_ALONE = 10.0, 1.5, 3.0
"""growth of a diverging run: gradient norm together with loss, or the loss alone"""
_LOSS_AT_ONCE = 10.0
"""growth of the loss alone while there are fewer than `_USUAL` earlier steps"""
_CALM = 2.0
"""divergence has ended once the growth is below this"""
_FLAT, _LEAST = 6, 10
"""a plateau: this many newest evaluations without a lower loss, of at least `_LEAST` evaluations"""


@dataclass
class _Expert:
    norms: deque[float] = field(default_factory=lambda: deque[float](maxlen=_NEW + _USUAL))
    losses: deque[float] = field(default_factory=lambda: deque[float](maxlen=_NEW + _USUAL))
    measured: list[Measured] = field(default_factory=list[Measured])
    exploded: bool = False
    worse: bool = False
    flat: bool = False


class HealthWatch:
    """Marks problems of a run from its events."""

    def __init__(self, metrics_file: Path) -> None:
        """`metrics_file`: the evaluations of earlier sessions, read at the first evaluation."""
        self._file, self._read = metrics_file, False
        self._experts: dict[str, _Expert] = {}

    def hear(self, event: Event) -> list[Marked]:
        """Returns the marks that `event` causes."""
        if isinstance(event, StepDone):
            return self._step(event)
        if isinstance(event, Evaluated):
            return self._evaluated(event)
        return []

    def _of(self, name: str) -> _Expert:
        return self._experts.setdefault(_name(name), _Expert())

    def _step(self, event: StepDone) -> list[Marked]:
        expert = self._of(event.expert)
        expert.norms.append(event.grad_norm)
        expert.losses.append(event.loss)
        if len(expert.norms) < 2 * _NEW:
            return []
        norm, loss = _growth(expert.norms), _growth(expert.losses)
        usual_is_known = len(expert.norms) == _NEW + _USUAL
        both = norm > _NORM and loss > (_LOSS if usual_is_known else _LOSS_AT_ONCE)
        if expert.exploded:
            expert.exploded = norm > _CALM or loss > _CALM
        elif both or (usual_is_known and loss > _LOSS_ALONE):
            expert.exploded = True
            text = filled(
                "Training diverges at step {step}: in {n} steps the gradients grew to {norm} times and the loss to "
                "{loss} times their earlier values. Stop it, and resume from an earlier saved step with a lower "
                "learning_rate.",
                step=event.step,
                n=_NEW,
                norm=f"{norm:.3g}",
                loss=f"{loss:.3g}",
            )
            return [_mark("explosion", event, text)]
        return []

    def _evaluated(self, event: Evaluated) -> list[Marked]:
        if not self._read:
            self._read_file()
        expert = self._of(event.expert)
        loss = finite(event.eval_loss)
        if loss is None:
            return []
        now = Measured(event.step, loss, event.held_out is True, tuple(event.per_clip))
        expert.measured = [*(m for m in expert.measured if m.step < now.step), now]
        base, marks = expert.measured[0], list[Marked]()
        from_start = base.step == 0 or event.expert != ""
        if not expert.worse and from_start and base.loss > 0 and now.loss > _WORSE * base.loss:
            expert.worse = True
            text = filled(
                "The evaluation loss rose from {first} before training to {now} at step {step}: the run gets "
                "worse, not better. Stop it, lower learning_rate or alpha, and start again.",
                first=f"{base.loss:.4f}",
                now=f"{now.loss:.4f}",
                step=now.step,
            )
            marks.append(_mark("worse", event, text))
        if not expert.flat and not expert.worse and (since := _flat_since(expert.measured)) is not None:
            expert.flat = True
            text = filled(
                "The evaluation loss has not fallen since step {step}, so more steps like these add little. Stop it "
                "here, or extend the run only with another learning_rate or more clips.",
                step=since,
            )
            marks.append(_mark("plateau", event, text))
        return marks

    def _read_file(self) -> None:
        self._read = True
        for name, measured in read_experts(self._file).items():
            self._of(name).measured = measured
        for record in records_of(self._file, (Marked.name,)):
            expert = self._of(str(record.get("expert", "")))
            expert.worse |= record.get("kind") == "worse"
            expert.flat |= record.get("kind") == "plateau"


def _growth(values: Sequence[float]) -> float:
    kept = list(values)
    usual = median(kept[:-_NEW])
    return median(kept[-_NEW:]) / usual if usual > 0 else 1.0


def _flat_since(points: Sequence[Measured]) -> int | None:
    """Returns the step with the lowest loss before the newest evaluations; None if one of these is lower by more than
    noise."""
    if len(points) < _LEAST:
        return None
    earlier, since = points[:-_FLAT], points[-_FLAT:]
    best, newest = (min(some, key=lambda point: point.loss) for some in (earlier, since))
    return best.step if best.loss - newest.loss < noise_of(points, best, newest) else None


def _name(expert: str) -> str:
    return expert if expert in ("high", "low") else ""


def _mark(kind: str, event: StepDone | Evaluated, text: str) -> Marked:
    expert = _name(event.expert)
    text = filled("The {expert} noise expert: {sentence}", expert=expert, sentence=text) if expert else text
    return Marked(step=event.step, kind=kind, text=text, expert=expert)
