"""Many cells of the bench at once: processes of one thread, each taking the next cell that nobody has yet.

Started by bench.py (`--processes`, `--minutes`). A process forks after the imports, which take seconds. It stops once
nothing is wanted, or no cell may begin any more; cells that it had begun are finished.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learning.bench_file import FAILED, STEPS, DuplicateError, Line, ResultFile, claimed
from learning.bench_plan import Plan

from wan_core.errors import Stopped

if TYPE_CHECKING:
    from learning.bench_cell import BenchStudy

IDLE_SECONDS = 0.5
"""until a process without a cell looks again"""

Wanted = Callable[[], Sequence[Line]]
"""-> the cells that are not finished, the next one first"""


def planned(results: ResultFile, concepts: Sequence[int], comfyui: bool, unseen: Sequence[int] = ()) -> Wanted:
    """The cells of bench_plan.py, decided anew whenever a process looks; or its last ones, on concepts `unseen`."""

    def cells() -> list[Line]:
        plan = Plan(results.every(), concepts, comfyui)
        return plan.on_unseen(unseen) if unseen else plan.cells()

    return cells


def run_one(study: BenchStudy, results: ResultFile, work: Path, cell: Line, about: dict[str, Any]) -> bool:
    """Runs and appends a cell, with `about` its machine. False where it is finished or another process has it."""
    with claimed(work, cell) as ours:
        if not ours or results.has(cell):
            return False
        try:
            found = study.steps_cell(cell) if cell["kind"] == STEPS else study.cell(cell)
            line = cell | found | about
        except Stopped:  # a signal, which a trainer answers between two steps
            raise
        except Exception as error:  # whatever a setting does: the others go on
            traceback.print_exc()
            line = cell | about | {"kind": FAILED, "failed": cell["kind"], "error": f"{type(error).__name__}: {error}"}
        try:
            results.append(line)
        except DuplicateError as problem:  # another machine's line came with a pull meanwhile
            print(problem)
            return True
        shown = f"{line['all']} of {line['clips']}" if "all" in line else line["kind"]
        print(f"{cell['recipe']} {cell['rate']:g} {cell['concept']}, {cell['steps']} steps: {shown}", flush=True)
        return True


def run_many(
    study: BenchStudy,
    results: ResultFile,
    work: Path,
    wanted: Wanted,
    about: dict[str, Any],
    *,
    processes: int,
    minutes: float,
) -> None:
    """Runs wanted cells in `processes` processes; none begins after `minutes` (0 = no limit)."""
    until = time.monotonic() + 60 * minutes if minutes else float("inf")

    def go_on() -> None:
        while time.monotonic() < until:
            cells = wanted()
            if not cells:
                return
            if not any(time.monotonic() < until and run_one(study, results, work, cell, about) for cell in cells):
                time.sleep(IDLE_SECONDS)

    _forked(processes, lambda number: go_on())


def encode_at_once(study: BenchStudy, concepts: Sequence[int], processes: int) -> None:
    """Encodes the clips of concepts before the first cell, so that no two processes encode one."""
    from shapeworld.drawn_concepts import drawn_concept

    def encode(number: int) -> None:
        for seed in concepts[number::processes]:
            study.data_of_drawn(drawn_concept(seed))

    _forked(processes, encode)


def _forked(processes: int, work: Callable[[int], None]) -> None:
    """Runs `work(number)` in processes; here, where there is one. Raises RuntimeError where one of them fails."""
    if processes == 1:
        work(0)
        return
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=work, args=(number,)) for number in range(processes)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    if failed := [one.exitcode for one in running if one.exitcode]:
        raise RuntimeError(f"{len(failed)} of {processes} processes of the bench ended with exit code {failed[0]}.")
