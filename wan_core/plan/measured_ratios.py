"""Ratios of measured to predicted memory and time of runs on this machine, kept in a file; they correct later plans.

A ratio belongs to a card, a model, the storage of its weights and a phase. It refers to the uncorrected prediction, so
ratios do not accumulate. Each ratio is limited to a range, because other programs may have used the card too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..abilities import abilities_of
from ..accelerator import is_gpu, is_here
from ..config import Config
from ..errors import ConfigError
from ..events import Event, StageEnded, StepDone
from ..files import Memo, Roots
from ..placement import MemoryEstimate
from ..train.meters import MemoryReading

_FILE = "_measured.json"
_VERSION, _NEWEST = 2, 50
SECONDS = "seconds"
"""phase name of a ratio of step time"""
_MEMORY, _TIME = (0.9, 1.3), (0.2, 20.0)
"""range of ratios of memory and of time; the latter is wide, because it also makes up for an unknown card"""
_WARM_UP, _FEWEST = 3, 5
"""number of first steps that are not timed, and least number of timed steps for a ratio"""
_PHASES = {"load": "load", "evaluate": "evaluate", "sample": "preview", "save": "save"}
"""stage of a run -> phase of the prediction"""


@dataclass(frozen=True, kw_only=True)
class Ratio(Config):
    """The ratio of a measured to a predicted value."""

    card: str
    """name that the driver reports"""
    variant: str
    scheme: str
    """quantization of the base weights; none: not quantized"""
    phase: str
    """a phase of DeviceMemory.phases, or SECONDS"""
    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio < math.inf:
            raise ConfigError(f"ratio {self.ratio} is no ratio of two sizes.")

    @property
    def of_what(self) -> tuple[str, str, str, str]:
        return self.card, self.variant, self.scheme, self.phase


@dataclass(frozen=True)
class MeasuredRatios:
    """The ratios of one machine, the newest last."""

    ratios: tuple[Ratio, ...] = ()

    def of(self, card: str | None, variant: str, scheme: str, phase: str) -> float | None:
        """Returns the ratio, limited to its range; None if it was not measured."""
        wanted = (card, variant, scheme, phase)
        found = next((one.ratio for one in reversed(self.ratios) if one.of_what == wanted), None)
        least, most = _TIME if phase == SECONDS else _MEMORY
        return None if found is None else min(max(found, least), most)

    def phases_of(self, card: str | None, variant: str, scheme: str) -> dict[str, float]:
        """Returns the ratio of every measured phase, rounded to three digits."""
        phases = dict.fromkeys(one.phase for one in self.ratios if one.of_what[:3] == (card, variant, scheme))
        return {phase: round(ratio, 3) for phase in phases if (ratio := self.of(card, variant, scheme, phase))}


def measured_ratios_of(roots: Roots) -> MeasuredRatios:
    """Returns the ratios stored with the runs; none without a folder of runs, or if the file is damaged."""
    memo = _memo_of(roots)
    try:
        return MeasuredRatios(tuple(Ratio.from_dict(one, _FILE) for one in (memo.values() if memo else ())))
    except ConfigError:
        return MeasuredRatios()


def keep_ratios(found: list[Ratio], roots: Roots) -> None:
    """Stores ratios with the runs, in place of older ones; does nothing without a folder of runs."""
    memo = _memo_of(roots)
    if memo is not None:
        for one in found:
            memo.put(" / ".join(one.of_what), one.to_dict())
        memo.save()


def _memo_of(roots: Roots) -> Memo | None:
    folders = roots.folders.get("runs")
    return Memo(Path(folders[0]) / _FILE, _VERSION, _NEWEST) if folders else None


def card_name(device: str) -> str | None:
    """Returns the driver's name of a GPU of this machine; None for other devices, which are not measured."""
    found = torch.device(device)
    return abilities_of(found).name if is_gpu(found) and is_here(found) else None


def corrected(estimate: MemoryEstimate, ratio_of: Callable[[str, str], float | None]) -> MemoryEstimate:
    """Returns the estimate with each phase of each device multiplied by `ratio_of(device, phase)`, unless None."""
    devices = {
        name: replace(
            memory,
            phases={phase: round(value * (ratio_of(name, phase) or 1.0)) for phase, value in memory.phases.items()},
        )
        for name, memory in estimate.devices.items()
    }
    return replace(estimate, devices=devices)


@dataclass
class Measured:
    """Collects measured memory and time from the events of a run, and compares them with the plan."""

    variant: str
    scheme: str
    predicted: Mapping[str, Mapping[str, int]]
    """predicted bytes by device and phase"""
    followed: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """ratios that the prediction was corrected by, by device and phase"""
    tflops: float | None = None
    """predicted TFLOP/s of a step, uncorrected; None: time is not compared"""
    name_of: Callable[[str], str | None] = card_name
    _peaks: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _speeds: list[float] = field(default_factory=list[float])

    def hear(self, event: Event) -> None:
        """Take the memory and speed from an event that has them."""
        if isinstance(event, StepDone):
            self._note("step", event.memory)
            if event.tflops:
                self._speeds.append(event.tflops)
        elif isinstance(event, StageEnded) and event.stage in _PHASES:
            self._note(_PHASES[event.stage], event.memory)

    def of_a_step(self) -> dict[str, int]:
        """Returns the predicted peak of a step by device."""
        return {device: phases["step"] for device, phases in self.predicted.items()}

    def predicted_beside(self, stage: str, reading: MemoryReading) -> MemoryReading:
        """Returns `reading` with the predicted bytes of `stage` for each device."""
        phase = _PHASES.get(stage, "")
        known = {device: self.predicted.get(device, {}).get(phase) for device in reading}
        return {device: {**values, "predicted": known[device]} for device, values in reading.items()}

    def _note(self, phase: str, memory: Mapping[str, Mapping[str, int | None]]) -> None:
        for device, values in memory.items():
            if peak := values.get("peak"):
                self._peaks[device, phase] = max(peak, self._peaks.get((device, phase), 0))

    def ratios(self) -> list[Ratio]:
        """Returns the ratios measured until now, of GPUs only."""
        found: list[Ratio] = []
        for (device, phase), peak in self._peaks.items():
            card, predicted = self.name_of(device), self.predicted.get(device, {}).get(phase)
            if card is not None and predicted:
                followed = self.followed.get(device, {}).get(phase, 1.0)
                found.append(self._ratio(card, phase, followed * peak / predicted))
        first = next(iter(self.predicted), None)
        card = None if first is None else self.name_of(first)
        speeds = self._speeds[_WARM_UP:]
        if card is not None and self.tflops and len(speeds) >= _FEWEST:
            found.append(self._ratio(card, SECONDS, self.tflops / statistics.median(speeds)))
        return found

    def _ratio(self, card: str, phase: str, ratio: float) -> Ratio:
        return Ratio(card=card, variant=self.variant, scheme=self.scheme, phase=phase, ratio=round(ratio, 4))

    def keep(self, roots: Roots) -> None:
        """Writes `ratios()` into the folder of the runs, if it exists and is writable."""
        keep_ratios(self.ratios(), roots)
