"""Template 02 as an app of the newer frontend: what a training needs, and its panel, without the canvas."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from environment import OTHER_FRONTEND, ROOT
from PIL import Image

from tests.browser.conftest import shows, tiny_canvas
from tests.browser.test_captions import WRITES
from tests.browser.test_panel import serious

pytestmark = [pytest.mark.browser, pytest.mark.soak]

STILLS = "02_wan21_t2v_1.3B_stills"
TOGGLE = "() => window.app.extensionManager.command.execute('Comfy.ToggleLinear')"
HIGH = """() => document.querySelector('.wan-card[data-card="dataset"]').offsetHeight"""
INPUTS = "() => window.app.rootGraph.extra.linearData.inputs.map(([, name]) => name)"


def captions_are_written(canvas: Any, sheet: Any, names: list[str]) -> None:
    """One click on the first picture, then keys alone; the card is as low again once it is closed."""
    low = canvas.script(HIGH)
    sheet.get_by_role("button", name=f"{names[0]}.mp4").first.click()
    for number, name in enumerate(names):
        canvas.page.wait_for_function(WRITES, arg=f"{name}.mp4")
        canvas.page.keyboard.type(f"words of {number}")
        canvas.page.keyboard.press("Control+Enter")
    shows(sheet, "Saved. Run again to train with it.")
    assert canvas.script(HIGH) > low
    sheet.get_by_role("button", name="Close").click()
    canvas.page.wait_for_function(f"most => ({HIGH})() <= most", arg=low)


@pytest.mark.parametrize("frontend", [OTHER_FRONTEND], indirect=True)
def test_a_template_is_an_app_whose_panel_trains_and_is_found_again(
    canvas: Any, workflows: dict[str, Any], frontend: str
) -> None:
    clips = Path(canvas.server.base) / "input" / "app_clips"
    shutil.copytree(clips.with_name("clips"), clips)
    without = sorted(clips.glob("*.txt"))[1:]
    for caption in without:
        caption.unlink()
    few = {"steps": 8, "save_every_n_steps": 8, "preview_every_n_steps": 8, "run_name": "app"}
    tiny = tiny_canvas(
        workflows[STILLS],
        LoadWanModel={"diffusion_model": "wan_tiny_t2v.safetensors"},
        VAELoader={"vae_name": "wan_tiny_vae.safetensors"},
        WanVideoDataset={"folder": "app_clips", "width": 64, "height": 48},
        TrainLoRA=few,
    )
    canvas.page.route(f"**/{STILLS}.json", lambda route: route.fulfill(body=json.dumps(tiny)))
    canvas.open_template(STILLS)
    shown = canvas.script(INPUTS)
    assert [shown[at] for at in (0, 1, 3)] == ["folder", "trigger_word", "run_name"]
    assert all(shown[at].startswith("wan_trainer_status_") for at in (2, 4))
    canvas.script(TOGGLE)
    page = canvas.page
    page.get_by_role("button", name="Skip").click()  # the tour of a first visit
    for text in ("folder", "trigger_word", "run_name", "Training"):
        page.get_by_text(text, exact=True).locator("visible=true").first.wait_for()
    canvas.watch()
    panel, sheet = page.locator(".wan-panel"), page.locator('.wan-card[data-card="dataset"]')
    page.get_by_role("button", name="Run", exact=True).first.click()
    shows(panel.locator(".wan-headline"), "Not trained: Cache Latents + Captions failed.")
    shows(sheet, "Run does not train yet. Choose one of these, or click a picture below and write its caption")
    captions_are_written(canvas, sheet, [caption.stem for caption in without])
    assert [caption.read_text(encoding="utf-8") for caption in without] == ["words of 0", "words of 1"]
    canvas.watch()
    canvas.press_run()
    shows(panel.locator(".wan-headline"), "Done. 8 steps in")
    assert panel.is_visible()
    assert serious(canvas, ".wan-panel") == []
    page.wait_for_timeout(1000)
    shot = canvas.screenshot("app-mode")
    if os.environ.get("WAN_TRAINER_UPDATE"):
        with Image.open(shot) as picture:
            picture.convert("RGB").save(ROOT / "docs" / "journey" / "app.jpg", quality=82, optimize=True)
    saved = canvas.script("async () => (await window.app.graphToPrompt()).workflow")
    canvas.script(TOGGLE)
    canvas.load(saved)
    again = canvas.script(INPUTS)
    assert (again[2], again[4]) != (shown[2], shown[4]), "card and panel of this page have other names"
    canvas.script(TOGGLE)
    panel.wait_for()
    assert panel.is_visible()
    assert canvas.our_problems == []
