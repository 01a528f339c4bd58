"""Cost of watching a run: the panel's work per animation frame, and a run's pace with and without an open page.

    OMP_NUM_THREADS=1 COMFYUI_PATH=... python benchmarks/panel.py --rounds 5

Frames: a real page shows a run of 10,000 steps while 1,000 status messages a second come in; the time our own drawing
takes in each frame is measured in the page, for both kinds of nodes. Pace: short runs of the tiny model through the
queue, in turns with a page on the run (chart, numbers and previews in view) and with no client at all; medians of the
seconds each step took, paired. Writes one result file to benchmarks/results/. Needs Chromium and playwright, as the
browser tests do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / name) for name in ("benchmarks", "scripts", "tests", "tests/tiny"))]

from comfy_server import ComfyServer, make_base
from environment import CACHE, find_chromium
from result_files import hardware, write_result
from world import TINY_PACK, fill_base, tiny_graph

from tests.browser.conftest import Canvas, tiny_canvas
from tests.browser.runs_on_page import Runs, whole_run

GRAPH = "08_smoke_test"
NODE = 'window.app.graph._nodes.find(n => n.type === "TrainLoRA")'
RUN_STEPS = 10_000
# Steps without timing: the first are slow in every run.
WARM_UP = 5
# A step of the smoke graph takes 20 ms, which no real one does; this is about 100.
SIZE = {"width": 160, "height": 96, "num_frames": 17}

STORM = f"""async seconds => {{
  const panel = {NODE}.wanTrainerPanel;
  const work = [], gaps = [];
  const run = panel.frames.run.bind(panel.frames);
  panel.frames.run = () => {{
    const began = performance.now();
    run();
    work.push(performance.now() - began);
  }};
  let last = performance.now(), going = true;
  const count = now => {{ gaps.push(now - last); last = now; if (going) requestAnimationFrame(count); }};
  requestAnimationFrame(count);
  const end = Date.now() + seconds * 1000;
  for (let i = 0; Date.now() < end; i++) {{
    const detail = {{ node: "7", run: "storm", stage: "train", text: `step ${{i}}/10000   loss`, metrics_lines: 1e9 }};
    window.app.api.dispatchEvent(new CustomEvent("wan_trainer.status", {{ detail }}));
    if (i % 10 === 9) await new Promise(done => setTimeout(done, 10));
  }}
  going = false;
  panel.frames.run = run;
  return [work, gaps.slice(1), panel.history.points];
}}"""


@contextmanager
def page_of(server: ComfyServer, vue: bool) -> Iterator[Canvas]:
    """Yields a page with the app ready, and nodes drawn on the canvas or with Vue."""
    from playwright.sync_api import sync_playwright

    server.setting("Comfy.TutorialCompleted", True)
    server.setting("Comfy.VueNodes.Enabled", vue)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--disable-dev-shm-usage"])
        yield Canvas(browser.new_page(viewport={"width": 1600, "height": 1000}), server, CACHE / "screenshots").open()
        browser.close()


def measure_frames(server: ComfyServer, workflow: dict[str, Any], vue: bool, seconds: float) -> dict[str, float]:
    """Returns milliseconds of our drawing per frame, and between two frames, under many messages."""
    with page_of(server, vue) as canvas:
        runs = Runs(CACHE / "clips" / "carphone.mp4")
        runs.add("storm", whole_run(RUN_STEPS, RUN_STEPS, 500), live=True, state="running", node="7")
        runs.serve(canvas.page)
        canvas.load(workflow)
        canvas.focus("TrainLoRA")
        canvas.script(STORM, 2)  # the curve is read once
        work, gaps, points = canvas.script(STORM, seconds)
    return {
        "frames": len(work),
        "points": points,
        "work_ms": statistics.median(work),
        "work_95_ms": statistics.quantiles(work, n=20)[-1],
        "gap_ms": statistics.median(gaps),
    }


def step_seconds(server: ComfyServer, run: str) -> list[float]:
    """Returns the seconds of each step in the run's metrics."""
    text = (server.output / "wan_trainer" / run / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["seconds"] for line in lines if line["event"] == "step"][WARM_UP:]


def train(server: ComfyServer, run: str, steps: int) -> float:
    """Returns the median seconds of a step of a new, queued run; its node is the page's node 7."""
    graph = json.loads((ROOT / "workflows" / "api" / f"{GRAPH}.json").read_text(encoding="utf-8"))
    facts = {"run_name": run, "steps": steps, "save_every_n_steps": steps, "preview_every_n_steps": 0}
    server.run(tiny_graph(graph, TrainLoRA=facts, WanVideoDataset=SIZE))
    return statistics.median(step_seconds(server, run))


def measure_pace(server: ComfyServer, workflow: dict[str, Any], rounds: int, steps: int) -> list[dict[str, float]]:
    """Returns median seconds per step, unwatched and watched, by round."""
    rows: list[dict[str, float]] = []
    train(server, "warm", steps)
    for number in range(rounds):
        row = {"alone": train(server, f"alone{number}", steps)}
        with page_of(server, vue=bool(number % 2)) as canvas:
            watched = f"watched{number}"
            canvas.load(with_run_name(workflow, watched))
            canvas.focus("TrainLoRA")
            row["watched"] = train(server, watched, steps)
            row["points"] = canvas.script(f"() => {NODE}.wanTrainerPanel.history.points")
        rows.append(row)
    return rows


def with_run_name(workflow: dict[str, Any], name: str) -> dict[str, Any]:
    return tiny_canvas(workflow, TrainLoRA={"run_name": name})


def report(result: dict[str, Any]) -> str:
    lines = [
        "# The panel while a run goes on", "",
        f"{result['hardware']}, ComfyUI with its shipped page in headless Chromium without a GPU.", "",
        f"## Frames\n\nA run of {RUN_STEPS:,} steps, about 1,000 messages a second for {result['seconds']} s.", "",
        "| nodes | frames drawn | steps | our drawing, median ms | 95 % ms | between frames, median ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for kind, row in result["frames"].items():
        figures = (row["frames"], row["points"], *(f"{row[name]:.2f}" for name in ("work_ms", "work_95_ms", "gap_ms")))
        lines.append(f"| {kind} | {' | '.join(map(str, figures))} |")
    ratios = [row["watched"] / row["alone"] for row in result["pace"]]
    lines += [
        "", "## Pace", "",
        f"{result['steps']} steps of the tiny model, {len(ratios)} paired rounds, median seconds per step.", "",
        "| round | no client | page on the run | ratio |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for number, (row, ratio) in enumerate(zip(result["pace"], ratios, strict=True), 1):
        lines.append(f"| {number} | {row['alone']:.4f} | {row['watched']:.4f} | {ratio:.3f} |")
    lines += ["", f"Median ratio {statistics.median(ratios):.3f}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="paired rounds of the pace")
    parser.add_argument("--steps", type=int, default=150, help="steps of each of their runs")
    parser.add_argument("--seconds", type=float, default=10, help="of messages")
    parser.add_argument("--hardware", default="CPU-2-cores", help="goes into the name of the result file")
    options = parser.parse_args()
    workflow = json.loads((ROOT / "workflows" / f"{GRAPH}.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        server = ComfyServer(make_base(Path(folder) / "base", [TINY_PACK]))
        fill_base(server.base, server.comfyui)
        with server:
            frames = {
                kind: measure_frames(server, with_run_name(workflow, "storm"), kind == "Vue", options.seconds)
                for kind in ("LiteGraph", "Vue")
            }
            pace = measure_pace(server, workflow, options.rounds, options.steps)
    result = {
        "hardware": hardware(), "frames": frames, "pace": pace, "steps": options.steps, "seconds": options.seconds
    }  # fmt: skip
    write_result("panel", result, report(result), machine=options.hardware)
    return 0


if __name__ == "__main__":
    sys.exit(main())
