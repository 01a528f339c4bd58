"""The report as a picture: two bars per row on a logarithmic axis, with lines for the plan's errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .report import AuditReport, AuditRow

if TYPE_CHECKING:
    from PIL import Image

_WIDTH, _LABELS, _VALUES, _MARGIN = 1280, 330, 90, 28
_ROW, _BAR, _SECTION, _HEAD, _FOOT = 42, 14, 46, 118, 64
_INK, _FAINT, _PAPER = (28, 32, 38), (214, 218, 224), (255, 255, 255)
_OUTPUT, _GRADIENT = (0, 94, 162), (217, 95, 2)  # colours that colour-blind readers can distinguish
_SECTIONS = {
    "preset": "Presets",
    "change": "The plan with one part changed",
    "alone": "float32 with one part lowered",
}
_OVERFLOW = 10.0
"""error at which the bar of a non-finite error ends"""


@dataclass(frozen=True)
class _Axis:
    """Decades from `low` to `high` between two x positions."""

    low: int
    high: int
    left: int
    right: int

    def x(self, value: float) -> int:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.left + min(max(share, 0.0), 1.0) * (self.right - self.left))


def draw_chart(report: AuditReport) -> NDArray[np.uint8]:
    """Returns the RGB picture (H, 1280, 3) of a report."""
    from PIL import Image, ImageDraw

    sections = [(kind, report.ranked(kind)) for kind in _SECTIONS if report.ranked(kind)]
    height = _HEAD + _FOOT + sum(_SECTION + _ROW * len(rows) for _, rows in sections)
    picture = Image.new("RGB", (_WIDTH, height), _PAPER)
    painter = _Painter(picture, ImageDraw.Draw(picture), _axis(report.rows))
    painter.head(report)
    painter.grid(height - _FOOT)
    painter.plan_lines(report.plan, height - _FOOT)
    top = _HEAD
    for kind, rows in sections:
        painter.text(_MARGIN, top + 16, _SECTIONS[kind], size=19)
        top += _SECTION
        for row in rows:
            painter.row(row, top)
            top += _ROW
    painter.foot(report, height - _FOOT)
    return np.asarray(picture, np.uint8)


def _axis(rows: Sequence[AuditRow]) -> _Axis:
    """Returns an axis of complete decades that contains all errors above zero."""
    errors = [e for row in rows for e in (row.output_error, row.gradient_error) if e]
    low = math.floor(math.log10(min(errors, default=1e-6)))
    high = math.ceil(math.log10(max(errors, default=1.0)))
    return _Axis(low, max(high, low + 1), _LABELS, _WIDTH - _VALUES)


class _Painter:
    def __init__(self, picture: Image.Image, draw: Any, axis: _Axis) -> None:
        self._picture, self._draw, self._axis = picture, draw, axis

    def text(self, x: int, y: int, words: str, *, size: int = 16, fill: Any = _INK, anchor: str = "la") -> None:
        from PIL import ImageFont

        self._draw.text((x, y), words, fill=fill, font=ImageFont.load_default(size), anchor=anchor)

    def head(self, report: AuditReport) -> None:
        name = report.model.rpartition(":")[2].rpartition("/")[2]
        self.text(_MARGIN, 18, f"What precision costs: {name} ({report.variant})", size=24)
        self.text(
            _MARGIN,
            54,
            f"policy {report.policy}, linear layers in {report.compute}; relative error against float32"[:150],
        )
        for x, colour, words in ((_LABELS, _OUTPUT, "velocity"), (_LABELS + 130, _GRADIENT, "LoRA gradients")):
            self._draw.rectangle((x, 86, x + 22, 86 + _BAR), fill=colour)
            self.text(x + 30, 93, words, anchor="lm")
        self._dashed(_LABELS + 320, _LABELS + 360, 93)
        self.text(_LABELS + 368, 93, "the plan itself", anchor="lm")

    def grid(self, bottom: int) -> None:
        for decade in range(self._axis.low, self._axis.high + 1):
            x = self._axis.x(10.0**decade)
            self._draw.line((x, _HEAD, x, bottom), fill=_FAINT)
            self.text(x, bottom + 6, _power(decade), anchor="ma")

    def plan_lines(self, plan: AuditRow, bottom: int) -> None:
        for value, colour in ((plan.output_error, _OUTPUT), (plan.gradient_error, _GRADIENT)):
            if value:
                x = self._axis.x(value)
                for top in range(_HEAD, bottom, 10):
                    self._draw.line((x, top, x, min(top + 5, bottom)), fill=colour)

    def row(self, row: AuditRow, top: int) -> None:
        """Draws a label, two bars and their values."""
        from PIL import ImageFont

        self.text(_LABELS - 12, top + _ROW // 2 - 3, row.label, anchor="rm")
        for index, (value, colour) in enumerate(((row.output_error, _OUTPUT), (row.gradient_error, _GRADIENT))):
            y = top + 3 + index * (_BAR + 2)
            end = self._axis.x(_OVERFLOW if value is None else value) if value != 0 else self._axis.left
            self._draw.rectangle((self._axis.left, y, max(end, self._axis.left + 1), y + _BAR - 1), fill=colour)
            words = "overflow" if value is None else f"{value:.1e}" if value else "0"
            place, font = (end + 6, y + _BAR // 2), ImageFont.load_default(13)
            self._draw.rectangle(self._draw.textbbox(place, words, font=font, anchor="lm"), fill=_PAPER)
            self._draw.text(place, words, fill=_INK, font=font, anchor="lm")

    def foot(self, report: AuditReport, top: int) -> None:
        points = f"{len(report.clips)} clip(s) of at most {report.tokens} tokens, {len(report.timesteps)} timestep(s)"
        words = f"{points}; {report.adapters}; {report.device}, torch {report.torch}"
        self.text(_MARGIN, top + 36, words, size=14)

    def _dashed(self, left: int, right: int, y: int) -> None:
        for x in range(left, right, 10):
            self._draw.line((x, y, x + 5, y), fill=_INK, width=2)


def _power(decade: int) -> str:
    return "1" if decade == 0 else f"1e{decade:+d}"
