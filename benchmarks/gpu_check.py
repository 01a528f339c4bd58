"""Everything that only a GPU can say about this engine, in one command: without network, in at most 20 minutes.

    python benchmarks/gpu_check.py                        # all parts, 20 minutes
    python benchmarks/gpu_check.py --only gradients,rates --minutes 8
    python benchmarks/gpu_check.py --tiny                 # tiny shapes, on a CPU too: does it run at all

Writes gpu_check_<hardware>_<yyyy-mm>.json and .md to benchmarks/results/ after every measurement, so an interrupted run
keeps its results; results of another --only stay. Each measurement is a process of its own: a failure is recorded with
its error, and the others still run. Exit code 1 after a failure. Weights are random and drawn where they lie.
card/METHOD.md explains each figure.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT), str(ROOT / "tests" / "tiny")]

import peer_forward
import torch
from card import gradients, jobs, machine, page, peers, streams
from card.case import Bench, Case, Result, measured
from measure import ERROR, LEFT_OUT, Figures, run_apart, ways_apart

from wan_core.load import import_libraries

PARTS = {
    "rates": machine.rates,
    "published": jobs.published,
    "gradients": gradients.cases,
    "memory": jobs.memory,
    "speed": jobs.speed,
    "switches": jobs.switches,
    "peers": peers.cases,
    "streams": streams.cases,
}
LONGEST_S = 300.0
"""time limit of a measurement"""


def main() -> int:
    options = parse()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * options.minutes
    import_all(options.only.split(","))
    with tempfile.TemporaryDirectory() as own:
        bench = Bench(options.work or Path(own), tiny=options.tiny)
        method, found = start_method()
        bench = dataclasses.replace(bench, cuda=found["cuda"])
        tag = f"{'_tiny' if options.tiny else ''}{options.tag}"
        file = out / f"gpu_check_{found['name'].replace(' ', '-')}_{time.strftime('%Y-%m')}{tag}.json"
        found["tiny"] = options.tiny
        results = {(r.part, r.name): r for r in read(file)}
        left_out = 0
        for case in chosen(options, bench):
            left_s = deadline - time.monotonic()
            if left_s < case.about_s:
                left_out += 1
                if (case.part, case.name) not in results:
                    results[case.part, case.name] = Result(case.part, case.name, LEFT_OUT, "no time was left")
            else:
                print(f"{case.part}: {case.name} ...", flush=True)
                result = in_child(method, case, bench, min(LONGEST_S, left_s + 30))
                results[case.part, case.name] = result
                print(f"    {result.status} in {result.seconds:.1f} s {page.short(result)}", flush=True)
            write(file, found, list(results.values()))
    errors = [r for r in results.values() if r.status == ERROR]
    print(f"{len(results)} measurements in {file.with_suffix('.md').name}; failed {len(errors)}, left out {left_out}")
    return 1 if errors else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma list of {', '.join(PARTS)}; default: all")
    parser.add_argument("--named", action="append", default=[], help="only measurements of this name; can be repeated")
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="time limit; a row that would take longer is not started"
    )
    parser.add_argument("--first", type=int, default=0, help="of each part only so many measurements; 0: all")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to see whether everything runs")
    parser.add_argument("--work", type=Path, help="folder for runs, which do not stay; default: the system's")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--tag", default="", help="added to the file name, for example _driver580")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(PARTS):
        parser.error(f"--only {', '.join(sorted(unknown))}: no such part. Use {', '.join(PARTS)}.")
    return options


def chosen(options: argparse.Namespace, bench: Bench) -> list[Case]:
    """Returns the requested cases, in the order of PARTS."""
    wanted = options.only.split(",")
    found = [case for part, cases in PARTS.items() if part in wanted for case in cases(bench)[: options.first or None]]
    return [case for case in found if not options.named or case.name in options.named]


def import_all(parts: list[str]) -> None:
    """Imports the packages of measurements before forking. A missing one is reported by the case that needs it."""
    with contextlib.suppress(Exception):
        import_libraries()
        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with contextlib.suppress(Exception):
        if "peers" in parts:
            peer_forward.diffusers()
    gc.freeze()  # otherwise the first collection of every fork copies these pages


def start_method() -> tuple[str, Figures]:
    """Returns "fork" where that works, else "spawn", and the facts of the machine."""
    said = ""
    for method in ways_apart():
        result = run_apart(method, machine.hardware, LONGEST_S)
        if result.figures:
            return method, result.figures
        said = result.said
    raise SystemExit(f"The machine could not be asked what it is: {said}")


def in_child(method: str, case: Case, bench: Bench, limit_s: float) -> Result:
    """Returns the result of a case in a process of its own, which is killed after `limit_s`."""
    found = run_apart(method, partial(measured, case, bench), limit_s)
    return Result(case.part, case.name, found.status, found.said, found.seconds, found.figures)


def read(file: Path) -> list[Result]:
    """Returns the results of an earlier run; [] without a file."""
    if not file.is_file():
        return []
    return [Result(**result) for result in json.loads(file.read_text(encoding="utf-8"))["results"]]


def write(file: Path, machine_figures: dict[str, Any], results: list[Result]) -> None:
    """Writes data and page atomically."""
    said = {"version": 1, "machine": machine_figures, "results": [dataclasses.asdict(r) for r in results]}
    for path, text in ((file, json.dumps(said, indent=1) + "\n"), (file.with_suffix(".md"), page.page(said))):
        beside = path.with_name(path.name + ".part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
