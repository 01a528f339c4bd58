"""A run's whole history in little room: what a page shows of a metrics.jsonl of any length, kept as lines come.

A curve has at most 2,000 points: neighbouring steps share a bucket that keeps its lowest and its highest value, so
that no spike is lost, and its mean; its first and its newest point stand in it as they were written.
`web/js/lib/run/series.mjs` and `history.mjs` do the same with lines that come while a page is open, and go on from
here: both change together, which one fixture proves for both.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any

from ..events import CheckpointSaved, Evaluated, Marked, SampleReady, StageEnded, StepDone, StepSkipped, Suggested
from .pages import finite, parse_record
from .series import Series, number

_BINS = 20
_LAST_TIMESTEP = 1000
_PACE_STEPS = 20
_MOST_MARKS = 50
_MOST_RECORDS = 4000
"""saves and previews that are told; of all but the newest thousand only where they stand"""
_WHOLE_RECORDS = 1000
_NUMBER = rb"-?\d[\d.eE+-]{0,40}"
_STEP = re.compile(
    rb'\{"event": "step", "step": (\d{1,15}), "steps": \d{1,15}, "loss": (%(n)s), "lr": [^,\n]+, "grad_norm": [^,\n]+, '
    rb'"seconds": (%(n)s), "expert": "(\w{0,40})", "timestep_mean": (%(n)s)([,}][^\n]*)\n|([^\n]*)\n' % {b"n": _NUMBER}
)
"""a step as `to_line` writes it, with the rest of it, or any other line"""
_PRIOR_NAME = b'"prior_loss": '
_PRIOR = re.compile(_PRIOR_NAME + rb"(%s)[,}]" % _NUMBER)
_IS_STEP = b'"event": "step"'


class Condensed:
    """Condenses a run to what is shown of it; blocks of whole lines of its file come in their order."""

    def __init__(self) -> None:
        self.losses: dict[str, Series] = {}
        self.priors: dict[str, Series] = {}
        self.evaluations: dict[str, Series] = {}
        self.levels: dict[float, Series] = {}
        self.skipped = Series()
        self.held_out: bool | None = None
        self.not_finite: dict[str, Any] | None = None
        self.suggested: dict[str, Any] | None = None
        self.marked: dict[tuple[float, str], dict[str, Any]] = {}
        self.records: deque[dict[str, Any]] = deque(maxlen=_MOST_RECORDS)
        self.newest: dict[str, Any] | None = None
        self.trained = [0.0, 0]
        self.stages: dict[str, list[float]] = {}
        self.timesteps = [0] * _BINS
        self.furthest: float = 0
        self.pace: deque[float] = deque(maxlen=_PACE_STEPS)

    def add(self, block: bytes) -> None:
        """Take whole lines."""
        for step, loss, seconds, expert, timestep, rest, other in _STEP.findall(block):
            if not step:
                self._add_line(other)
                continue
            numbers = float(loss), float(seconds), float(timestep)
            if all(map(math.isfinite, numbers)):
                self._add_step(int(step), expert.decode(), *numbers, _prior_of(rest))
        self._take_newest(block)

    def _take_newest(self, block: bytes) -> None:
        """Keeps the last step line whole."""
        place = block.rfind(_IS_STEP)
        while place >= 0:
            start, end = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
            record = parse_record(block[start:end])
            if record and record.get("event") == StepDone.name and finite(record.get("step")) is not None:
                self.newest = record
                return
            place = block.rfind(_IS_STEP, 0, start)

    def _add_step(
        self,
        step: float,
        expert: str,
        loss: float | None,
        seconds: float | None,
        timestep: float | None,
        prior: float | None,
    ) -> None:
        series = _of(self.losses, expert)
        if loss is not None:
            series.add(step, loss)
        if prior is not None:
            _of(self.priors, expert).add(step, prior)
        if seconds is not None:
            self.pace.append(seconds)
            if seconds >= 0:
                self.trained[0] += seconds
                self.trained[1] += 1
        if step > self.furthest:
            if timestep is not None:
                self.timesteps[min(_BINS - 1, max(0, math.floor(timestep / _LAST_TIMESTEP * _BINS)))] += 1
            self.furthest = step

    def _add_line(self, line: bytes) -> None:
        """A line of any other kind or spelling."""
        record = parse_record(line) if line else None
        step = finite(record.get("step")) if record else None
        if record is None or step is None:
            return
        step = int(step) if step.is_integer() else step
        match record.get("event"):
            case StepDone.name:
                names = ("loss", "seconds", "timestep_mean", "prior_loss")
                self._add_step(step, _expert(record), *(finite(record.get(name)) for name in names))
            case Evaluated.name:
                self._add_evaluation(step, record)
            case Suggested.name:
                self.suggested = record
            case Marked.name:
                self.marked.setdefault((step, str(record.get("text", ""))), record)
                while len(self.marked) > _MOST_MARKS:
                    self.marked.pop(next(iter(self.marked)))
            case StepSkipped.name:
                self.skipped.add(step, 0.0)
            case CheckpointSaved.name | SampleReady.name:
                self.records.append(record)
                if len(self.records) > _WHOLE_RECORDS:
                    old = self.records[-1 - _WHOLE_RECORDS]
                    self.records[-1 - _WHOLE_RECORDS] = {"event": old["event"], "step": old["step"]}
            case StageEnded.name:
                seconds = finite(record.get("seconds"))
                if seconds is not None and seconds >= 0:
                    spent = self.stages.setdefault(str(record.get("stage") or ""), [0.0, 0])
                    spent[0] += seconds
                    spent[1] += 1
            case _:
                pass

    def _add_evaluation(self, step: float, record: dict[str, Any]) -> None:
        series, loss = _of(self.evaluations, _expert(record)), finite(record.get("eval_loss"))
        if loss is not None:
            series.add(step, loss)
        self.not_finite = {"step": step, "expert": _expert(record)} if loss is None else None
        held_out, levels = record.get("held_out"), record.get("per_timestep")
        self.held_out = held_out if isinstance(held_out, bool) else None
        for name, value in levels.items() if isinstance(levels, dict) else ():
            loss = finite(value)
            try:
                level = float(name)
            except ValueError:
                continue
            if math.isfinite(level):
                series = self.levels.setdefault(level, Series())
                if loss is not None:
                    series.add(step, loss)

    def to_dict(self) -> dict[str, Any]:
        """Returns it as the page restores it and as it is kept."""
        return {
            "losses": {name: series.to_dict() for name, series in self.losses.items()},
            "priors": {name: series.to_dict() for name, series in self.priors.items()},
            "evaluations": {name: series.to_dict() for name, series in self.evaluations.items()},
            "levels": {f"{level:g}": series.to_dict() for level, series in self.levels.items()},
            "skipped": self.skipped.to_dict(),
            "held_out": self.held_out,
            "not_finite": self.not_finite,
            "newest": self.newest,
            "trained": self.trained,
            "stages": self.stages,
            "timesteps": self.timesteps,
            "furthest": self.furthest,
            "pace": list(self.pace),
            "records": [*self.records, *self.marked.values(), *([self.suggested] if self.suggested else [])],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Condensed:
        """Raises ValueError, TypeError, LookupError or AttributeError for anything that `to_dict` does not return."""
        found = cls()
        found.losses = {str(name): Series.from_dict(series) for name, series in data["losses"].items()}
        found.priors = {str(name): Series.from_dict(series) for name, series in data["priors"].items()}
        found.evaluations = {str(name): Series.from_dict(series) for name, series in data["evaluations"].items()}
        found.levels = {float(level): Series.from_dict(series) for level, series in data["levels"].items()}
        found.skipped = Series.from_dict(data["skipped"])
        found.held_out = data["held_out"]
        found.not_finite = None if data["not_finite"] is None else dict(data["not_finite"].items())
        found.newest = None if data["newest"] is None else dict(data["newest"].items())
        found.trained = [float(data["trained"][0]), int(data["trained"][1])]
        found.stages = {str(name): [float(spent[0]), int(spent[1])] for name, spent in data["stages"].items()}
        found.timesteps = [int(count) for count in data["timesteps"]]
        found.furthest = number(data["furthest"])
        found.pace.extend(float(seconds) for seconds in data["pace"])
        for record in data["records"]:
            if record["event"] == Suggested.name:
                found.suggested = record
            elif record["event"] == Marked.name:
                found.marked[record["step"], str(record.get("text", ""))] = record
            else:
                found.records.append(record)
        if len(found.timesteps) != _BINS:
            raise ValueError("not what was kept")
        return found


def _of(curves: dict[str, Series], name: str) -> Series:
    found = curves.get(name)
    if found is None:
        found = curves[name] = Series()
    return found


def _prior_of(rest: bytes) -> float | None:
    """The error towards the base model, which stands near the end of a line."""
    place = rest.rfind(_PRIOR_NAME)
    found = _PRIOR.match(rest, place) if place >= 0 else None
    value = float(found[1]) if found else math.nan
    return value if math.isfinite(value) else None


def _expert(record: dict[str, Any]) -> str:
    expert = record.get("expert")
    return "" if expert is None else str(expert)[:40]
