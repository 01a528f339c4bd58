"""Ratios of measured to predicted memory and time of runs on this machine, in one small file; plans correct by them.

A ratio belongs to a card, a model, the form of its weights and a phase. It is measured against the prediction as it
was before any ratio, so that ratios never multiply; and it is taken only within bounds, because another program, or
a driver that counts otherwise, may have been in it.
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
"""the phase under which a ratio of time stands"""
_MEMORY, _TIME = (0.9, 1.3), (0.2, 20.0)
"""the least and the most that a ratio counts; one of time also stands for what no table knows of a card"""
_WARM_UP, _FEWEST = 3, 5
"""steps before the time of one counts, and how many of the others must be known"""
_PHASES = {"load": "load", "evaluate": "evaluate", "sample": "preview", "save": "save"}
"""phases of the prediction by the stage of a run"""


@dataclass(frozen=True, kw_only=True)
class Ratio(Config):
    """The ratio of what was measured to what was predicted."""

    card: str
    """as its driver calls it"""
    variant: str
    scheme: str
    """how the base weights are stored: none, or a scheme"""
    phase: str
    """of DeviceMemory.phases, or SECONDS"""
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
        """Returns the ratio within its bounds; None where nothing was measured."""
        wanted = (card, variant, scheme, phase)
        found = next((one.ratio for one in reversed(self.ratios) if one.of_what == wanted), None)
        least, most = _TIME if phase == SECONDS else _MEMORY
        return None if found is None else min(max(found, least), most)

    def phases_of(self, card: str | None, variant: str, scheme: str) -> dict[str, float]:
        """Returns the ratio of every phase that was measured on such a card, rounded for people and files."""
        phases = dict.fromkeys(one.phase for one in self.ratios if one.of_what[:3] == (card, variant, scheme))
        return {phase: round(ratio, 3) for phase in phases if (ratio := self.of(card, variant, scheme, phase))}


def measured_ratios_of(roots: Roots) -> MeasuredRatios:
    """Returns the ratios stored with the runs; none where the roots name no folder of runs, or the file is not
    one that `keep_ratios` wrote.
    """
    memo = _memo_of(roots)
    try:
        return (
            MeasuredRatios()
            if memo is None
            else MeasuredRatios(tuple(Ratio.from_dict(one, _FILE) for one in memo.values()))
        )
    except ConfigError:
        return MeasuredRatios()


def keep_ratios(found: list[Ratio], roots: Roots) -> None:
    """Stores ratios with the runs, each in place of an older one of the same, where there is such a folder."""
    memo = _memo_of(roots)
    if memo is not None:
        for one in found:
            memo.put(" / ".join(one.of_what), one.to_dict())
        memo.save()


def _memo_of(roots: Roots) -> Memo | None:
    folders = roots.folders.get("runs")
    return Memo(Path(folders[0]) / _FILE, _VERSION, _NEWEST) if folders else None


def card_name(device: str) -> str | None:
    """Returns what the driver calls a device of this machine; None for the CPU, of which nothing is measured."""
    found = torch.device(device)
    return abilities_of(found).name if is_gpu(found) and is_here(found) else None


def corrected(estimate: MemoryEstimate, ratio_of: Callable[[str, str], float | None]) -> MemoryEstimate:
    """Returns the estimate with each phase of each device times what `ratio_of(device, phase)` says, where it says."""
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
    """Hears what a run says of itself, and compares it with what was predicted for it."""

    variant: str
    scheme: str
    predicted: Mapping[str, Mapping[str, int]]
    """bytes by device and phase, as the plan said them"""
    followed: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """the ratios that the plan followed, by device and phase"""
    tflops: float | None = None
    """the predicted arithmetic of a step per second, in 10^12, before any ratio; None where it is not compared"""
    name_of: Callable[[str], str | None] = card_name
    _peaks: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _speeds: list[float] = field(default_factory=list[float])

    def hear(self, event: Event) -> None:
        """Notes the event, whatever it is of."""
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
        """Returns what a stage held on each device, with what was predicted for it."""
        phase = _PHASES.get(stage, "")
        known = {device: self.predicted.get(device, {}).get(phase) for device in reading}
        return {device: {**values, "predicted": known[device]} for device, values in reading.items()}

    def _note(self, phase: str, memory: Mapping[str, Mapping[str, int | None]]) -> None:
        for device, values in memory.items():
            if peak := values.get("peak"):
                self._peaks[device, phase] = max(peak, self._peaks.get((device, phase), 0))

    def ratios(self) -> list[Ratio]:
        """Returns what can be said by now, of cards only."""
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
        """Stores the ratios known by now with the runs, where the roots name such a folder and it can be written."""
        keep_ratios(self.ratios(), roots)
