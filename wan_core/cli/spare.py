"""`wan_core spare`: imports all that training takes, then waits on stdin to hear which command to be.

ComfyUI starts one while the nodes before Train Wan LoRA work, so that nobody waits for the imports (ADR 27). Until it
is told it opens no run and asks no GPU; where stdin ends first, nobody wanted it. What follows the line stays in the
pipe: the commands of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from ..files import open_append
from ..packages import first_import
from ..pipes import first_line

__all__ = ["SPARE", "words_once_told"]

SPARE = "spare"
_LONGEST_LINE = 1 << 16


def words_once_told(file: int = 0) -> list[str] | None:
    """Returns the words of the command that a line on `file` names, in its folder and with its log; None at the end.

    The line is JSON: words, folder and log. Libraries are imported before it is waited for: on Windows loading one
    waits for a read that is pending (pipes.py). Where one cannot be imported, that is raised only once the log is known
    in which the run says so.
    """
    broken = _import_training()
    line = first_line(file, _LONGEST_LINE)
    if not line:
        return None
    told = json.loads(line)
    os.chdir(told["folder"])
    _write_into(Path(told["log"]))
    if broken is not None:
        raise broken
    return [str(word) for word in told["words"]]


def _import_training() -> Exception | None:
    """Returns what kept a library from being imported; None where all of them are."""
    try:
        with first_import("torch"):
            from ..load import import_libraries
            from ..run import train_job  # noqa: F401  # pyright: ignore[reportUnusedImport]

            import_libraries()
    except Exception as error:
        return error
    return None


def _write_into(log: Path) -> None:
    """Point stdout and stderr at the end of `log`; what they said into a file before comes first."""
    sys.stderr.flush()
    with open_append(log) as file:
        with contextlib.suppress(OSError):  # a terminal or a pipe has nothing to be read again
            os.lseek(2, 0, os.SEEK_SET)
            while said := os.read(2, _LONGEST_LINE):
                file.write(said)
        for number in (1, 2):
            os.dup2(file.fileno(), number)
