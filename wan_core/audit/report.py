"""The result of an audit: frozen data, its ranking, and a text table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..config import Config
from ..words import counted
from .candidates import Candidate
from .measure import Measurement

_REPORT_VERSION = 1
_HEADINGS = {
    "plan": "your plan",
    "preset": "presets as a whole",
    "change": "your plan with one part changed, largest output error first",
    "alone": "float32 with one part lowered, largest output error first",
    "floor": "float32 a second time: the difference between two equal passes",
}


@dataclass(frozen=True, kw_only=True)
class AuditRow(Config):
    """The errors of one set of dtypes against float32. None: an overflow, or not measured."""

    kind: str
    """plan, preset, change, alone or floor"""
    part: str
    """the changed switch, or the name of the preset"""
    before: str = ""
    after: str = ""
    output_error: float | None
    """relative L2 error of the velocity: root mean square over the points"""
    gradient_error: float | None
    """relative L2 error of all LoRA gradients as one vector: root mean square over the points"""
    output_cosine: float | None
    gradient_cosine: float | None
    output_largest: float | None
    """largest error of one value, in units of the velocity's root mean square"""
    output_errors: tuple[float | None, ...]
    """relative L2 error of the velocity per point, in the order of the report's timesteps, clip by clip"""
    gradient_errors: tuple[float | None, ...]
    block_output_errors: tuple[float | None, ...]
    """relative L2 error of each block's output"""
    block_gradient_errors: tuple[float | None, ...]
    """relative L2 error of the adapter gradients of each block"""
    seconds: float
    """seconds of a forward and backward pass with activation checkpointing, median over the points"""
    memory_bytes: int | None
    """measured peak of the first GPU"""
    predicted_bytes: int | None
    """predicted peak of a training step on the fullest device; None for dtypes that cannot train (alone, floor)"""

    @property
    def label(self) -> str:
        return f"{self.part} {self.before} -> {self.after}" if self.before else self.part

    @classmethod
    def of(cls, candidate: Candidate, measured: Measurement, predicted_bytes: int | None) -> AuditRow:
        """Returns the row of a candidate: averages over the points of its measurement."""
        return cls(
            kind=candidate.kind,
            part=candidate.part,
            before=candidate.before,
            after=candidate.after,
            output_error=_together(d.relative for d in measured.output),
            gradient_error=_together(d.relative for d in measured.gradient),
            output_cosine=_finite(statistics.fmean(d.cosine for d in measured.output)),
            gradient_cosine=_finite(statistics.fmean(d.cosine for d in measured.gradient)),
            output_largest=_finite(float(np.max([d.largest for d in measured.output]))),
            output_errors=tuple(_finite(d.relative) for d in measured.output),
            gradient_errors=tuple(_finite(d.relative) for d in measured.gradient),
            block_output_errors=_per_block(measured.block_output),
            block_gradient_errors=_per_block(measured.block_gradient),
            seconds=statistics.median(measured.seconds),
            memory_bytes=measured.memory_bytes or None,
            predicted_bytes=predicted_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class AuditReport(Config):
    """All results of an audit, with the model, clips and device that were measured."""

    version: int = _REPORT_VERSION
    model: str
    """the base file as root:relative path"""
    variant: str
    policy: str
    compute: str
    """dtype of the linears"""
    quantized: str = ""
    """scheme of 8-bit weights, the same on both sides of every comparison"""
    adapters: str
    """the LoRA whose gradients are measured"""
    clips: tuple[str, ...]
    timesteps: tuple[float, ...]
    tokens: int
    """video tokens of the largest clip"""
    device: str
    torch: str
    reference_seconds: float
    """median seconds of a float32 pass"""
    rows: tuple[AuditRow, ...]

    def ranked(self, kind: str) -> tuple[AuditRow, ...]:
        """Returns the rows of a kind; "change" and "alone" by output error, overflows first, then the largest."""
        rows = tuple(row for row in self.rows if row.kind == kind)
        if kind not in ("change", "alone"):
            return rows
        return tuple(sorted(rows, key=lambda row: -math.inf if row.output_error is None else -row.output_error))

    @property
    def plan(self) -> AuditRow:
        return next(row for row in self.rows if row.kind == "plan")

    def table(self) -> str:
        """Returns the ranking as text for a monospaced font."""
        lines = [
            f"Precision of {self.model.rpartition(':')[2]} (Wan {self.variant}) against float32, on {self.device}",
            f"policy {self.policy}, linear layers in {self.compute}"
            + (f", weights {self.quantized}" if self.quantized else ""),
            f"{counted(len(self.clips), 'clip')} of at most {self.tokens} tokens, timesteps "
            f"{', '.join(f'{t:.0f}' for t in self.timesteps)}; {self.adapters}",
            "",
            f"{'':38}{'velocity':>10}{'x plan':>8}{'gradient':>11}{'x plan':>8}{'step GiB':>10}{'seconds':>9}",
        ]
        for kind, heading in _HEADINGS.items():
            rows = self.ranked(kind)
            if rows:
                lines += [heading, *(self._line(row) for row in rows)]
        if any(row.output_error is None or row.gradient_error is None for row in self.rows):
            lines.append("overflow: values past the range of the dtype; training would skip such steps.")
        return "\n".join(lines)

    def _line(self, row: AuditRow) -> str:
        plan = self.plan
        return (
            f"  {row.label:36}{_error(row.output_error):>10}{_times(row.output_error, plan.output_error):>8}"
            f"{_error(row.gradient_error):>11}{_times(row.gradient_error, plan.gradient_error):>8}"
            f"{'' if row.predicted_bytes is None else f'{row.predicted_bytes / 2**30:.2f}':>10}{row.seconds:>9.2f}"
        )


def _error(value: float | None) -> str:
    return "overflow" if value is None else f"{value:.2e}" if value else "0"


def _times(value: float | None, plan: float | None) -> str:
    return "" if value is None or not plan else f"{value / plan:.2f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _together(values: Iterable[float]) -> float | None:
    squares = [value * value for value in values]
    return _finite(math.sqrt(sum(squares) / len(squares)))


def _per_block(points: Sequence[Sequence[float]]) -> tuple[float | None, ...]:
    return tuple(_together(values) for values in zip(*points, strict=True))
