"""The panel with a real run: loss points appear, Stop and keep, reload, queue again, the preview plays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import tiny_canvas

pytestmark = pytest.mark.browser

STEPS = 150
PANEL = 'window.app.graph._nodes.find(n => n.type === "TrainLoRA").wanTrainerPanel'
POINTS = f"() => {PANEL}.history.points"
TIMES_ARE = f"""times =>
  [...{PANEL}.element.querySelectorAll(".wan-time")].map(time => time.textContent).join(" ") === times"""
BOTH_PLAY = f"""() => [...{PANEL}.element.querySelectorAll("video")]
  .filter(v => !v.error && v.videoWidth > 0 && v.currentTime > 0 && !v.paused).length === 2"""


def steps_on_disk(server: Any, run: str) -> int:
    """Steps metrics.jsonl knows, each counted once."""
    file = Path(server.base) / "output" / "wan_trainer" / run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return len({line["step"] for line in lines if line["event"] == "step"})


def stage_times(server: Any, run: str) -> str:
    """Load, Cache, Train, Validate, Save as the chips show them, from metrics.jsonl."""
    file = Path(server.base) / "output" / "wan_trainer" / run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    spent: dict[str, float] = {}
    for line in lines:
        stage = line.get("stage", "train" if line["event"] == "step" else "")
        spent[stage] = spent.get(stage, 0) + line.get("seconds", 0)
    spent["validate"] = spent.pop("evaluate", 0) + spent.pop("sample", 0)
    seconds = [math.floor(spent[stage] + 0.5) for stage in ("load", "cache", "train", "validate", "save")]
    return " ".join(f"{s // 60}:{s % 60:02d}" for s in seconds)


def wait_for_points(canvas: Any, count: int, timeout_s: float = 300) -> None:
    canvas.page.wait_for_function(f"n => ({POINTS})() >= n", arg=count, timeout=timeout_s * 1000)


@pytest.fixture(autouse=True)
def nothing_left_running(canvas: Any) -> Iterator[None]:
    """A failed test leaves no worker to the next."""
    yield
    canvas.script("() => fetch('/interrupt', { method: 'POST' }).then(answer => answer.status)")


def test_stop_and_keep_then_reload_then_queue_again(canvas: Any, workflows: dict[str, Any]) -> None:
    facts = {"run_name": "panel", "steps": STEPS, "save_every_n_steps": STEPS, "preview_every_n_steps": STEPS}
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA=facts))
    canvas.watch()
    canvas.page.get_by_role("button", name="Run", exact=True).first.click()
    wait_for_points(canvas, 3)
    canvas.focus("TrainLoRA")
    canvas.page.get_by_role("button", name="Stop and keep").click()
    canvas.page.wait_for_function("() => window.seen.execution_success.length > 0", timeout=300_000)
    assert canvas.seen("execution_error") == []
    clips = [d for d in canvas.seen("executed") if (d.get("output") or {}).get("images") and str(d["node"]) == "8"]
    assert clips, "the nodes after TrainLoRA did not run"
    stopped = steps_on_disk(canvas.server, "panel")
    assert 3 <= stopped < STEPS, "nothing was stopped"
    wait_for_points(canvas, stopped)
    assert canvas.script(POINTS) == stopped
    times = stage_times(canvas.server, "panel")
    canvas.page.wait_for_function(TIMES_ARE, arg=times, timeout=10_000)

    canvas.page.reload(wait_until="domcontentloaded")
    canvas.wait_until_ready()
    wait_for_points(canvas, stopped, timeout_s=60)
    assert canvas.script(POINTS) == stopped, "the curve was not redrawn from the file"
    canvas.page.wait_for_function(TIMES_ARE, arg=times, timeout=10_000)
    said = f"stopped: step {stopped} of {STEPS}"
    canvas.page.wait_for_function(f"said => {PANEL}.status.textContent.startsWith(said)", arg=said)

    canvas.watch()
    canvas.press_run(timeout_s=300)
    wait_for_points(canvas, STEPS)
    assert canvas.script(POINTS) == steps_on_disk(canvas.server, "panel") == STEPS
    assert canvas.lines()[-1].startswith(f"done: step {STEPS} of {STEPS}")
    assert next(d["state"] for d in canvas.seen("wan_trainer.status") if "state" in d) == "resume"
    canvas.page.wait_for_function(BOTH_PLAY, timeout=30_000)
    name = "wan_trainer/panel.safetensors"
    canvas.page.wait_for_function(
        """name => window.app.graph._nodes.find(n => n.type === "TrainLoRA").widgets
          .find(w => w.name === "start_from_lora").options.values.some(v => v.replaceAll("\\\\", "/") === name)""",
        arg=name,
        timeout=10_000,
    )
    assert canvas.our_problems == []
