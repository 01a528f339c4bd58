"""Seconds until a fully cached run trains: from the press of Run, and from the start of its process.

    COMFYUI_PATH=... python benchmarks/start.py --against ../before --rounds 5

A tiny model, one clip, nothing to encode. "process" starts the worker as ComfyUI does, and reads CPU seconds and wall
time at each of its first events. "queue" presses Run in a real ComfyUI with a new seed, hence a new run, each time; CPU
seconds include the server and all its children. This checkout and the other one alternate. Writes one result file to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("WAN_BENCH_ROOT", HERE))
sys.path[:0] = [str(ROOT / name) for name in (".", "benchmarks", "scripts", "tests", "tests/nodes", "tests/tiny")]

from result_files import hardware, used, write_result

EVENTS = ("load", "evaluate", "train", "step")
PRESSES = 3


def of_process(base: Path) -> dict[str, Any]:
    """Returns wall and CPU seconds of a worker at its first events."""
    from tests.support.tiny_run import make_run
    from wan_core.train import TrainConfig

    train = TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, eval_items=1)
    run, found = make_run(base, train=train), {}
    command = [sys.executable, "-X", "utf8", str(ROOT / "wan_core" / "launch.py"), "train", str(run.directory)]
    began = time.perf_counter()
    worker = subprocess.Popen(
        [*command, "--controlled", "--roots", str(run.roots_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=run.directory,
    )
    process = psutil.Process(worker.pid)
    assert worker.stdout is not None
    for line in worker.stdout:
        event = json.loads(line)
        name = event["stage"] if event["event"] == "stage" else event["event"]
        if name in EVENTS and name not in found:
            found[name] = {"wall": time.perf_counter() - began, "cpu": used(process)}
        if name == "step":
            break
    worker.communicate()
    return found


def of_queue(base: Path) -> dict[str, Any]:
    """Returns wall and CPU seconds from a press of Run to the first step."""
    from comfy_server import ComfyServer, make_base
    from graphs import TRAIN, training_graph
    from world import TINY_PACK, fill_base

    comfyui = Path(os.environ.get("COMFYUI_PATH") or ROOT / ".cache" / "comfyui").resolve()
    base = fill_base(make_base(base, [TINY_PACK]), comfyui)
    found: list[dict[str, float]] = []
    with ComfyServer(base, comfyui=comfyui, env={"OMP_NUM_THREADS": "1"}) as comfy:
        comfy.run(training_graph("begun", steps=1))  # warm-up: encoding and imports happen once
        server = psutil.Process(comfy.pid)
        for number in range(PRESSES):
            graph = training_graph(f"start_{number}", steps=1, seed=number + 1)
            lines = comfy.output / "wan_trainer" / f"start_{number}" / "metrics.jsonl"
            cpu, began = used(server), time.perf_counter()
            prompt = comfy.queue(graph)
            while not (lines.is_file() and '"event": "step"' in lines.read_text(encoding="utf-8")):
                time.sleep(0.01)
            found.append({"wall": time.perf_counter() - began, "cpu": used(server) - cpu})
            assert comfy.outputs(comfy.wait(prompt), TRAIN)["wan_run"][0]["status"] == "done"
    return middle(found)


def middle(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def measured(root: Path, what: str) -> dict[str, Any]:
    """Returns one measurement of a new process with the code of `root`."""
    with tempfile.TemporaryDirectory() as base:
        command = [sys.executable, str(Path(__file__).resolve()), "--measure", what, "--base", base]
        env = {**os.environ, "WAN_BENCH_ROOT": str(root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def report(result: dict[str, Any]) -> str:
    lines = [
        "# From the press of Run to the first step", "",
        f"{result['hardware']}, load {result['load']}. Everything is cached. Medians of {len(result['rounds'])} paired",
        "rounds: CPU seconds, and wall seconds in brackets.", "",
        "| code | process: loads | evaluates | trains | first step | Run pressed: first step |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name in result["names"]:
        rows = [row[name] for row in result["rounds"]]
        cells = [middle([row["process"][event] for row in rows]) for event in EVENTS]
        cells.append(middle([row["queue"] for row in rows]))
        told = [f"{one['cpu']:.2f} ({one['wall']:.2f})" for one in cells]
        lines.append(f"| {name} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=["process", "queue"], help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        work = {"process": of_process, "queue": of_queue}[options.measure]
        sys.stdout.write(json.dumps(work(options.base)) + "\n")
        return 0
    roots = {"this checkout": HERE} | ({"before": options.against.resolve()} if options.against else {})
    rounds: list[dict[str, Any]] = []
    for number in range(options.rounds):
        turn = list(roots.items())[:: 1 if number % 2 == 0 else -1]
        rounds.append({name: {what: measured(root, what) for what in ("process", "queue")} for name, root in turn})
        sys.stderr.write(json.dumps(rounds[-1]) + "\n")
    load = f"{os.getloadavg()[0]:.0f}"
    result = {"hardware": hardware(), "load": load, "names": list(roots), "rounds": rounds}
    write_result("start", result, report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
