"""Time and memory of a training step on this machine's card, for models with published figures.

    python benchmarks/measure --rows 1,3 --trace --out results

Each row trains for a few steps on random weights, in a process of its own, through the code of a run. Results are
written after each row, as JSON and as a text to paste into an issue.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[depth]) for depth in (1, 2)]

from measure import DONE, ERROR, ROWS, Measurement, names_of, rows_numbered, table
from wan_core.errors import ExitCode, WanTrainerError
from wan_core.words import plain


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 0; 8 if no row could be measured and one failed; 3 after Ctrl+C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="nothing is begun that would not end by then")
    add("--rows", default="", metavar="N[,N]", help="only these, by their numbers; default: all")
    add("--list", action="store_true", help="say which rows there are, and measure nothing")
    add("--out", type=Path, default=Path("measured"), help="folder for the results")
    add("--trace", action="store_true", help="a torch.profiler trace of one step of each row")
    add("--snapshot", action="store_true", help="a memory snapshot of each row, for pytorch.org/memory_viz")
    add("--tiny", action="store_true", help="tiny shapes, on a CPU too: does everything run")
    add("--one-process", action="store_true", help="not each row in a process of its own")
    options = parser.parse_args(words)
    if options.list:
        print(names_of(ROWS))
        return ExitCode.DONE
    options.out.mkdir(parents=True, exist_ok=True)
    measurement = Measurement(
        rows_numbered(options.rows),
        options.minutes,
        options.out.resolve(),
        tell=lambda text: print(plain(text), file=sys.stderr, flush=True),
        tiny=options.tiny,
        trace=options.trace,
        snapshot=options.snapshot,
        apart=not options.one_process,
    )
    code = ExitCode.DONE
    try:
        measurement.run()
    except KeyboardInterrupt:
        code = ExitCode.STOPPED
    if said := measurement.said:
        print(table(said) if sys.stdout.isatty() else json.dumps(said))
        print(f"{measurement.file.with_suffix('.md')} is a text to paste into an issue.", file=sys.stderr)
        states = {row["status"] for row in said["rows"]}
        code = ExitCode.BUG if ERROR in states and DONE not in states else code
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WanTrainerError as error:
        sys.exit(str(error))
