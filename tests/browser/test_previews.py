"""All previews of a run on one page: hundreds are read a few at a time, texts stay texts, keys reach every clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Canvas, Pages, shows
from tests.browser.runs_on_page import Runs, whole_run
from tests.browser.test_panel import HOSTILE, TAB, open_run, serious
from tests.support.odd_videos import write_clip

pytestmark = pytest.mark.browser

KNOWN = "() => document.querySelectorAll('.wan-grid-clip[data-state=known]').length >= 8"
PLAYING = "() => [...document.querySelectorAll('.wan-grid-clip video')].filter(one => !one.paused).length > 8"
OPEN = "() => document.querySelectorAll('video[src]').length"


def previews(prompts: list[str], steps: range) -> list[dict[str, Any]]:
    """A run with a preview of each prompt at each step."""
    lines = [line for line in whole_run(steps[-1], steps[-1], steps.step) if line["event"] != "sample"]
    return lines + [
        {"event": "sample", "sample_id": f"s{step}_p{place}", "step": step, "prompt": place, "text": text, "file": "x"}
        for step in steps
        for place, text in enumerate(prompts)
    ]


@pytest.mark.parametrize("frontend", ["shipped"], indirect=True)
def test_four_hundred_previews_load_as_they_are_seen_and_a_step_is_chosen_there(pages: Pages, tmp_path: Path) -> None:
    canvas: Canvas = pages.take(vue=False)
    page, small = canvas.page, tmp_path / "small.mp4"
    write_clip(small)  # forty play at once
    runs = Runs(small)
    prompts = [HOSTILE[0], HOSTILE[1], "x" * 10_000, *(f"prompt {n}" for n in range(5))]
    runs.add("many", previews(prompts, range(0, 500, 10)), state="done", preview="s0_p0")
    runs.serve(page)
    page.locator(TAB).first.click()
    page.get_by_role("button", name="Refresh").click()
    open_run(page, "many").get_by_role("button", name="All previews").click()
    grid = page.get_by_role("dialog", name="Previews of many")
    page.wait_for_function(KNOWN)
    shows(grid, "400 previews", HOSTILE[0], HOSTILE[1])
    assert page.locator(".wan-grid-clip").count() == 400
    assert canvas.script(OPEN) <= 2, "a still of the list, and the clip that is pointed at"
    assert sum("/samples/" in one for one in runs.asked) < 150
    grid.get_by_role("button", name="Play all").click()
    page.wait_for_function(PLAYING)
    assert canvas.script(OPEN) <= 42
    grid.get_by_role("button", name="prompt 2, step 10", exact=True).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    large = page.get_by_role("region", name="step 20")
    shows(large, "before training", HOSTILE[0])
    assert serious(canvas, ".wan-grid-large") == []  # of 400 clips it would last seconds
    assert canvas.script(OPEN) <= 4, "the grid pauses behind it"
    large.get_by_role("button", name="Use this step").click()
    shows(grid, "Step 20 is the run's LoRA now.")
    assert [(path, body) for path, _, body in runs.posted] == [("many/use", {"step": 20})]
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "prompt 1, step 20"
    page.keyboard.press("Escape")
    grid.wait_for(state="detached")
    page.wait_for_function(f"() => ({OPEN})() <= 1")
    assert canvas.script("() => window.hacked") is None
    assert canvas.our_problems == []
    runs.leave(page)
