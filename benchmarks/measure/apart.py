"""Runs work in a separate process, so that nothing stays in the card's memory; returns the figures, or why there are
none."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

DONE, ERROR, NEEDS, LEFT_OUT = "done", "error", "needs", "left out"
"""status of a row: measured; failed or with a wrong figure; impossible on this machine; skipped for lack of time"""
Figures = dict[str, Any]
"""JSON data by name; `ok`: False if a figure is wrong"""


class Needs(Exception):  # noqa: N818  not a failure
    """A row cannot be measured on this machine; the message names the requirement."""


class NoTime(Exception):  # noqa: N818  not a failure
    """A row would not end in the remaining time."""


@dataclass(frozen=True)
class Outcome:
    """The result of a row."""

    status: str
    said: str = ""
    """the error, or the missing requirement"""
    figures: Figures = field(default_factory=Figures)
    seconds: float = 0.0


def run_here(work: Callable[[], Figures]) -> Outcome:
    """Runs `work` in this process; raises only KeyboardInterrupt and SystemExit."""
    began = time.monotonic()
    status, said, figures = _tried(work)
    return Outcome(status, said, figures, round(time.monotonic() - began, 2))


def _tried(work: Callable[[], Figures]) -> tuple[str, str, Figures]:
    try:
        with torch.inference_mode(False):
            figures = work()
    except Needs as lacking:
        return NEEDS, str(lacking), {}
    except NoTime as late:
        return LEFT_OUT, str(late), {}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return ERROR, f"{type(error).__name__} at {place}: {error}"[:2000], {}
    finally:
        gc.collect()
    return (DONE, "", figures) if figures.get("ok", True) else (ERROR, "a figure is wrong", figures)


def run_apart(method: str, work: Callable[[], Figures], limit_s: float) -> Outcome:
    """Runs `work` in a separate process, which is killed after `limit_s` seconds and on an interrupt.

    `method`: start method of multiprocessing; "spawn" pickles `work`, "fork" needs a parent that has not used a card.
    """
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    began = time.monotonic()
    child = context.Process(target=_child, args=(work, theirs))
    child.start()
    theirs.close()
    answer: tuple[str, str, Figures]
    try:
        answer = ours.recv() if ours.poll(limit_s) else (ERROR, f"ended after {limit_s:.0f} s", {})
    except EOFError:
        child.join()
        answer = (ERROR, f"its process ended with {child.exitcode}", {})
    finally:
        child.kill()
        child.join()
        ours.close()
    status, said, figures = answer
    return Outcome(status, said, figures, round(time.monotonic() - began, 2))


def _child(work: Callable[[], Figures], answers: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    answers.send(_tried(work))
    answers.close()
    os._exit(0)  # skips the exit handlers that a forked process inherits from its parent


def ways_apart() -> list[str]:
    """Returns the start methods of processes on this system, the fastest first."""
    return [method for method in ("fork", "spawn") if method in multiprocessing.get_all_start_methods()]
