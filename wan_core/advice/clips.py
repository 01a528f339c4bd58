"""The measures of all clips of a dataset. Each file is decoded once; a later scan goes on where one was stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..dataset import Dataset, DatasetConfig, Sample, ScanContext, scene_cuts
from ..errors import DatasetError
from ..footage import FOOTAGE_VERSION, Measures
from ..video import UnreadableError

_SAVE_S = 10.0
"""seconds of measuring that a killed process may lose"""


@dataclass(frozen=True)
class MeasuredClips:
    """The measures by file."""

    shots: Mapping[Path, Sequence[Measures]] = field(default_factory=dict[Path, Sequence[Measures]])
    """the shots of each file, in order of time; one for a file that is not split into scenes"""
    left: int = 0
    """number of clips that are not measured yet, for lack of time"""

    def shots_of(self, sample: Sample) -> Sequence[Measures]:
        """Returns the shots of the file of a sample; empty if it is not measured."""
        return self.shots.get(sample.path, ())

    def of(self, sample: Sample) -> Measures | None:
        """Returns the measures of the shot that a sample is cut from; None if it is not measured."""
        shots = [shot for shot in self.shots_of(sample) if shot.start_s <= sample.cut.start_s + 1e-3]
        return shots[-1] if shots else None


class _LateError(Exception):
    """The time for measuring is over."""


def measured_clips(dataset: Dataset, context: ScanContext, *, allowed_s: float = math.inf) -> MeasuredClips:
    """Returns the measures of the clips of a dataset, cached in `context.known` by the file's mark.

    After `allowed_s` seconds only cached measures are added. Raises Stopped on a stop request, within a second.
    """
    deadline, saved = time.monotonic() + allowed_s, time.monotonic()
    shots: dict[Path, Sequence[Measures]] = {}
    left = 0
    clips = {s.path: (s, part.config) for part in dataset.parts for s in part.samples if s.kind == "clip"}
    for number, (path, (sample, config)) in enumerate(clips.items()):
        context.stop_if_asked("measuring clips")
        try:
            shots[path] = _measured(sample, config, context, deadline)
        except _LateError:
            left += 1
        except DatasetError:
            continue  # a file that was changed or deleted since the scan, or takes too long; encoding reports it
        if context.known is not None and time.monotonic() > saved + _SAVE_S:
            context.known.save()
            saved = time.monotonic()
        context.tell(number + 1, len(clips), sample.name)
    return MeasuredClips(shots, left)


def _measured(sample: Sample, config: DatasetConfig, context: ScanContext, deadline: float) -> list[Measures]:
    path, info = sample.path, sample.info
    cuts_s = scene_cuts(path, info, config, context) if config.split_scenes else ()
    how = f" scenes {config.scene_threshold:g}" if config.split_scenes else ""

    def ask() -> list[object]:
        if time.monotonic() >= deadline:
            raise _LateError
        try:
            return [shot.to_dict() for shot in context.video.measure(path, duration_s=info.duration_s, cuts_s=cuts_s)]
        except UnreadableError as error:
            if not error.lasting:
                raise
            return []

    found = context.recall(path, f"footage {FOOTAGE_VERSION}{how}", ask)
    return [Measures.from_dict(shot) for shot in found]
