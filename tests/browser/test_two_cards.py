"""Template 06: when both cards work in a step, on the Split node; and a run by its folder, in the panel."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Pages, shipped_in_ci, shows
from tests.browser.grown import GIB, OUTPUTS, REASON, TELL, TOO_LARGE, TWO_CARDS
from tests.browser.test_panel import serious
from tests.nodes.route_server import step_done, write_run
from wan_core.files import atomic_write_json, locked
from wan_core.metrics import JsonlSink

pytestmark = pytest.mark.browser

SPLIT, PANEL = '.wan-card[data-card="split"]', ".wan-panel"
RUN = "my_motion_high_noise"
CARD = {"name": "NVIDIA GeForce RTX 4090", "peak": 23 * GIB, "total": 24 * GIB}


def write_rank(run: Path, rank: int, host: str, *devices: dict[str, Any]) -> Path:
    """The file of a rank, as it is written every two seconds."""
    file = run / "ranks" / f"rank-{rank:04d}.json"
    given = [{**CARD, "device": f"cuda:{index}", **device} for index, device in enumerate(devices)]
    atomic_write_json(file, {"version": 1, "rank": rank, "host": host, "devices": given}, run)
    return file


def write_many(run: Path) -> None:
    """32 ranks on four machines, of which rank 7 is slow and rank 30 was lost 45 seconds ago."""
    for rank in range(32):
        file = write_rank(run, rank, f"node{rank // 8}", {"now": int((21.4 + 1.5 * rank / 31) * GIB)})
        if rank == 30:
            os.utime(file, (time.time() - 45,) * 2)
    sink = JsonlSink(run / "metrics.jsonl")
    sink(replace(step_done(5, 10), slowest_rank=7))
    sink.close()


def said(canvas: Any, stage: str) -> None:
    """The server says that the run is in that stage."""
    detail = {"node": "8", "run": RUN, "stage": stage, "text": stage, "metrics_lines": 999}
    canvas.script("d => window.app.api.dispatchEvent(new CustomEvent('wan_trainer.status', {detail: d}))", detail)


@shipped_in_ci
def test_template_06_draws_when_both_cards_work_and_the_panel_shows_the_devices_of_all_ranks(
    pages: Pages, workflows: dict[str, Any], frontend: str
) -> None:
    canvas, workflow = pages.take(vue=frontend != "shipped"), workflows["06_two_gpus_fp8"]
    canvas.page.route("**/wan_trainer/plan", lambda route: route.fulfill(json=TOO_LARGE))
    canvas.load(workflow)
    card = canvas.page.locator(SPLIT)
    shows(card, "split blocks", REASON, "of which the cards wait 20 %", "cuda:0", "cuda:1")
    rows = card.locator(".wan-lane")
    assert rows.count() == 2
    assert rows.nth(1).get_attribute("aria-label") == "cuda:1 is busy 79 % of a step"
    assert [rows.nth(card).locator("span").all_inner_texts() for card in (0, 1)] == [
        [str(micro + 1) for _, micro, _, _ in one["work"]] for one in TWO_CARDS["cards"]
    ]
    wide, (begin, end) = rows.nth(1).bounding_box()["width"], TWO_CARDS["cards"][1]["work"][0][2:]
    assert begin > 0, "the second card waits for the first"
    assert rows.nth(1).locator("span").first.bounding_box()["width"] == pytest.approx(wide * (end - begin), abs=1)
    canvas.script(TELL, {"SplitAcrossGPUs": OUTPUTS["SplitAcrossGPUs"]})
    shows(card, "7.0 GiB weights · 30.0 GiB predicted peak · of 24.0 GiB")
    assert serious(canvas, SPLIT) == []

    run = write_run(Path(canvas.server.base) / "output" / "wan_trainer", RUN, state="running")
    try:
        with locked(run / ".lock", "busy"):
            panel, bars = canvas.page.locator(PANEL), canvas.page.locator(f"{PANEL} .wan-device")
            write_rank(run, 0, "alpha", {"now": 19 * GIB, "busy": 98}, {"now": 20 * GIB})
            said(canvas, "train")
            panel.locator(".wan-details").evaluate("one => { one.open = true; }")
            shows(panel, "RTX 4090 · 19.0 GiB of 24.0 GiB · 98 % busy", "RTX 4090 · 20.0 GiB of 24.0 GiB")
            assert [bars.nth(n).locator("span").first.inner_text() for n in (0, 1)] == ["cuda:0", "cuda:1"]
            assert rows.count() == 2, "of the plan before"
            canvas.focus("TrainLoRA")
            canvas.screenshot(f"two-cards-{frontend}")

            write_many(run)
            said(canvas, "save")
            shows(panel, "32 devices, 21.4 to 22.9 of 24.0 GiB · slowest rank 7 · ⚠ 1 rank does not respond")
            assert not bars.first.is_visible()
            canvas.focus("TrainLoRA")
            panel.locator(".wan-memory summary").click()
            shows(bars.first, "rank 30 · node3 cuda:0", "⚠ no response for 0:4")
            shows(bars.nth(1), "rank 7 · node0 cuda:0", "slowest")
            assert bars.count() == 32
            assert serious(canvas, PANEL) == []
    finally:
        shutil.rmtree(run)
        canvas.page.unroute("**/wan_trainer/plan")
        canvas.page.route("**/wan_trainer/plan", lambda route: route.fulfill(json={**TOO_LARGE, "cards": None}))
    canvas.load(workflow)
    card.locator(".wan-lane").first.wait_for(state="hidden")
    canvas.page.unroute("**/wan_trainer/plan")
    assert canvas.our_problems == []
