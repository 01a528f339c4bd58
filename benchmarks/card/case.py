"""One measurement, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from measure import Figures, Needs


@dataclass(frozen=True)
class Bench:
    """Where the measurements run."""

    work: Path
    """folder for run directories, which go with the measurement"""
    tiny: bool = False
    """tiny shapes, for a CPU: the figures mean nothing, the code is the same"""
    cuda: bool = True

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0) if self.cuda else torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One measurement. `measure` and what it is bound to can be pickled, for systems that cannot fork."""

    part: str
    name: str
    measure: Callable[[Bench], Figures]
    about_s: float = 20.0
    """what it takes on a fast card: it is not begun where less time is left"""
    needs_gpu: bool = True


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    part: str
    name: str
    status: str
    said: str = ""
    """the error, or what is lacking"""
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)


def measured(case: Case, bench: Bench) -> Figures:
    """Returns the figures of a case that is measured in this process."""
    if case.needs_gpu and not bench.cuda:
        raise Needs("needs one CUDA GPU")
    return case.measure(bench)
