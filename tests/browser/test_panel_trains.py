"""The panel with a real run: loss points appear, Stop and keep, reload, queue again, the preview plays.

Two pages watch it, one of each kind of nodes, so each is also the other's second client. The page with Vue nodes stops
it and is reloaded, the other one queues it again; in the soak each does both, and the server restarts.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import PATIENCE_MS, Canvas, Pages, newer_in_ci, tiny_canvas
from tests.browser.test_panel import TAB
from tests.support.preforked import PreforkedEngine

pytestmark = pytest.mark.browser

STEPS = 900
"""more than are made before a button is pressed"""
MORE = 12
"""what the last queue trains after what was kept"""
PANEL = 'window.app.graph._nodes.find(n => n.type === "TrainLoRA").wanTrainerPanel'
POINTS = f"() => {PANEL}.history.points"
LISTED = """name => window.app.graph._nodes.find(n => n.type === "TrainLoRA").widgets
  .find(w => w.name === "start_from_lora").options.values.some(v => v.replaceAll("\\\\", "/") === name)"""
TIMES_ARE = f"""times =>
  [...{PANEL}.element.querySelectorAll(".wan-time")].map(time => time.textContent).join(" ") === times"""
RENDERED = f"""() => [...{PANEL}.player.choice.options].some(one => one.text.startsWith("validation 1"))"""
TURN = """values => {
  for (const widget of window.app.graph._nodes.find(n => n.type === "TrainLoRA").widgets)
    if (widget.name in values) widget.value = values[widget.name];
}"""
NEWEST = f"""() => {{ const {{ slider }} = {PANEL}.player; return slider.value === slider.max; }}"""
BOTH_PLAY = f"""() => [...{PANEL}.element.querySelectorAll("video")]
  .filter(v => !v.error && v.videoWidth > 0 && v.currentTime > 0 && !v.paused).length === 2"""


def steps_on_disk(server: Any, run: str) -> int:
    """Steps metrics.jsonl knows, each counted once."""
    file = Path(server.base) / "output" / "wan_trainer" / run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return len({line["step"] for line in lines if line["event"] == "step"})


def stage_times(server: Any, run: str) -> str:
    """Cache, Load, Train, Validate, Save as the chips show them, from metrics.jsonl."""
    file = Path(server.base) / "output" / "wan_trainer" / run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    spent: dict[str, float] = {}
    for line in lines:
        stage = line.get("stage", "train" if line["event"] == "step" else "")
        spent[stage] = spent.get(stage, 0) + line.get("seconds", 0)
    spent["validate"] = spent.pop("evaluate", 0) + spent.pop("sample", 0)
    spent["load"] = spent.get("load", 0) + spent.pop("start", 0)
    seconds = [math.floor(spent[stage] + 0.5) for stage in ("cache", "load", "train", "validate", "save")]
    return " ".join(f"{s // 60}:{s % 60:02d}" for s in seconds)


def wait_for_points(canvas: Any, count: int, timeout_s: float = 300) -> None:
    canvas.page.wait_for_function(f"n => ({POINTS})() >= n", arg=count, timeout=timeout_s * 1000)


@pytest.fixture
def both(pages: Pages) -> Iterator[tuple[Canvas, Canvas]]:
    """Two pages of one server; the second draws nodes with Vue. A failed test leaves no worker to the next."""
    taken = pages.take_both()
    yield taken
    taken[0].script("() => fetch('/interrupt', { method: 'POST' }).then(answer => answer.status)")


@pytest.fixture
def slow_engine(preforked: PreforkedEngine | None) -> Iterator[None]:
    """Workers wait before each step until the test ends."""
    if preforked:
        preforked.slow.touch()
    yield
    if preforked:
        preforked.slow.unlink()


def press(canvas: Any, name: str) -> None:
    """Press a button of the panel, wherever its node has grown to, and grows to meanwhile."""
    from playwright.sync_api import TimeoutError as TooLate

    canvas.page.bring_to_front()
    button = canvas.page.locator(".wan-panel").get_by_role("button", name=name)
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        canvas.show(".wan-panel .wan-headline")
        with contextlib.suppress(TooLate):
            button.click(timeout=10_000)  # two frames at rest, which take a while on one core
            return
    pytest.fail(f"{name} could not be pressed")


def ended(canvas: Any) -> None:
    """The queue entry of this page is over, every node of it ran, and none failed."""
    canvas.page.wait_for_function(
        "() => window.seen.execution_success.length + window.seen.execution_error.length > 0", timeout=300_000
    )
    assert canvas.seen("execution_error") == []
    clips = [d for d in canvas.seen("executed") if (d.get("output") or {}).get("wan_clips") and str(d["node"]) == "8"]
    assert clips, "the nodes after TrainLoRA did not run"


# The shipped frontend trains in test_train_on_canvas.py.
@pytest.mark.usefixtures("slow_engine")
@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["", "restart"])
@newer_in_ci
def test_a_run_is_stopped_reloaded_resumed_and_watched_by_a_page_of_each_kind(
    both: tuple[Canvas, Canvas], workflows: dict[str, Any], restarts: bool
) -> None:
    pages, run = both, "watched_on" if restarts else "panel"
    canvas, vue = both
    facts = {"run_name": run, "steps": STEPS, "save_every_n_steps": STEPS, "preview_every_n_steps": STEPS}
    uncached = {"trigger_word": run}  # no test before has encoded these captions, so each chip has a time to show
    for page in pages:
        page.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA=facts, WanVideoDataset=uncached))

    reached = 0
    for page in pages if restarts else pages[1:]:  # queues, watches, stops and is reloaded
        page.watch()
        page.focus("TrainLoRA")  # the run goes on until the button is found
        page.page.get_by_role("button", name="Run", exact=True).first.click()
        for each in pages:
            wait_for_points(each, reached + 3)
        press(page, "Stop and keep")
        ended(page)
        stopped = steps_on_disk(page.server, run)
        assert reached + 3 <= stopped < STEPS, "nothing was stopped"
        reached = stopped
        times = stage_times(page.server, run)
        for each in pages:
            each.page.wait_for_function(TIMES_ARE, arg=times)
        page.server.setting("Comfy.VueNodes.Enabled", page is vue)  # a page reads it when it is loaded
        page.page.reload(wait_until="domcontentloaded")
        page.wait_until_ready()
        for each in pages:
            wait_for_points(each, reached)
            assert each.script(POINTS) == reached
            each.page.wait_for_function(TIMES_ARE, arg=times)
            said = f"stopped: step {reached} of {STEPS}"
            each.page.wait_for_function(f"said => {PANEL}.line.element.textContent.startsWith(said)", arg=said)
    assert vue.page.locator("[data-node-id] .wan-panel").count() == 1, "this page does not draw nodes with Vue"
    assert canvas.page.locator("[data-node-id] .wan-panel").count() == 0

    whole = reached + MORE
    canvas.script(TURN, dict.fromkeys(("steps", "save_every_n_steps", "preview_every_n_steps"), whole))
    canvas.watch()
    canvas.press_run()
    assert canvas.lines()[-1].startswith(f"done: step {whole} of {whole}")
    assert next(d["state"] for d in canvas.seen("wan_trainer.status") if "state" in d) == "resume"
    for page in pages:
        wait_for_points(page, whole)
        assert page.script(POINTS) == steps_on_disk(page.server, run) == whole
        page.focus("TrainLoRA")
        page.page.bring_to_front()
        page.page.wait_for_function(BOTH_PLAY)
        page.page.wait_for_function(RENDERED)
        assert page.script(NEWEST), "the player does not show the newest preview"
        page.page.wait_for_function(LISTED, arg=f"wan_trainer/{run}.safetensors")
        assert page.our_problems == []

    if not restarts:
        return
    for page in pages:
        page.page.locator(TAB).first.click()
    a_step_more(canvas.server, run)
    for page in pages:
        wait_for_points(page, whole + 1)
        page.page.locator(".wan-run-name").filter(has_text=run).first.wait_for()


def a_step_more(server: Any, run: str) -> None:
    """The server goes away, the run trains one step without it, and the server comes back."""
    server.stop()
    file = Path(server.base) / "output" / "wan_trainer" / run / "metrics.jsonl"
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    step = [line for line in lines if line["event"] == "step"][-1]
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps({**step, "step": step["step"] + 1}) + "\n")
    server.start(server.port)
