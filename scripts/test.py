"""Set everything up and run every test: `python3 scripts/test.py [--only lint|unit|comfy|browser] [pytest arguments]`.

Needs nothing but Python 3.10 and a package index. Prints the seconds each stage took against its budget, names the
slowest tests, says what was skipped and why, and ends with one line of totals. Exit code 0 only if every stage passed.

`--fast` is for between two edits: ruff, and the short tests of the unit layer, without budgets. The other tests must
pass before a commit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import environment
from environment import ROOT, Environment, say

LAYERS = ("comfy", "browser", "unit", "lint")
BUDGET_S = {"set-up": (240, ("set-up",)), "browser": (300, ("browser",)), "all": (600, ("set-up", *LAYERS))}
"""part -> wall seconds from its first start to its last end, and its stages"""
BUDGET_CPU_S = {"python": (660, ("comfy", "unit"))}
"""part -> CPU seconds of its processes, and its stages: what runs in parallel with another layer"""
PRIORITY = {"unit": 5, "lint": 19}
"""`nice` of layers that run in parallel with comfy and browser, and take what these leave of the cores"""
MARKS = {
    "unit": "not comfy and not browser and not gpu and not multi_gpu and not soak",
    "comfy": "comfy and not browser and not gpu and not multi_gpu and not soak",
    "browser": "browser and not gpu and not multi_gpu and not soak",
}
MARKS["fast"] = MARKS["unit"]
SLOWEST = 10


@dataclass
class Totals:
    """Tests over all stages. A tool such as ruff counts as one."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    slowest: list[tuple[float, str]] = field(default_factory=list)
    """Seconds and name of the slowest tests of every layer"""

    def tool(self, passed: bool) -> None:
        if passed:
            self.passed += 1
        else:
            self.failed += 1


@dataclass
class Stage:
    """A line of the closing table."""

    name: str
    began: float
    ended: float
    verdict: str
    cpu: float = 0
    """CPU seconds of its processes; 0 where the system does not count them"""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=LAYERS, help="run one layer only")
    parser.add_argument("--fast", action="store_true", help="ruff and the quick tests of the unit layer only")
    asked, rest = parser.parse_known_args()
    if asked.fast and asked.only:
        parser.error("--fast chooses its layers itself: leave --only away")
    chosen = ["ruff", "fast"] if asked.fast else [asked.only] if asked.only else list(LAYERS)

    say("Setting up (a second run starts at once)")
    began = time.monotonic()
    ready = environment.prepare(tests=True)
    stages = [Stage("set-up", began, time.monotonic(), "ok")]
    say(f"Set-up took {stages[0].seconds:.1f} s.")
    for sentence in ready.missing:
        say(f"Missing. {sentence}")

    totals = Totals()
    # In parallel, because a test of a server or a browser often waits. A browser begins when comfy has ended.
    aside = ("comfy", "unit", "lint") if cores() > 1 and len(chosen) == len(LAYERS) else ()
    with ExitStack() as runs:

        def begin(layer: str) -> Checkers | PytestRun:
            if layer in ("ruff", "lint"):
                return Checkers(layer, ruff(ready) if layer == "ruff" else checkers(ready, totals), aside=bool(aside))
            return runs.enter_context(PytestRun(layer, rest, ready, aside=layer in aside))

        begun = {layer: begin(layer) for layer in aside}
        for layer in chosen:
            say(f"\n== {layer}")
            stages.append((begun.get(layer) or begin(layer)).result(totals))

    report(stages, totals, ready, budgets=not asked.fast)
    say(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped")
    return 1 if totals.failed or any(stage.verdict == "FAILED" for stage in stages) else 0


# ---- lint ------------------------------------------------------------------------------------


def checkers(ready: Environment, totals: Totals) -> dict[str, list[str]]:
    """Returns name -> command: style, types, and the unit tests of web/. Adds those that this machine lacks to the
    skipped of `totals`."""
    tools: dict[str, list[str]] = {}  # the slowest first
    typed = [name for name in ("wan_core", "nodes") if any((ROOT / name).rglob("*.py"))]
    if ready.node_tools and typed:
        link_tree_for_pyright(ready.comfyui)
        tools["pyright"] = [program(ready.node_tools, "pyright"), *typed, "--project", "."]
    tools |= {"tests/web": node_tests()} if shutil.which("node") else {}
    tools |= ruff(ready)
    scripts = [folder for folder in ("web/js", "tests/web") if (ROOT / folder).is_dir()]
    if ready.node_tools and scripts:
        tools["biome"] = [program(ready.node_tools, "biome"), "check", "--no-errors-on-unmatched", *scripts]
    if not ready.node_tools:
        totals.skipped += 2
        say("skipped  pyright and biome: no npm")
    if "tests/web" not in tools:
        totals.skipped += 1
        say("skipped  tests/web: no node")
    return tools


def ruff(ready: Environment) -> dict[str, list[str]]:
    program = str(ready.python.with_name("ruff" + ready.python.suffix))
    return {
        "ruff check": [program, "check", "--output-format", "concise", "."],
        "ruff format": [program, "format", "--check", "--output-format", "concise", "."],
    }


def node_tests() -> list[str]:
    """All files in one process: `node --test` starts one for each, which costs more than the tests."""
    files = sorted(f.relative_to(ROOT).as_posix() for f in (ROOT / "tests" / "web").rglob("*.test.mjs"))
    return ["node", "--input-type=module", "--eval", "\n".join(f'import "./{file}";' for file in files)]


class Checkers:
    """Commands that run two at a time, each counted as one test. With `aside` at the priority of the layer."""

    def __init__(self, layer: str, commands: dict[str, list[str]], *, aside: bool) -> None:
        self.layer = layer
        self.began = time.monotonic()
        self._before = nice(layer) if aside else []
        pool = ThreadPoolExecutor(max_workers=2)
        self._running = {name: pool.submit(self._run, command) for name, command in commands.items()}

    def _run(self, command: list[str]) -> tuple[float, float, subprocess.CompletedProcess[str]]:
        began = time.monotonic()
        done = subprocess.run([*self._before, *command], cwd=ROOT, capture_output=True, text=True, check=False)
        return began, time.monotonic(), done

    def result(self, totals: Totals) -> Stage:
        """Waits for each; prints the output of those that fail."""
        ok, last = True, self.began
        for name, running in self._running.items():
            began, ended, done = running.result()
            counted = count_node_tests(done, totals) if name == "tests/web" else totals.tool(done.returncode == 0)
            ok, last = ok and done.returncode == 0, max(last, ended)
            say(f"{'FAILED' if done.returncode else 'ok':8} {name} ({ended - began:.1f} s){counted or ''}")
            if done.returncode:
                lines = (done.stdout + done.stderr).strip().splitlines()
                left_out = [f"... {len(lines) - 75} lines left out"] if len(lines) > 75 else []
                say("\n".join(lines[:60] + left_out + lines[60:][-15:]))
        return Stage(self.layer, self.began, last, "ok" if ok else "FAILED")


def nice(layer: str) -> list[str]:
    """Returns what comes before a command of a layer that runs in parallel with others."""
    return ["nice", "-n", str(PRIORITY[layer])] if layer in PRIORITY and shutil.which("nice") else []


def count_node_tests(done: subprocess.CompletedProcess[str], totals: Totals) -> str:
    """Adds the counts of node's runner; returns them in words."""
    counts = dict(re.findall(r"^(?:#|ℹ) (pass|fail|skipped) (\d+)", done.stdout, re.MULTILINE))
    passed, failed, skipped = (int(counts.get(kind, 0)) for kind in ("pass", "fail", "skipped"))
    totals.passed += passed
    totals.failed += failed or (1 if done.returncode else 0)
    totals.skipped += skipped
    return f": {passed} passed"


def program(folder: Path, name: str) -> str:
    return str(folder / (f"{name}.cmd" if os.name == "nt" else name))


def link_tree_for_pyright(comfyui: Path) -> None:
    """pyright reads ComfyUI's types from .cache/comfyui; with COMFYUI_PATH that is a link to the named tree."""
    usual = environment.CACHE / "comfyui"
    if usual.is_symlink() and usual.resolve() != comfyui.resolve():
        usual.unlink()
    if not usual.exists():
        try:
            usual.symlink_to(comfyui, target_is_directory=True)
        except OSError:
            say("note     pyright runs without ComfyUI's types: this system allows no symlink here")


# ---- pytest ----------------------------------------------------------------------------------


def cores() -> int:
    """Returns the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def processes(layer: str) -> int:
    """Returns the processes of pytest-xdist: two, but one for browsers on a single core."""
    return 1 if layer == "browser" and cores() == 1 else 2


class PytestRun:
    """One pytest run of one layer. Prints its output at once, or with `aside` from the call of `result` on; its totals
    come back in a file.
    """

    def __init__(self, layer: str, rest: list[str], ready: Environment, *, aside: bool = False) -> None:
        self.layer = layer
        self.began = time.monotonic()
        self.ended = self.began
        self.cpu = 0.0
        self.counts = environment.CACHE / f"counts-{layer}.json"
        self.counts.unlink(missing_ok=True)
        command = [
            *(nice(layer) if aside else ()),
            str(ready.python),
            "-u",
            "-m",
            "pytest",
            "-p",
            "order_plugin",
            "-m",
            MARKS[layer],
            *(("--quick",) if layer == "fast" else ()),
            *(("--color=yes",) if sys.stdout.isatty() else ()),
            # Most of the time is spent starting processes that use one core. For the canvas a process per frontend;
            # files whose scripts import ComfyUI or diffusers share one process.
            *(() if rest else ("-n", str(processes(layer)), "--dist", "loadfile", "--no-loadscope-reorder")),
            *(("-p", "frontend_plugin") if layer == "browser" and not rest else ()),
            *(("-p", "shared_plugin") if layer in ("unit", "comfy") and not rest else ()),
            *rest,
        ]
        variables = {**ready.variables(), "WAN_TRAINER_COUNTS": str(self.counts)}
        # Without byte code each of some hundred processes compiles the pack again.
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        # Two cores: the thread pools of torch, ComfyUI and worker would compete for them.
        variables.setdefault("OMP_NUM_THREADS", "1")
        self.output = environment.CACHE / f"output-{layer}.txt" if aside else None
        with open(self.output, "wb") if self.output else nullcontext() as out:
            self.process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=out, stderr=out)
        self.watch = threading.Thread(target=self._wait, daemon=True)
        self.watch.start()

    def _wait(self) -> None:
        if hasattr(os, "wait4"):
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu = used.ru_utime + used.ru_stime
        self.process.wait()
        self.ended = time.monotonic()

    def __enter__(self) -> PytestRun:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills a run that has not ended, as after Ctrl-C."""
        if self.watch.is_alive():
            self.process.terminate()

    def result(self, totals: Totals) -> Stage:
        """Prints the output until the run has ended, and adds its counts."""
        if self.output:
            self._show(self.output)
        self.watch.join()
        code = self.process.returncode
        try:
            found = json.loads(self.counts.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {}
        totals.passed += found.get("passed", 0)
        totals.failed += found.get("failed", 0) + found.get("error", 0)
        totals.skipped += found.get("skipped", 0)
        totals.slowest += [(seconds, name) for name, seconds in found.get("slowest", {}).items()]
        if code and code != 5 and not (found.get("failed", 0) + found.get("error", 0)):
            totals.failed += 1  # pytest itself broke off
        verdict = "no tests" if code == 5 else "FAILED" if code else "ok"
        return Stage(self.layer, self.began, self.ended, verdict, self.cpu)

    def _show(self, output: Path) -> None:
        with open(output, encoding="utf-8", errors="replace", newline="") as said:
            running = True
            while running:
                running = self.watch.is_alive()  # before the last read, so that no output is lost
                sys.stdout.write(said.read())
                sys.stdout.flush()
                self.watch.join(timeout=0.5)


# ---- closing ---------------------------------------------------------------------------------


def report(stages: list[Stage], totals: Totals, ready: Environment, *, budgets: bool) -> None:
    if totals.slowest:
        say("\nSlowest tests, each with what was set up for it first")
    for seconds, name in sorted(totals.slowest, reverse=True)[:SLOWEST]:
        say(f"{seconds:7.1f} s  {name}")
    say("\nStage        start  seconds      CPU  result")
    for stage in sorted(stages, key=lambda stage: stage.began):
        cpu = f"{stage.cpu:7.1f}" if stage.cpu else "      -"
        say(f"{stage.name:<10} {stage.began - stages[0].began:7.1f}  {stage.seconds:7.1f}  {cpu}  {stage.verdict}")
    for name, (budget, layers) in BUDGET_S.items() if budgets else ():
        of_part = [stage for stage in stages if stage.name in layers]
        seconds = max((s.ended for s in of_part), default=0) - min((s.began for s in of_part), default=0)
        say(f"budget {name}: {seconds:.0f} of {budget} s, {within(seconds, budget)}")
    for name, (budget, layers) in BUDGET_CPU_S.items() if budgets else ():
        seconds = sum(stage.cpu for stage in stages if stage.name in layers)
        say(f"budget {name}: {seconds:.0f} of {budget} CPU s, {within(seconds, budget)}")
    for sentence in ready.missing:
        say(f"Missing. {sentence}")


def within(seconds: float, budget: float) -> str:
    return "OVER BUDGET" if seconds > budget else "within budget"


if __name__ == "__main__":
    sys.exit(main())
