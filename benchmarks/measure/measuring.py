"""Measures rows in sequence, each in a separate process, and writes the results after each row."""

from __future__ import annotations

import dataclasses
import gc
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from wan_core.files import atomic_write_bytes, atomic_write_json
from wan_core.load import import_libraries

from .apart import DONE, ERROR, LEFT_OUT, Figures, Outcome, run_apart, run_here, ways_apart
from .machine import machine_facts
from .one_row import Where, measure_row
from .page import line, markdown
from .rows import Row

_MARGIN_S = 60.0
"""seconds beyond a row's time after which its process is killed"""
_ASKING_S = 120.0


@dataclass
class Measurement:
    """A measurement of some rows within some minutes."""

    rows: Sequence[Row]
    minutes: float
    out: Path
    """existing folder of the results; traces and snapshots are in subfolders"""
    tell: Callable[[str], None]
    tiny: bool = False
    trace: bool = False
    snapshot: bool = False
    apart: bool = True
    """True: each row in a separate process; False: all rows in this process"""

    said: dict[str, Any] = field(default_factory=dict[str, Any])
    """the results so far, as JSON data"""

    def run(self) -> dict[str, Any]:
        """Returns the results, and writes them to `out` after every row, so a KeyboardInterrupt loses one row."""
        deadline = time.monotonic() + 60 * self.minutes
        method, machine = self._machine()
        self.said = {"version": 1, "machine": {**machine, "tiny": self.tiny}, "rows": []}
        with tempfile.TemporaryDirectory(prefix="wan_measure_", ignore_cleanup_errors=True) as work:
            for number, row in enumerate(self.rows, 1):
                self.tell(f"{number} of {len(self.rows)}: {row.name} ...")
                outcome = self._measured(method, row, Path(work), deadline - time.monotonic())
                result = {"name": row.name, **dataclasses.asdict(outcome)}
                self.said["rows"].append(result)
                self.tell(f"    {line(result)} ({outcome.seconds:.0f} s)")
                self._write()
        return self.said

    def _machine(self) -> tuple[str, Figures]:
        """Returns the start method of processes, and the facts of the machine.

        The facts are read in a child, since reading them uses the card, and a process that forks must not have used it.
        """
        if not self.apart:
            return "", machine_facts()
        import_libraries()
        gc.freeze()  # so that the garbage collector of a forked process does not write to, and so copy, these pages
        found = Outcome(ERROR)
        for method in ways_apart():
            found = run_apart(method, machine_facts, _ASKING_S)
            if found.status == DONE:
                return method, found.figures
        raise RuntimeError(f"the properties of this machine cannot be read: {found.said}")

    def _measured(self, method: str, row: Row, place: Path, left_s: float) -> Outcome:
        if left_s <= 0:
            return Outcome(LEFT_OUT, "no time was left")
        where = Where(
            place,
            tiny=self.tiny,
            left_s=left_s,
            out=self.out,
            trace=self.trace,
            snapshot=self.snapshot,
        )
        work = partial(measure_row, row, where)
        return run_apart(method, work, left_s + _MARGIN_S) if self.apart else run_here(work)

    def _write(self) -> None:
        for ending, data in ((".json", None), (".md", markdown(self.said))):
            path = self.file.with_suffix(ending)
            if data is None:
                atomic_write_json(path, self.said)
            else:
                atomic_write_bytes(path, data.encode())

    @property
    def file(self) -> Path:
        """The JSON file of the results; the text lies next to it."""
        name = re.sub(r"[^\w.()-]+", "-", str(self.said["machine"]["name"]))
        tag = "_tiny" if self.tiny else ""
        return self.out / f"measured_{name}{tag}.json"
