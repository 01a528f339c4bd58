"""Cost of showing runs: 2,000 of them listed, and one of 100,000 steps opened.

    COMFYUI_PATH=... python benchmarks/runs.py --against ../before --rounds 5

Every measurement is a process of its own, this checkout and the other one by turns, over the same files, which are in
the page cache; through the routes' own functions, JSON included, without a network. A list is requested from a server
that has just started (first), and again. A run is read as the page does it, page by page: the first answer is shown,
the last one ends it. Writes one result file to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("WAN_BENCH_ROOT", HERE))
sys.path[:0] = [str(ROOT / name) for name in (".", "benchmarks", "scripts", "tests", "tests/nodes", "tests/tiny")]

from result_files import hardware, write_result

RUNS, STEPS = 2000, 100_000


def write_world(base: Path) -> dict[str, float]:
    """Writes run folders: sweeps of three settings, and one run of very many steps."""
    from route_server import step_done, write_run

    from wan_core.events import Evaluated, to_line

    runs = base / "output" / "wan_trainer"
    one = write_run(runs, "run_0000")
    config = json.loads((one / "run.json").read_text(encoding="utf-8"))
    for number in range(1, RUNS):
        folder = runs / f"run_{number:04d}"
        shutil.copytree(one, folder)
        config["lora"]["rank"] = (8, 16, 32)[number % 3]
        config["train"] |= {"learning_rate": (5e-5, 1e-4)[number % 2], "seed": number}
        (folder / "run.json").write_text(json.dumps(config), encoding="utf-8")
    long = write_run(base / "long" / "wan_trainer", "long")
    with (long / "metrics.jsonl").open("a", encoding="ascii") as file:
        for step in range(5, STEPS + 1):
            file.write(to_line(step_done(step, STEPS)))
            if step % 1000 == 0:
                file.write(to_line(Evaluated(step=step, eval_loss=0.2 + step % 7000 / 1e5, held_out=True)))
    (base / "loras").mkdir()
    return {}


def routes_over(runs: Path, loras: Path) -> Any:
    """Returns the routes of this checkout as ComfyUI loads them."""
    from comfy_server import make_base
    from pack_loader import list_nodes, load_pack
    from route_server import our_module

    comfyui = Path(os.environ.get("COMFYUI_PATH") or HERE / ".cache" / "comfyui").resolve()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = list_nodes(load_pack(comfyui, make_base(Path(tempfile.mkdtemp(dir=runs.parents[1])))))
    live = our_module(nodes, "engine.live_runs").LiveRuns()
    gc.collect()  # garbage of imports, which a server has collected before its first request
    return our_module(nodes, "routes").RunRoutes(lambda: runs, lambda: loras, list, live)


class Watch:
    """Wall and CPU seconds of requests."""

    def __init__(self) -> None:
        self.seconds, self.cpu = 0.0, 0.0

    def ask(self, question: Any) -> str:
        """Returns the text of the response."""
        began, used = time.perf_counter(), time.process_time()
        answer = asyncio.run(question)
        self.seconds += time.perf_counter() - began
        self.cpu += time.process_time() - used
        return answer.text

    def told(self) -> dict[str, float]:
        return {"seconds": self.seconds, "cpu": self.cpu}


def request(run: str = "", **query: str) -> Any:
    return SimpleNamespace(match_info={"run": run}, query=query)


def listed(base: Path) -> dict[str, Any]:
    """Returns seconds of the first list in this process, and of later ones."""
    routes = routes_over(base / "output" / "wan_trainer", base / "loras")
    found: list[dict[str, float]] = []
    for _ in range(4):
        watch = Watch()
        assert len(json.loads(watch.ask(routes.all_runs(request())))["runs"]) == RUNS
        found.append(watch.told())
    return {"first": found[0], "again": {key: statistics.median(one[key] for one in found[1:]) for key in found[0]}}


def opened(base: Path) -> dict[str, Any]:
    """Returns seconds and MB until a page has read the long run completely."""
    routes = routes_over(base / "long" / "wan_trainer", base / "loras")
    before, watch = resident(), Watch()
    since, size, requests, newest, more = 0, 0, 0, {}, True
    shown: dict[str, float] = {}
    while more:
        text = watch.ask(routes.metrics(request("long", since=str(since), thin="1")))
        answer = json.loads(text)
        size, requests = size + len(text), requests + 1
        shown = shown or watch.told()
        since, more = answer["next"], answer.get("more", False)
        steps = [record for record in answer["records"] if record["event"] == "step"]
        newest = steps[-1] if steps else newest
    assert newest["step"] == STEPS
    return {"shown": shown, **watch.told(), "mb": resident() - before, "answer_mb": size / 1e6, "requests": requests}


def resident() -> float:
    """Returns the peak resident memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measured(root: Path, what: str, base: Path) -> dict[str, Any]:
    """Returns one measurement of a new process with the code of `root`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", what, "--base", str(base)]
    done = subprocess.run(
        command, env={**os.environ, "WAN_BENCH_ROOT": str(root)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def rounds_of(roots: dict[str, Path], base: Path, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(count):
        row: dict[str, Any] = {}
        for name, root in list(roots.items())[:: 1 if number % 2 == 0 else -1]:
            row[name] = {"list": measured(root, "listed", base), "open": measured(root, "opened", base)}
        rows.append(row)
        sys.stderr.write(json.dumps(row) + "\n")
    return rows


def report(result: dict[str, Any]) -> str:
    rows, names = result["rounds"], result["names"]
    lines = [
        "# Looking at runs", "",
        f"{result['hardware']}, load {result['load']}. Medians of {len(rows)} paired rounds, CPU seconds of the",
        "server, and wall seconds in brackets.", "",
        "| code | 2,000 runs listed first | again | a run of 100,000 steps: first answer | all of it "
        "| memory above the server's, MB | answers | MB sent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name in names:
        found = [row[name]["open"] for row in rows]
        times = [
            *(both([row[name]["list"][kind] for row in rows]) for kind in ("first", "again")),
            both([one["shown"] for one in found]),
            both(found),
        ]
        mb, requests, sent = (statistics.median(one[key] for one in found) for key in ("mb", "requests", "answer_mb"))
        lines.append(f"| {name} | {' | '.join(times)} | {mb:.0f} | {requests:.0f} | {sent:.1f} |")
    return "\n".join(lines) + "\n"


def both(found: list[dict[str, float]]) -> str:
    cpu, seconds = (statistics.median(one[key] for one in found) for key in ("cpu", "seconds"))
    return f"{cpu:.2f} ({seconds:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hardware", default="CPU-4-cores", help="goes into the name of the result file")
    parser.add_argument("--measure", choices=["write", "listed", "opened"], help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        work = {"write": write_world, "listed": listed, "opened": opened}[options.measure]
        sys.stdout.write(json.dumps(work(options.base)) + "\n")
        return 0
    roots = {"this checkout": HERE} | ({"before": options.against.resolve()} if options.against else {})
    with tempfile.TemporaryDirectory() as folder:
        # Written by the other checkout, which may be older and refuses newer settings.
        measured([*roots.values()][-1], "write", Path(folder))
        rounds = rounds_of(roots, Path(folder), options.rounds)
    load = f"{os.getloadavg()[0]:.0f}"
    result = {"hardware": hardware(), "load": load, "names": list(roots), "rounds": rounds}
    write_result("runs", result, report(result), machine=options.hardware)
    return 0


if __name__ == "__main__":
    sys.exit(main())
