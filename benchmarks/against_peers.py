"""One LoRA training step of the mid-size model, side by side with other programs: CPU seconds, memory, equal maths.

    pip install -e .[bench]
    python benchmarks/train_step.py --against diffusers,diffsynth --rounds 5

Every program is a process of its own (contender.py); their steps run strictly one after another, round robin, on one
thread, so that other load affects all alike. Measured are CPU seconds, paired by round, and resident memory above the
loaded model at the peak of a step. A program with another loss or gradient norm is reported as not comparable. With
checkpointing ours runs twice: saving a block's input only, as the others do, and saving attention outputs too, which
no other program offers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from result_files import write_result

ROOT = Path(__file__).resolve().parents[1]
OURS = "wan_core"
KEPT = "attn_output"
OURS_KEEPING = f"wan_core, {KEPT}"
"""our second row: checkpointing that saves attention outputs"""
PROGRAMS = ("diffusers", "diffsynth", "comfyui")
MODES = {False: "no checkpointing", True: "full checkpointing"}
TOLERANCE = 1e-5
"""relative difference of loss and gradient norm"""

Step = dict[str, Any]


class Worker:
    """A contender's process."""

    def __init__(self, program: str, tree: str) -> None:
        self.program = program
        # Not a pipe, which would fill up and block.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        words = [sys.executable, "-X", "utf8", str(ROOT / "benchmarks" / "contender.py"), program]
        self._process = subprocess.Popen(
            [*words, tree] if program == "comfyui" else words,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"),
        )  # fmt: skip
        self.hello = self._answer()

    def step(self, *, checkpointing: bool, policy: str = "full", trace: bool = False) -> Step:
        assert self._process.stdin
        order = {"checkpointing": checkpointing, "policy": policy, "trace": trace}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Step:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            self._log.seek(0)
            raise SystemExit(f"{self.program} ended with {self._process.returncode}:\n{self._log.read()[-4000:]}")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


class Entry(NamedTuple):
    """One row of a case: a program and its checkpointing policy."""

    name: str
    worker: Worker
    policy: str = "full"


def entries(workers: list[Worker], *, checkpointing: bool) -> list[Entry]:
    """Returns the rows of a case, ours first."""
    ours, *others = workers
    keeping = [Entry(OURS_KEEPING, ours, KEPT)] if checkpointing else []
    return [Entry(OURS, ours), *keeping, *(Entry(w.program, w) for w in others)]


def against_peers(names: list[str], rounds: int, comfyui_tree: str, out: Path) -> int:
    """Measure, print and write the table; 1 when a program is not comparable, else 0."""
    workers: list[Worker] = []
    missing: dict[str, str] = {}
    for name in (OURS, *names):
        worker = Worker(name, comfyui_tree)
        if why := worker.hello.get("missing"):
            missing[name] = why
            print(f"{name} is left out ({why}). pip install -e .[bench] brings diffusers and diffsynth.", flush=True)
        else:
            workers.append(worker)
    steps = measure(workers, rounds)
    tensors = {
        mode: {
            row.name: row.worker.step(checkpointing=mode, policy=row.policy, trace=True)["tensor_bytes"]
            for row in entries(workers, checkpointing=mode)
        }
        for mode in MODES
    }
    for worker in workers:
        worker.close()
    result = {
        "hardware": processor(),
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "versions": {w.program: w.hello["versions"] for w in workers},
        "missing": missing,
        "rounds": rounds,
        "modes": {title: summarize(steps[mode], tensors[mode]) for mode, title in MODES.items()},
        "steps": {title: steps[mode] for mode, title in MODES.items()},
    }
    write_result("train_step_against_peers", result, report(result), machine="CPU", out=out)
    return 0 if all(row["comparable"] for mode in result["modes"].values() for row in mode.values()) else 1


def measure(workers: list[Worker], rounds: int) -> dict[bool, dict[str, list[Step]]]:
    """Returns the steps of every program: one warm-up per mode, then `rounds`, in rotating order."""
    rows = {mode: entries(workers, checkpointing=mode) for mode in MODES}
    steps: dict[bool, dict[str, list[Step]]] = {mode: {row.name: [] for row in rows[mode]} for mode in MODES}
    for number in range(-1, rounds):
        for mode, of_mode in rows.items():
            first = number % len(of_mode)
            for row in of_mode[first:] + of_mode[:first]:
                step = row.worker.step(checkpointing=mode, policy=row.policy)
                if number >= 0:
                    steps[mode][row.name].append(step)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return steps


def summarize(steps: dict[str, list[Step]], tensors: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Returns per row: medians, paired ratios of both our rows to it, and whether loss and gradients agree."""
    ours, keeping = steps[OURS], steps.get(OURS_KEEPING)
    rows = {}
    for name, theirs in steps.items():

        def median(key: str, theirs: list[Step] = theirs) -> Any:
            values = [step[key] for step in theirs]
            return None if None in values else statistics.median(values)

        same = all(
            abs(step[key] - ours[0][key]) <= TOLERANCE * abs(ours[0][key])
            for step in theirs
            for key in ("loss", "gradient_norm")
        )
        paired, paired_keeping = ratios(ours, theirs), ratios(keeping, theirs) if keeping else None
        medians = {key: median(key) for key in ("forward_s", "backward_s", "cpu_s", "loss", "gradient_norm")}
        rows[name] = medians | {
            "least_cpu_s": min(step["cpu_s"] for step in theirs),
            "step_bytes": max((s["step_bytes"] for s in theirs), default=None) if median("step_bytes") else None,
            "tensor_bytes": tensors[name],
            "ours_to_it": statistics.median(paired),
            "paired": paired,
            "ours_keeping_to_it": statistics.median(paired_keeping) if paired_keeping else None,
            "paired_keeping": paired_keeping,
            "comparable": same,
        }
    return rows


def ratios(ours: list[Step], theirs: list[Step]) -> list[float]:
    """Returns the ratio of our CPU seconds to theirs, by round."""
    return [mine["cpu_s"] / step["cpu_s"] for mine, step in zip(ours, theirs, strict=True)]


def processor() -> str:
    """Returns the operating system's name of this processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, one used"


RATIOS = ("ours_to_it", "ours_keeping_to_it")
HEADER = (
    "case", "program", "forward s", "backward s", "CPU s", "least", "ours / it", "ours keeping / it", "step MB",
    "tensor MB", "loss", "gradient norm",
)  # fmt: skip


def report(result: dict[str, Any]) -> str:
    lines = [f"| {' | '.join(HEADER)} |", "|" + " --- |" * len(HEADER)]
    for title, rows in result["modes"].items():
        for name, row in rows.items():
            ours = name in (OURS, OURS_KEEPING)
            shown = name if ours else f"{name} {result['versions'][name].get(name, '')} + peft".replace("  ", " ")
            memory = "-" if row["step_bytes"] is None else f"{row['step_bytes'] / 1e6:,.0f}"
            cells = [
                title, shown, *(f"{row[key]:.2f}" for key in ("forward_s", "backward_s", "cpu_s", "least_cpu_s")),
                *("" if ours or row[key] is None else f"{row[key]:.3f}" for key in RATIOS),
                memory, f"{row['tensor_bytes'] / 1e6:,.0f}",
                f"{row['loss']:.5f}", f"{row['gradient_norm']:.5f}" + ("" if row["comparable"] else " NOT COMPARABLE"),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    packages = {package for found in result["versions"].values() for package in found.items()}
    versions = ", ".join(f"{name} {number}" for name, number in sorted(packages))
    left_out = "".join(f"Left out: {name} ({why}).\n" for name, why in result["missing"].items())
    return (
        "# One LoRA step against other programs\n\n"
        f"{result['hardware']}; {versions}; {result['rounds']} rounds, medians; ours / it is the median of the paired "
        f"ratios of CPU seconds, ours keeping / it the same with checkpoint policy {KEPT}. 8 blocks, width 512, 4 "
        "heads, feed-forward 2,048; 2,304 video and 512 text tokens; rank 16 on ten linears per block; float32. Step "
        "MB: resident memory at the step's peak above the loaded model; tensor MB: what tensors and kernel buffers "
        "took of it, exact.\n\n" + "\n".join(lines) + f"\n\n{left_out}"
    ).rstrip() + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this comparison to train_step.py."""
    group = parser.add_argument_group("comparison with other programs, on a CPU")
    group.add_argument(
        "--against", default="", help=f"comma list of {', '.join(PROGRAMS)}: compare, and do nothing else"
    )
    group.add_argument("--rounds", type=int, default=5)
    group.add_argument("--comfyui", default=os.environ.get("COMFYUI_PATH", ""), help="its tree, for --against comfyui")
