"""Set everything up and run every test: `python3 scripts/test.py [--only lint|unit|comfy|browser] [pytest arguments]`.

Needs nothing but Python 3.10 and a package index. Prints the seconds each stage took against its budget, names the
slowest tests, says what was skipped and why, and ends with one line of totals. Exit code 0 only if every stage passed.

`--fast` is for between two edits: ruff, and the tests of the unit layer that do not last. Nothing is measured against a
budget then, and what it leaves out has to pass before a commit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import environment
from environment import ROOT, Environment, say

LAYERS = ("lint", "unit", "comfy", "browser")
BUDGET_S = {"set-up": 240, "python": 360, "browser": 240}
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
    seconds: float
    verdict: str


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
    stages = [Stage("set-up", time.monotonic() - began, "ok")]
    say(f"Set-up took {stages[0].seconds:.1f} s.")
    for sentence in ready.missing:
        say(f"Missing. {sentence}")

    totals = Totals()
    for layer in chosen:
        began = time.monotonic()
        if layer == "ruff":
            say("\n== ruff")
            verdict = "ok" if run_tools(ruff(ready), totals) else "FAILED"
        else:
            verdict = lint(ready, totals) if layer == "lint" else run_pytest(layer, rest, ready, totals)
        stages.append(Stage(layer, time.monotonic() - began, verdict))

    report(stages, totals, ready, budgets=not asked.fast)
    say(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped")
    return 1 if totals.failed or any(stage.verdict == "FAILED" for stage in stages) else 0


# ---- lint ------------------------------------------------------------------------------------


def lint(ready: Environment, totals: Totals) -> str:
    """Style and types, and the pure logic of the web part. Each tool counts as one test; they run beside each other."""
    say("\n== lint")
    tools: dict[str, list[str]] = {}  # the one that takes longest first
    typed = [name for name in ("wan_core", "nodes") if any((ROOT / name).rglob("*.py"))]
    if ready.node_tools and typed:
        link_tree_for_pyright(ready.comfyui)
        tools["pyright"] = [program(ready.node_tools, "pyright"), *typed, "--project", "."]
    tools |= {"node --test": node_tests()} if shutil.which("node") else {}
    tools |= ruff(ready)
    scripts = [folder for folder in ("web/js", "tests/web") if (ROOT / folder).is_dir()]
    if ready.node_tools and scripts:
        tools["biome"] = [program(ready.node_tools, "biome"), "check", "--no-errors-on-unmatched", *scripts]
    if not ready.node_tools:
        totals.skipped += 2
        say("skipped  pyright and biome: no npm")
    if "node --test" not in tools:
        totals.skipped += 1
        say("skipped  node --test tests/web: no node")
    return "ok" if run_tools(tools, totals) else "FAILED"


def ruff(ready: Environment) -> dict[str, list[str]]:
    program = str(ready.python.with_name("ruff" + ready.python.suffix))
    return {
        "ruff check": [program, "check", "--output-format", "concise", "."],
        "ruff format": [program, "format", "--check", "--output-format", "concise", "."],
    }


def node_tests() -> list[str]:
    return ["node", "--test", *sorted(str(f.relative_to(ROOT)) for f in (ROOT / "tests" / "web").rglob("*.test.mjs"))]


def run_tools(tools: dict[str, list[str]], totals: Totals) -> bool:
    """Runs checkers quietly, two at a time; shows what one said only when it found something."""

    def run(command: list[str]) -> tuple[float, subprocess.CompletedProcess[str]]:
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return time.monotonic() - began, done

    ok = True
    with ThreadPoolExecutor(max_workers=2) as pool:
        for name, (seconds, done) in zip(tools, pool.map(run, tools.values()), strict=True):
            counted = count_node_tests(done, totals) if name == "node --test" else totals.tool(done.returncode == 0)
            ok &= done.returncode == 0
            say(f"{'FAILED' if done.returncode else 'ok':8} {name} ({seconds:.1f} s){counted or ''}")
            if done.returncode:
                lines = (done.stdout + done.stderr).strip().splitlines()
                left_out = [f"... {len(lines) - 75} lines left out"] if len(lines) > 75 else []
                say("\n".join(lines[:60] + left_out + lines[60:][-15:]))
    return ok


def count_node_tests(done: subprocess.CompletedProcess[str], totals: Totals) -> str:
    """Adds what node's own runner counted; returns it in words."""
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


def processes(layer: str) -> int:
    """How many processes share the tests: two, but one where two browsers would draw in turns on a single core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return 1 if layer == "browser" and cores == 1 else 2


def run_pytest(layer: str, rest: list[str], ready: Environment, totals: Totals) -> str:
    """One pytest run of one layer; its output goes to the terminal as it comes, its totals come back in a file."""
    say(f"\n== {layer}")
    counts = environment.CACHE / f"counts-{layer}.json"
    counts.unlink(missing_ok=True)
    command = [
        str(ready.python),
        "-m",
        "pytest",
        "-p",
        "count_plugin",
        "-p",
        "order_plugin",
        "-m",
        MARKS[layer],
        *(("--quick",) if layer == "fast" else ()),
        # Most of the time goes into starting processes that use one core. On the canvas, a process per frontend.
        *(() if rest else ("-n", str(processes(layer)), "--dist", "loadfile", "--no-loadscope-reorder")),
        *(("-p", "frontend_plugin") if layer == "browser" and not rest else ()),
        *rest,
    ]
    variables = {**ready.variables(), "WAN_TRAINER_COUNTS": str(counts)}
    # Without byte code each of some hundred processes compiles the pack again.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    # Two cores: a thread pool per process (torch, ComfyUI, worker) would fight for them.
    variables.setdefault("OMP_NUM_THREADS", "1")
    code = subprocess.call(command, cwd=ROOT, env=variables)
    try:
        found = json.loads(counts.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    totals.passed += found.get("passed", 0)
    totals.failed += found.get("failed", 0) + found.get("error", 0)
    totals.skipped += found.get("skipped", 0)
    totals.slowest += [(seconds, name) for name, seconds in found.get("slowest", {}).items()]
    if code == 5:  # nothing collected
        return "no tests"
    if code and not (found.get("failed", 0) + found.get("error", 0)):
        totals.failed += 1  # pytest itself broke off
    return "FAILED" if code else "ok"


# ---- closing ---------------------------------------------------------------------------------


def report(stages: list[Stage], totals: Totals, ready: Environment, *, budgets: bool) -> None:
    if totals.slowest:
        say("\nSlowest tests, each with what was set up for it first")
    for seconds, name in sorted(totals.slowest, reverse=True)[:SLOWEST]:
        say(f"{seconds:7.1f} s  {name}")
    say("\nStage      seconds  result")
    for stage in stages:
        say(f"{stage.name:<10} {stage.seconds:7.1f}  {stage.verdict}")
    spent = {stage.name: stage.seconds for stage in stages}
    python = sum(spent.get(name, 0) for name in ("lint", "unit", "comfy"))
    measured = (("set-up", spent["set-up"]), ("python", python), ("browser", spent.get("browser", 0)))
    for name, seconds in measured if budgets else ():
        over = "OVER BUDGET" if seconds > BUDGET_S[name] else "within budget"
        say(f"budget {name}: {seconds:.0f} of {BUDGET_S[name]} s, {over}")
    for sentence in ready.missing:
        say(f"Missing. {sentence}")


if __name__ == "__main__":
    sys.exit(main())
