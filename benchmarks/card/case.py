"""One measurement, where it runs, and what came of it."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

DONE, ERROR, NEEDS, LEFT_OUT = "done", "error", "needs", "left out"
"""What became of a case: measured; raised, or a figure that is wrong; cannot be measured here; no time was left."""
Figures = dict[str, Any]
"""JSON values by name; `ok`: False where a figure is not what it must be"""


class Needs(Exception):  # noqa: N818  not a failure: what this machine or this version lacks
    """A case that cannot be measured here; the sentence says what it needs."""


@dataclass(frozen=True)
class Bench:
    """Where the measurements run."""

    work: Path
    """folder for random weights, which stay, and for run directories, which do not"""
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


def measured(case: Case, bench: Bench) -> tuple[str, str, Figures]:
    """Returns status, sentence and figures of a case that is measured in this process; raises nothing."""
    if case.needs_gpu and not bench.cuda:
        return NEEDS, "needs one CUDA GPU", {}
    try:
        with torch.inference_mode(False):
            figures = case.measure(bench)
    except Needs as lacking:
        return NEEDS, str(lacking), {}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return ERROR, f"{type(error).__name__} at {place}: {error}"[:2000], {}
    finally:
        gc.collect()
    return (DONE, "", figures) if figures.get("ok", True) else (ERROR, "a figure is not what it must be", figures)
